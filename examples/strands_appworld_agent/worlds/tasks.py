"""The tasks of the built-in world: from a name like `debts-17` to a state, an instruction, and what has to come of it.

Each has a way to solve it and a way to get it wrong: the code of several turns. Numbers that are divisible by five are
the held-out split.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from agentcore_rl_toolkit.errors import ConfigError

from .apps import State

Split = Literal["train", "held-out"]
Requirement = tuple[str, Callable[[State, State], bool]]
"""What has to hold of the state at the start and at the end."""

_NAMES = "Ada Ben Carla Dan Emma Finn Grace Hugo Iris Jack Kate Leo Maya Noah Olga Paul Rosa Sam Tina Vera"
_LOGIN = """\
me = apis.supervisor.show_profile()["email"]
password = apis.supervisor.show_account_passwords()[0]["password"]
token = apis.payments.login(username=me, password=password)["access_token"]
"""
_PEOPLE = """\
people, page = {}, 0
while batch := apis.contacts.search_contacts(page_index=page):
    people.update({p["name"]: p for p in batch})
    page += 1
print(len(people))
"""
_DONE = "apis.supervisor.complete_task()"


@dataclass(frozen=True)
class Task:
    """A state, what is wanted, and two ways to go about it."""

    task_id: str
    instruction: str
    state: State
    requirements: tuple[Requirement, ...]
    solution: tuple[str, ...]
    """The code of each turn."""
    wrong: tuple[str, ...]
    """Plausible, and failing a requirement."""

    @property
    def row(self) -> dict[str, str]:
        """What is in a data file; the ways to go about it are not."""
        return {"prompt": self.instruction, "task_id": self.task_id, "world": "builtin"}


def make_task(task_id: str) -> Task:
    """The task of that name.

    >>> make_task("debts-17").instruction.split(".")[0]
    "Pay everybody what my note 'I owe' says"
    """
    kind, _, number = task_id.rpartition("-")
    if kind not in KINDS or not number.isdigit():
        raise ConfigError(f"there is no built-in task {task_id!r}", hint=f"kinds: {', '.join(KINDS)}; e.g. debts-17")
    dice = random.Random(task_id)
    return KINDS[kind](task_id, dice, _world(dice))


def tasks(split: Split, seed: int = 0) -> Iterator[Task]:
    """Different tasks without end, every kind in turn; the same ones for the same seed."""
    number = seed * 1_000_000
    while True:
        number += 1
        if (number % 5 == 0) == (split == "held-out"):
            for kind in KINDS:
                yield make_task(f"{kind}-{number}")


def debts(task_id: str, dice: random.Random, state: State) -> Task:
    """A note of debts, paid."""
    owed = {contact["name"]: dice.randint(5, 60) for contact in dice.sample(state.contacts, 3)}
    _add_note(state, "I owe", "\n".join(f"{name}: {amount}" for name, amount in owed.items()))
    emails = {contact["name"]: contact["email"] for contact in state.contacts}
    wanted = sorted((emails[name], amount) for name, amount in owed.items())
    read = """\
found = apis.notes.search_notes(query="I owe")
note = apis.notes.show_note(note_id=next(n["note_id"] for n in found if n["title"] == "I owe"))
owed = [line.split(": ") for line in note["content"].splitlines()]
print(owed)
"""
    pay = _LOGIN + (
        "for name, amount in owed:\n"
        '    apis.payments.send_money(access_token=token, email=people[name]["email"], amount=int(amount))\n'
    )
    return Task(
        task_id,
        "Pay everybody what my note 'I owe' says. Their emails are in my contacts.",
        state,
        (
            ("the people of the note got their amounts, and nobody anything else", lambda a, b: _sent(a, b) == wanted),
            _untouched("notes", "contacts", "requests"),
            _finished(None),
        ),
        (read, _PEOPLE, pay + _DONE),
        (read, _PEOPLE, pay.replace("int(amount)", "int(amount) + 1") + _DONE),
    )


def total(task_id: str, dice: random.Random, state: State) -> Task:
    """A question about many pages of transactions."""
    other = dice.choice(state.contacts)
    for _ in range(dice.randint(2, 4)):
        state.transactions.insert(dice.randrange(len(state.transactions)), _transaction(dice, "sent", other["email"]))
    sums = sum(t["amount"] for t in state.transactions if (t["email"], t["direction"]) == (other["email"], "sent"))
    add = """\
