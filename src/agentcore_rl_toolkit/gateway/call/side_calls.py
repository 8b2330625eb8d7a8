"""Side calls: titles, commit messages, memory. The gateway answers and records them; trainers leave them out. Pure.

A call is a side call if any of the rules matches. Rules are named by what they look at, each a text or a list of texts:

    {"model": "*haiku*", "system": ["Write a title", "Summarize"], "user": "commit message", "tools": "none"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ...errors import ConfigError
from .chat import ChatCall, Message, TextCall

RULES = {
    "model": "the name that the call asks for, with * for any letters",
    "system": "a part of a system message",
    "user": "a part of the last user message",
    "tools": "`none` matches calls that bring no tools",
}


class SideCalls:
    def __init__(self, rules: Mapping[str, Any]) -> None:
        """Raises a ValueError that says what is wrong with them."""
        self._rules = {name: _texts(name, value) for name, value in rules.items()}

    def match(self, call: ChatCall | TextCall) -> bool:
        return any(self._matches(name, texts, call) for name, texts in self._rules.items())

    def _matches(self, name: str, texts: Sequence[str], call: ChatCall | TextCall) -> bool:
        if name == "model":
            return any(fnmatchcase(call.model or "", text) for text in texts)
        if name == "tools":
            return isinstance(call, TextCall) or not call.tools
        said = _said(name, call).casefold()
        return any(text.casefold() in said for text in texts)


def read_rules(rules: Mapping[str, Any]) -> SideCalls:
    """Rules that a gateway or a run is started with."""
    try:
        return SideCalls(rules)
    except ValueError as error:
        raise ConfigError(str(error), hint="write them like model=*haiku* or tools=none") from None


def _texts(name: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if name not in RULES:
        raise ValueError(f"side_calls has no rule {name[:80]!r}; it has {', '.join(RULES)}")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"side_calls.{name} is {str(value)[:80]!r}, neither a text nor a list of texts")
    if name == "tools" and texts != ["none"]:
        raise ValueError(f"side_calls.tools is {str(value)[:80]!r}; the only rule is `none`")
    return texts


def _said(role: str, call: ChatCall | TextCall) -> str:
    if isinstance(call, TextCall):
        return call.prompt if role == "user" and isinstance(call.prompt, str) else ""
    if role == "user":
        return next((_content(message) for message in reversed(call.messages) if message["role"] == role), "")
    return "\n".join(_content(message) for message in call.messages if message["role"] == role)


def _content(message: Message) -> str:
    return message.get("content") or ""
