"""The apps of the built-in world and their state. Every public method of an app is an API, documented where it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

_PAGE = 5


class ApiFailure(Exception):
    """An API's refusal, as the agent's code sees it."""


@dataclass
class State:
    """Everything the apps know."""

    profile: dict[str, str]
    contacts: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    balance: int = 0
    transactions: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    task: dict[str, Any] = field(default_factory=lambda: {"status": None, "answer": None})

    def copy(self) -> State:
        """As it is now."""
        return deepcopy(self)


class App:
    """An app over the state."""

    def __init__(self, state: State) -> None:
        self._state = state

    @classmethod
    def apis(cls) -> dict[str, Callable[..., Any]]:
        """Its APIs by name."""
        found = inspect.getmembers(cls, inspect.isfunction)
        return {name: function for name, function in found if not name.startswith("_") and name != "apis"}


class Supervisor(App):
    """Whom you work for, and the task itself."""

    def show_profile(self) -> dict[str, str]:
        """Name and email of your supervisor."""
        return dict(self._state.profile)

    def show_account_passwords(self) -> list[dict[str, str]]:
        """The supervisor's passwords."""
        return [{"account_name": "payments", "password": _password(self._state)}]

    def complete_task(self, answer: Any = None, status: str = "success") -> dict[str, str]:
        """Say that the task is complete; with an answer if and only if it asks for one."""
        _require(status in ("success", "fail"), "status is 'success' or 'fail'")
        self._state.task = {"status": status, "answer": answer}
        return {"message": "Marked the task complete."}


class Contacts(App):
    """People and how to reach them."""

    def search_contacts(self, query: str = "", relationship: str = "", page_index: int = 0) -> list[dict[str, Any]]:
        """Contacts whose name has the query in it, five a page."""
        found = [
            contact
            for contact in self._state.contacts
            if query.lower() in contact["name"].lower() and relationship in ("", contact["relationship"])
        ]
        return _page(found, page_index)


class Notes(App):
    """Notes with a title and a text."""

    def search_notes(self, query: str = "", page_index: int = 0) -> list[dict[str, Any]]:
        """Ids and titles of the notes whose title or text has the query in it, five a page."""
        found = [note for note in self._state.notes if query.lower() in (note["title"] + note["content"]).lower()]
        return [{"note_id": note["note_id"], "title": note["title"]} for note in _page(found, page_index)]

    def show_note(self, note_id: int) -> dict[str, Any]:
        """A note with its text."""
        return dict(self._find(note_id))

    def create_note(self, title: str, content: str) -> dict[str, int]:
        """Make a note."""
        note_id = 1 + max((note["note_id"] for note in self._state.notes), default=0)
        self._state.notes.append({"note_id": note_id, "title": _text(title), "content": _text(content)})
        return {"note_id": note_id}

    def update_note(self, note_id: int, content: str) -> dict[str, str]:
        """Replace the text of a note."""
        self._find(note_id)["content"] = _text(content)
        return {"message": "Note updated."}

    def delete_note(self, note_id: int) -> dict[str, str]:
        """Delete a note."""
        self._state.notes.remove(self._find(note_id))
        return {"message": "Note deleted."}

    def _find(self, note_id: int) -> dict[str, Any]:
        found = [note for note in self._state.notes if note["note_id"] == note_id]
        _require(bool(found), f"there is no note {note_id!r}")
        return found[0]