total, page = 0, 0
while batch := apis.payments.show_transactions(access_token=token, direction="sent", page_index=page):
    total += sum(t["amount"] for t in batch if t["email"] == email)
    page += 1
print(total)
"""
    find = f'email = apis.contacts.search_contacts(query="{other["name"]}")[0]["email"]\nprint(email)\n'
    answer = "apis.supervisor.complete_task(answer=total)"
    return Task(
        task_id,
        f"How many dollars have I sent to {other['name']} in total?",
        state,
        (
            ("the answer is the sum of what was sent", lambda a, b: str(b.task["answer"]) == str(sums)),
            _untouched("notes", "contacts", "requests", "transactions"),
            _finished(sums),
        ),
        (find, _LOGIN + add, answer),
        (find, _LOGIN + add, _DONE),
    )


def invitation(task_id: str, dice: random.Random, state: State) -> Task:
    """A list of some contacts, as a note."""
    kind = dice.choice(["friend", "colleague"])
    wanted = sorted(contact["email"] for contact in state.contacts if contact["relationship"] == kind)

    def listed(before: State, after: State) -> bool:
        new = [note for note in after.notes if note not in before.notes]
        return len(new) == 1 and new[0]["title"] == "party" and sorted(new[0]["content"].split()) == wanted

    write = (
        f'emails = sorted(p["email"] for p in people.values() if p["relationship"] == "{kind}")\n'
        'print(apis.notes.create_note(title="party", content="\\n".join(emails)))\n'
    )
    return Task(
        task_id,
        f"Make a note with the title 'party' that has the emails of all my {kind}s, one a line and nothing else.",
        state,
        (
            ("there is one new note, with those emails", listed),
            ("no other note changed", lambda a, b: all(note in b.notes for note in a.notes)),
            _untouched("contacts", "requests", "transactions"),
            _finished(None),
        ),
        (_PEOPLE, write, _DONE),
        (_PEOPLE, write.replace(f'== "{kind}"', '!= ""'), _DONE),
    )


def shopping(task_id: str, dice: random.Random, state: State) -> Task:
    """One line of one note."""
    items = dice.sample(["milk", "bread", "apples", "coffee", "rice", "soap", "tea"], 4)
    text = "\n".join(f"[ ] {item}" for item in items)
    _add_note(state, "shopping", text)
    bought = dice.choice(items)
    wanted = text.replace(f"[ ] {bought}", f"[x] {bought}")
    read = """\
note = apis.notes.show_note(note_id=apis.notes.search_notes(query="shopping")[0]["note_id"])
print(note)
"""
    mark = f"""\
