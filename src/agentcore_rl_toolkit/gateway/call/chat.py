"""One model call in canonical form, whichever wire it came over, and the reply to it. Pure.

Canonical messages are plain dicts in the shape `renderers` reads: `role`, `content` (a string), and where present
`tool_calls`, `tool_call_id`, `name`, `reasoning_content`. Tool arguments are objects where they parse as such.
`omitted` counts the parts of a message that a placeholder replaces, by kind. `images` has the place in `content` and
the SHA-256 of each image that the model sees; the content has a marker with the same hash there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...engine.base import Sampling

Message = dict[str, Any]

_THOUGHT = re.compile(r"\A\s*<think>(.*?)</think>", re.DOTALL)


@dataclass(slots=True)
class ChatCall:
    """A request to continue a conversation, independent of the wire it came over."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    """The tools that the prompt begins with."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or `=` and the name of the one function to call."""
    sampling: Sampling = field(default_factory=Sampling)
    n: int = 1
    model: str | None = None
    logprobs: bool = False
    template: dict[str, Any] = field(default_factory=dict)
    """Settings of the chat template, e.g. `enable_thinking`."""
    remember: int | None = None
    """Store the conversation for calls that continue it by id, without this many messages at its start."""
    loaded: list[dict[str, Any]] = field(default_factory=list)
    """Tools that a message brought in: their definitions are part of that message's text."""
    omitted: tuple[str, ...] = ()
    """Tools that only the API's own servers could run: the model doesn't see them."""
    images: Mapping[str, Any] = field(default_factory=dict)
    """The session's images, by their SHA-256, if the model sees images."""

    @property
    def known_tools(self) -> list[dict[str, Any]]:
        """All tools that the model may call."""
        return [*self.tools, *self.loaded] if self.loaded else self.tools


@dataclass(slots=True)
class TextCall:
    """A request for a plain completion of text or token ids."""

    prompt: str | list[int]
    sampling: Sampling = field(default_factory=Sampling)
    n: int = 1
    model: str | None = None
    logprobs: bool = False


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """JSON text, as the model meant it."""


@dataclass(slots=True)
class Reply:
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    parse_failures: int = 0
    """Tool calls that the model attempted and that could not be parsed; their text is in `content`."""
    stop: str | None = None

    def message(self) -> Message:
        """The reply as a canonical message without reasoning."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            functions = [{"name": call.name, "arguments": parse_arguments(call.arguments)} for call in self.tool_calls]
            message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        return message


def parse_arguments(arguments: Any) -> Any:
    """Tool arguments as an object where they are one, else unchanged."""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return arguments


def write_arguments(arguments: Any) -> str:
    """Tool arguments as JSON text, with `null` for NaN and infinity: models write them, and JSON can't express them."""
    read = arguments
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
    try:
        text = json.dumps(read, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_replace_infinite(read), ensure_ascii=False)
    return arguments if isinstance(arguments, str) else text


def _replace_infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_infinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_infinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def split_thought(content: str) -> tuple[str, str]:
    """The thought that a text begins with, and the rest."""
    found = _THOUGHT.match(content) if "<think>" in content[:64] else None
    return (found[1], content[found.end() :]) if found is not None else ("", content)