class Payments(App):
    """Money, in whole dollars. Log in first: every other API wants the access token."""

    def login(self, username: str, password: str) -> dict[str, str]:
        """The access token of an account; the username is its email."""
        known = username == self._state.profile["email"] and password == _password(self._state)
        _require(known, "invalid credentials")
        return {"access_token": _token(self._state)}

    def show_balance(self, access_token: str) -> dict[str, int]:
        """What is in the account."""
        self._check(access_token)
        return {"balance": self._state.balance}

    def show_transactions(self, access_token: str, direction: str = "", page_index: int = 0) -> list[dict[str, Any]]:
        """What was sent and received, five a page; direction is 'sent', 'received' or empty for both."""
        self._check(access_token)
        return _page([t for t in self._state.transactions if direction in ("", t["direction"])], page_index)

    def send_money(self, access_token: str, email: str, amount: int, description: str = "") -> dict[str, str]:
        """Send money to somebody."""
        self._check(access_token)
        self._check_order(email, amount)
        _require(amount <= self._state.balance, f"the balance is {self._state.balance}")
        self._state.balance -= amount
        sent = {"direction": "sent", "email": email, "amount": amount, "description": _text(description)}
        self._state.transactions.append(sent)
        return {"message": f"Sent {amount} to {email}."}

    def request_money(self, access_token: str, email: str, amount: int, description: str = "") -> dict[str, str]:
        """Ask somebody for money."""
        self._check(access_token)
        self._check_order(email, amount)
        self._state.requests.append({"email": email, "amount": amount, "description": _text(description)})
        return {"message": f"Requested {amount} from {email}."}

    def _check(self, access_token: str) -> None:
        _require(access_token == _token(self._state), "the access token is missing or invalid; log in first")

    def _check_order(self, email: str, amount: int) -> None:
        _require(type(amount) is int and amount > 0, "amount is a whole number above 0")
        _require(any(contact["email"] == email for contact in self._state.contacts), f"nobody has the email {email!r}")


APPS: dict[str, type[App]] = {
    "supervisor": Supervisor,
    "contacts": Contacts,
    "notes": Notes,
    "payments": Payments,
}


class ApiDocs:
    """What there is to call."""

    def show_app_descriptions(self) -> list[dict[str, str]]:
        """The apps."""
        return [{"name": name, "description": inspect.getdoc(app) or ""} for name, app in APPS.items()]

    def show_api_descriptions(self, app_name: str) -> list[dict[str, str]]:
        """The APIs of an app."""
        _require(app_name in APPS, f"there is no app {app_name!r}")
        return [{"name": name, "description": inspect.getdoc(api) or ""} for name, api in APPS[app_name].apis().items()]

    def show_api_doc(self, app_name: str, api_name: str) -> dict[str, Any]:
        """An API and its parameters."""
        _require(app_name in APPS and api_name in APPS[app_name].apis(), f"there is no {app_name}.{api_name}")
        api = APPS[app_name].apis()[api_name]
        given = list(inspect.signature(api).parameters.values())[1:]
        parameters = [{"name": p.name, "type": str(p.annotation), "required": p.default is p.empty} for p in given]
        return {"app": app_name, "api": api_name, "description": inspect.getdoc(api), "parameters": parameters}


def call_api(state: State, app_name: str, api_name: str, arguments: dict[str, Any]) -> Any:
    """What an API gives; an `ApiFailure` if it refuses, or if it isn't one."""
    known = APPS[app_name].apis() if app_name in APPS else {}
    if app_name == "api_docs" and api_name in ("show_app_descriptions", "show_api_descriptions", "show_api_doc"):
        api = getattr(ApiDocs(), api_name)
    elif api_name in known:
        api = getattr(APPS[app_name](state), api_name)
    else:
        raise ApiFailure(f"there is no API {app_name}.{api_name}; see apis.api_docs.show_app_descriptions()")
    try:
        inspect.signature(api).bind(**arguments)
    except TypeError as error:
        raise ApiFailure(f"{app_name}.{api_name}: {error}") from None
    try:
        return api(**arguments)
    except (AttributeError, TypeError) as error:  # an argument of another type than the API's
        raise ApiFailure(f"{app_name}.{api_name}: {error}") from None


def _page(items: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    _require(type(index) is int and index >= 0, "page_index is a whole number from 0")
    return deepcopy(items[index * _PAGE : (index + 1) * _PAGE])


def _text(value: str) -> str:
    _require(isinstance(value, str) and len(value) <= 10_000, "titles and texts are strings of up to 10,000 characters")
    return value


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ApiFailure(message)


def _password(state: State) -> str:
    return f"pw-{state.profile['first_name'].lower()}-{len(state.contacts)}"


def _token(state: State) -> str:
    return f"token-{_password(state)[::-1]}"
