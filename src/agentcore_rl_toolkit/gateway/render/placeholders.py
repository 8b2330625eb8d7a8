"""Long texts as one id each, while `renderers` puts a prompt together.

It takes a few steps of Python for every token, which is most of what rendering a long prompt costs. So it is shown a
tokenizer that gives a long text a single stand-in, a negative id, and the text's own ids take its place afterwards.
Formats that look at the ids of texts are found out by rendering `LONG_CALLS` both ways.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...engine.base import IDS
from ..call.chat import ChatCall, Message
from .tokenizer import Tokenizer

_LONG = 32  # ids


class StandIns:
    """A tokenizer that gives stand-ins within `used()`, on this thread, and is the real one otherwise."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._on = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, add_special_tokens: bool = False, **_: Any) -> list[int]:
        ids = self._tokenizer.packed(text, add_special_tokens)
        texts: list[array[int]] | None = getattr(self._on, "texts", None)
        if texts is None or len(ids) < _LONG:
            return ids.tolist()
        texts.append(ids)
        return [-len(texts)]

    @contextmanager
    def used(self) -> Iterator[None]:
        self._on.texts = []
        try:
            yield
        finally:
            self._on.texts = None

    def restore(self, ids: list[int]) -> array[int]:
        """Real ids only; to be called within `used()`."""
        texts = self._on.texts
        if not texts:
            return array(IDS, ids)
        whole, start = array(IDS), 0
        for place, token in enumerate(ids):
            if token < 0:
                whole.extend(ids[start:place])
                whole.extend(texts[-token - 1])
                start = place + 1
        whole.extend(ids[start:])
        return whole


_LONG_TEXT = "the quick brown fox, 12 of them:\n    jumps(over) {'the': \"lazy dog\"}\n" * 12
_LONG_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": _LONG_TEXT,
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
_LONG_CHAT: list[Message] = [
    {"role": "system", "content": _LONG_TEXT},
    {"role": "user", "content": f"  {_LONG_TEXT}"},
    {"role": "assistant", "content": _LONG_TEXT},
    {"role": "user", "content": f"{_LONG_TEXT}\n\n"},
]
_LONG_CALL = {"name": "look", "arguments": {"at": _LONG_TEXT}}
_LONG_TOOLS: list[Message] = [
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "functions.look:0",
                "type": "function",
                "function": {"name": "look", "arguments": {"at": _LONG_TEXT}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "functions.look:0", "name": "look", "content": _LONG_TEXT},
]
LONG_CALLS = [
    ChatCall(_LONG_CHAT[1:2]),
    ChatCall(_LONG_CHAT),
    ChatCall([*_LONG_CHAT, *_LONG_TOOLS], [_LONG_TOOL]),
    ChatCall([*_LONG_CHAT[1:2], *_LONG_TOOLS, *_LONG_TOOLS[1:]], [_LONG_TOOL]),
]
