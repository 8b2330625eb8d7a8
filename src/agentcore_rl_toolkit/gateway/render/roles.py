"""Adapts orders of roles that some chat templates refuse: several system messages, or two user messages in a row.

Many templates refuse a system message that is not the first, drop it, or move it to the start. Each order is tried once
per template. Where one fails, leading system messages are joined, later ones become the user's, and consecutive user
messages are joined. A template that takes all orders gets every message as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..call.chat import Message

_BETWEEN = "\n\n"
_FIRST, _LATER = "Qfirstprobe", "Zlaterprobe"
_SYSTEM: Message = {"role": "system", "content": _FIRST}
_USER: Message = {"role": "user", "content": "Yuserprobe"}
_REPLY: Message = {"role": "assistant", "content": "Xreplyprobe"}


def adapt_roles(renderer: Any, decode: Callable[[list[int]], str]) -> Any:
    """The renderer itself if it takes every order of roles; otherwise one that adapts messages first."""
    if not _shows(renderer, decode, [_SYSTEM, _USER]):
        return renderer  # the template has no place for a system message
    later: Message = {"role": "system", "content": _LATER}
    leading = _shows(renderer, decode, [_SYSTEM, later, _USER])
    midway = all(
        _shows(renderer, decode, messages)
        for messages in ([_SYSTEM, _USER, later], [_SYSTEM, _USER, _REPLY, _USER, later])
    )
    users = _shows(renderer, decode, [_SYSTEM, _USER, {"role": "user", "content": _LATER}])
    return renderer if leading and midway and users else RoleOrderAdapter(renderer, leading, midway, users)


def _shows(renderer: Any, decode: Callable[[list[int]], str], messages: list[Message]) -> bool:
    """Whether the prompt contains these messages' texts, in their order."""
    try:
        text = decode(list(renderer.render_ids(messages, add_generation_prompt=True)))
    except Exception:  # a Jinja template may raise anything it likes
        return False
    place = 0
    for message in messages:
        place = text.find(message["content"], place)
        if place < 0:
            return False
    return True


class RoleOrderAdapter:
    """A renderer that changes the roles and order of messages to ones that its template takes."""

    def __init__(self, renderer: Any, leading: bool, midway: bool, users: bool) -> None:
        """`leading`, `midway` and `users` say what the template takes: several system messages at the start, some
        later on, and several messages of the user in a row."""
        self.inner = renderer
        self._leading, self._midway, self._users = leading, midway, users

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def render_ids(self, messages: Sequence[Message], **more: Any) -> Any:
        return self.inner.render_ids(self._adapted(messages), **more)

    def around_reply(self, messages: Sequence[Message], used: int) -> tuple[list[Message], int]:
        """The messages, adapted before and after reply number `used`, and the reply's new number."""
        before = self._adapted(messages[: used - 1])
        return [*before, messages[used - 1], *self._adapted(messages[used:], start=False)], len(before) + 1

    def bridge_to_next_turn(self, known: list[int], sampled: list[int], new: Sequence[Message], **more: Any) -> Any:
        return self.inner.bridge_to_next_turn(known, sampled, self._adapted(new, start=False), **more)

    def _adapted(self, messages: Sequence[Message], *, start: bool = True) -> list[Message]:
        adapted: list[Message] = []
        leading = start
        for message in messages:
            leading = leading and message["role"] == "system"
            if message["role"] == "system" and not leading and not self._midway:
                message = message | {"role": "user"}
            if adapted and self._joins(adapted[-1], message):
                joined = adapted[-1]["content"] + _BETWEEN + message["content"]
                adapted[-1] = adapted[-1] | {"content": joined}
            else:
                adapted.append(message)
        return adapted

    def _joins(self, before: Message, message: Message) -> bool:
        role = message["role"]
        if role != before["role"]:
            return False
        return (role == "system" and not self._leading) or (role == "user" and not self._users)


def unwrap(renderer: Any) -> Any:
    """The renderer itself, without the adapter."""
    return renderer.inner if isinstance(renderer, RoleOrderAdapter) else renderer
