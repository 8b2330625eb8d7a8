"""Adapts orders of roles that some chat templates refuse: several system messages, or two user messages in a row.

Many templates refuse a later system message, drop it, or move it to the start. The adapter tries each order once per
template. For the orders that fail, it joins leading system messages, turns later ones into user messages, and joins
consecutive user messages. A template that accepts every order gets the messages unchanged.
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
    """Return the renderer if it accepts every order of roles, otherwise an adapter around it."""
    if not _shows(renderer, decode, [_SYSTEM, _USER]):
        return renderer  # the template does not show system messages
    later: Message = {"role": "system", "content": _LATER}
    leading = _shows(renderer, decode, [_SYSTEM, later, _USER])
    midway = all(
        _shows(renderer, decode, messages)
        for messages in ([_SYSTEM, _USER, later], [_SYSTEM, _USER, _REPLY, _USER, later])
    )
    users = _shows(renderer, decode, [_SYSTEM, _USER, {"role": "user", "content": _LATER}])
    return renderer if leading and midway and users else RoleOrderAdapter(renderer, leading, midway, users)


def _shows(renderer: Any, decode: Callable[[list[int]], str], messages: list[Message]) -> bool:
    """Whether the prompt contains the texts of these messages in order."""
    try:
        text = decode(list(renderer.render_ids(messages, add_generation_prompt=True)))
    except Exception:  # a Jinja template may raise any exception
        return False
    place = 0
    for message in messages:
        place = text.find(message["content"], place)
        if place < 0:
            return False
    return True


class RoleOrderAdapter:
    """A renderer that first changes the roles of messages to an order that its template accepts."""

    def __init__(self, renderer: Any, leading: bool, midway: bool, users: bool) -> None:
        """The flags say what the template accepts: several `leading` system messages, system messages `midway` in
        the conversation, and several `users`' messages in a row."""
        self.inner = renderer
        self._leading, self._midway, self._users = leading, midway, users

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def render_ids(self, messages: Sequence[Message], **more: Any) -> Any:
        return self.inner.render_ids(self._adapt(messages), **more)

    def adapt_around_reply(self, messages: Sequence[Message], used: int) -> tuple[list[Message], int]:
        """Adapt the messages before and after reply number `used`; return them with the reply's new number."""
        before = self._adapt(messages[: used - 1])
        return [*before, messages[used - 1], *self._adapt(messages[used:], start=False)], len(before) + 1

    def bridge_to_next_turn(self, known: list[int], sampled: list[int], new: Sequence[Message], **more: Any) -> Any:
        return self.inner.bridge_to_next_turn(known, sampled, self._adapt(new, start=False), **more)

    def _adapt(self, messages: Sequence[Message], *, start: bool = True) -> list[Message]:
        adapted: list[Message] = []
        leading = start
        for message in messages:
            leading = leading and message["role"] == "system"
            if message["role"] == "system" and not leading and not self._midway:
                message = message | {"role": "user"}
            if adapted and self._joins(adapted[-1], message):
                adapted[-1] = adapted[-1] | {"content": _join(adapted[-1]["content"], message["content"])}
            else:
                adapted.append(message)
        return adapted

    def _joins(self, before: Message, message: Message) -> bool:
        role = message["role"]
        if role != before["role"]:
            return False
        return (role == "system" and not self._leading) or (role == "user" and not self._users)


def _join(one: Any, other: Any) -> Any:
    """Join two contents: texts, or parts if one of them has images."""
    if isinstance(one, str) and isinstance(other, str):
        return one + _BETWEEN + other
    return [*_split(one), {"type": "text", "text": _BETWEEN}, *_split(other)]


def _split(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def unwrap_adapter(renderer: Any) -> Any:
    return renderer.inner if isinstance(renderer, RoleOrderAdapter) else renderer