text = note["content"].replace("[ ] {bought}", "[x] {bought}")
apis.notes.update_note(note_id=note["note_id"], content=text)
"""
    return Task(
        task_id,
        f"I have bought {bought}: tick it off in my shopping note, with [x] in place of [ ].",
        state,
        (
            ("the item is ticked off, and nothing else", lambda a, b: _changed(a, b) == [wanted]),
            _untouched("contacts", "requests", "transactions"),
            _finished(None),
        ),
        (read, mark + _DONE),
        (read, mark.replace(f"[ ] {bought}", "[ ]").replace(f"[x] {bought}", "[x]") + _DONE),
    )


def dinner(task_id: str, dice: random.Random, state: State) -> Task:
    """The last dinner, split."""
    share, guests = dice.randint(12, 45), dice.sample(state.contacts, 3)
    state.transactions += [
        {"direction": "sent", "email": state.contacts[0]["email"], "amount": share * 4, "description": "dinner"},
        _transaction(dice, "sent", state.contacts[1]["email"]),
    ]
    wanted = sorted((guest["email"], share) for guest in guests)
    names = [guest["name"] for guest in guests]
    find = _LOGIN + (
        "paid, page = 0, 0\n"
        'while batch := apis.payments.show_transactions(access_token=token, direction="sent", page_index=page):\n'
        '    paid = next((t["amount"] for t in reversed(batch) if t["description"] == "dinner"), paid)\n'
        "    page += 1\nprint(paid)\n"
    )
    ask = (
        f"for name in {names}:\n"
        '    apis.payments.request_money(access_token=token, email=people[name]["email"], amount=paid // 4)\n'
    )
    return Task(
        task_id,
        f"I paid the last dinner (the latest payment with that description) for {', '.join(names[:2])}, {names[2]} and "
        "me. Request an equal share from each of them.",
        state,
        (
            ("each guest is asked for a share", lambda a, b: _requested(a, b) == wanted),
            _untouched("notes", "contacts", "transactions"),
            _finished(None),
        ),
        (_PEOPLE, find, ask + _DONE),
        (_PEOPLE, find, ask.replace("paid // 4", "paid // 3") + _DONE),
    )


KINDS: dict[str, Callable[[str, random.Random, State], Task]] = {
    "debts": debts,
    "total": total,
    "invitation": invitation,
    "shopping": shopping,
    "dinner": dinner,
}


def _world(dice: random.Random) -> State:
    """People, notes and payments that every task has."""
    me, *others = dice.sample(_NAMES.split(), 12)
    contacts = [
        {"name": n, "email": f"{n.lower()}@example.com", "relationship": dice.choice(["friend", "colleague", "family"])}
        for n in others
    ]
    state = State({"first_name": me, "email": f"{me.lower()}@example.com"}, contacts, balance=dice.randint(400, 900))
    for title in dice.sample(["books", "ideas", "travel", "garden", "gifts", "recipes", "films"], 6):
        _add_note(state, title, f"{title} of {dice.choice(others)} and {dice.choice(others)}")
    for _ in range(dice.randint(8, 14)):
        contact = dice.choice(contacts)
        state.transactions.append(_transaction(dice, dice.choice(["sent", "received"]), contact["email"]))
    return state


def _transaction(dice: random.Random, direction: str, email: str) -> dict[str, Any]:
    description = dice.choice(
        ["taxi", "lunch", "tickets", "rent", "dinner"] if direction == "received" else ["taxi", "lunch"]
    )
    return {"direction": direction, "email": email, "amount": dice.randint(3, 80), "description": description}


def _add_note(state: State, title: str, content: str) -> None:
    state.notes.append({"note_id": 11 + len(state.notes), "title": title, "content": content})


def _sent(before: State, after: State) -> list[tuple[str, int]]:
    new = after.transactions[len(before.transactions) :]
    return sorted((t["email"], t["amount"]) for t in new if t["direction"] == "sent")


def _requested(before: State, after: State) -> list[tuple[str, int]]:
    return sorted((r["email"], r["amount"]) for r in after.requests[len(before.requests) :])


def _changed(before: State, after: State) -> list[str]:
    """The texts of notes that are new or different; an id that is gone counts as its own text."""
    gone = {note["note_id"] for note in before.notes} - {note["note_id"] for note in after.notes}
    return [note["content"] for note in after.notes if note not in before.notes] + [f"gone: {i}" for i in sorted(gone)]


def _untouched(*parts: str) -> Requirement:
    def same(before: State, after: State) -> bool:
        return all(getattr(before, part) == getattr(after, part) for part in parts)

    return f"nothing else changed: {', '.join(parts)}", same


def _finished(answer: Any) -> Requirement:
    def finished(before: State, after: State) -> bool:
        return after.task["status"] == "success" and (after.task["answer"] is None) == (answer is None)

    return f"the task was completed {'without' if answer is None else 'with'} an answer", finished
