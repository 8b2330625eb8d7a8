"""One model call in canonical form, whichever wire it came over, and the fingerprints that find its place in a session.

Canonical messages are plain dicts in the shape `renderers` reads: `role`, `content` (a string), and where there is
one `tool_calls`, `tool_call_id`, `name`, `reasoning_content`. Tool arguments are objects where they parse as such.
`omitted` counts the parts of a message that a placeholder stands for, by their kind.

Fingerprints tolerate what clients do to the history they echo: tool arguments re-serialized or reordered, other
tool-call ids, whitespace, dropped reasoning, text beside tool calls left out, `null` for empty content, text merged or
split into parts. They are made by a hash as quick as copying, which an agent could only use to confuse itself: they
never leave its session. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
from xxhash import xxh3_64, xxh3_128

from ...engine.base import Sampling

Message = dict[str, Any]
Known = Callable[[bytes, Message], bool]

_EXACT = 2**53  # up to here a float holds every integer
_LARGEST = 10**308
_THOUGHT = re.compile(r"\A\s*<think>(.*?)</think>", re.DOTALL)


@dataclass(slots=True)
class ChatCall:
    """What an agent asks for, with nothing left of the wire it asked over."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    """What the prompt begins with."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of the one function to call after a `=`."""
    sampling: Sampling = field(default_factory=Sampling)
    n: int = 1
    model: str | None = None
    logprobs: bool = False
    template: dict[str, Any] = field(default_factory=dict)
    """Settings of the chat template, e.g. `enable_thinking`."""
    remember: int | None = None
    """Keep the conversation for calls that go on from it by id, without so many messages at its start."""
    loaded: list[dict[str, Any]] = field(default_factory=list)
    """Tools that a message brought in: their definitions are part of its text, and the prompt's beginning stays."""
    omitted: tuple[str, ...] = ()
    """Tools that only the API's own servers could run: the model is not told of them."""

    @property
    def known_tools(self) -> list[dict[str, Any]]:
        """All tools that the model may call."""
        return [*self.tools, *self.loaded] if self.loaded else self.tools


@dataclass(slots=True)
class TextCall:
    """A call for a plain completion: text or token ids to go on from."""

    prompt: str | list[int]
    sampling: Sampling = field(default_factory=Sampling)
    n: int = 1
    model: str | None = None
    logprobs: bool = False


@dataclass(slots=True)
class ToolCall:
    """A function the model wants called."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model meant it."""


@dataclass(slots=True)
class Reply:
    """What the model said, parsed."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    parse_failures: int = 0
    """Tool calls the model attempted that could not be parsed; their text is in `content`."""
    stop: str | None = None
    """The stop string that ended it."""

    def message(self) -> Message:
        """As a canonical message, reasoning left out."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            functions = [{"name": call.name, "arguments": parse_arguments(call.arguments)} for call in self.tool_calls]
            message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        return message


def parse_arguments(arguments: Any) -> Any:
    """Tool arguments as an object where they are one, else as they came."""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return arguments


def written_arguments(arguments: Any) -> str:
    """Tool arguments as JSON text: `null` stands for NaN and infinity, which models write and JSON has not."""
    read = arguments
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
    try:
        text = json.dumps(read, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(read), ensure_ascii=False)
    return arguments if isinstance(arguments, str) else text


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Echo(NamedTuple):
    """A message of the assistant in a conversation."""

    place: int
    """The number of messages up to it."""
    end: bytes
    """The print of all these."""
    message: Message
    before: bytes
    """The print of those before it."""


@dataclass(slots=True)
class Prints:
    """Fingerprints of a conversation: of all of it, and of its beginnings up to each assistant message."""

    whole: Any
    """A hash that can be carried on: `after(whole, reply)`."""
    echoes: list[Echo]
    """The assistant's messages."""
    appended: str = ""
    """What the client has put after the last reply that was found; it was not sampled."""


def fingerprint(call: ChatCall, known: Known | None = None) -> Prints:
    """The prints of a call's conversation; tools and template settings are part of it.

    Text beside tool calls counts where it is not `known` to be that of a reply with these calls.
    """
    running = xxh3_128()
    if call.tools or call.template:
        running.update(_sorted([call.tools, call.template]))
    echoes = []
    for place, message in enumerate(call.messages, start=1):
        if message["role"] != "assistant":
            running.update(_loose(message))
            continue
        before = running.digest()
        running.update(_loose(message))
        end = running.digest()
        if known is not None and message.get("tool_calls") and message.get("content") and not known(end, message):
            running.update(_sized("beside", tight(_without_thought(message["content"]))))
            end = running.digest()
        echoes.append(Echo(place, end, message, before))
    return Prints(running, echoes)


def render_key(call: ChatCall) -> bytes:
    """A print of everything that a prompt is rendered from, to the letter.

    Sessions share what was rendered, so that here no agent must be able to make two that are the same.
    """
    rendered = [call.messages, call.tools, call.template]
    data = _dumped(rendered, 0)
    if b"null" in data:  # which is also what NaN and infinity become, but not what they are rendered as
        data = json.dumps(rendered).encode()
    return sha256(data, usedforsecurity=False).digest()[:16]


def after(whole: Any, message: Message) -> bytes:
    """The print of a conversation that goes on with `message`."""
    running = whole.copy()
    running.update(_loose(message))
    return bytes(running.digest())


def exact(message: Message) -> bytes:
    """The print of one assistant message with its text, to tell apart replies with the same tool calls."""
    text = tight(_without_thought(message.get("content") or ""))
    return bytes(xxh3_64(_loose(message) + text).digest())


def _loose(message: Message) -> bytes:
    """What has to be the same for two messages to be the same; with its length, so that none run together."""
    content: str = message.get("content") or ""
    role: str = message["role"]
    if role != "assistant":
        data = _sized(role, content.replace("\r\n", "\n").strip().encode("utf-8", "surrogatepass"))
    elif message.get("tool_calls"):
        # Clients drop the text beside tool calls. Whether they changed it is seen by who knows the replies.
        data = b"calls:" + b"".join(map(_call, message["tool_calls"]))
    else:
        data = _sized(role, tight(_without_thought(content)))
    return data


def _call(call: dict[str, Any]) -> bytes:
    function = call.get("function") or {}
    arguments = parse_arguments(function.get("arguments")) or {}
    if isinstance(arguments, str):
        text = _sized("text", tight(arguments))
    else:
        try:
            text = _sorted(_plain(arguments))
        except RecursionError:
            text = b"too deep"
    return _sized("call", str(function.get("name")).encode("utf-8", "surrogatepass")) + text


def _sized(kind: str, data: bytes) -> bytes:
    return b"%d %s:%s" % (len(data), kind.encode(), data)


def tight(text: str) -> bytes:
    """Without whitespace, which is what clients change most; this is on every call's path, and long."""
    return text.encode("utf-8", "surrogatepass").translate(None, b" \t\n\r\x0b\x0c")


def _plain(value: Any) -> Any:
    """Numbers as they come back from a client that has floats only: 1.0 is 1, and long integers lose digits.

    What is larger than any float is infinite there, for which JSON has `null` only.
    """
    if isinstance(value, float):
        whole = abs(value) <= _EXACT and value.is_integer()
        return int(value) if whole else value if math.isfinite(value) else None
    if type(value) is int and abs(value) > _EXACT:
        return float(value) if abs(value) < _LARGEST else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _sorted(value: Any) -> bytes:
    return _dumped(value, orjson.OPT_SORT_KEYS)


def _dumped(value: Any, option: int) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except TypeError:  # integers of more than 64 bits, lone surrogates, very deep nesting
        return json.dumps(value, sort_keys=bool(option)).encode()


def _without_thought(content: str) -> str:
    return split_thought(content)[1]


def split_thought(content: str) -> tuple[str, str]:
    """A thought that a text begins with, and the rest."""
    found = _THOUGHT.match(content) if "<think>" in content[:64] else None
    return (found[1], content[found.end() :]) if found is not None else ("", content)


def has_assistant(messages: list[Message]) -> bool:
    return any(message["role"] == "assistant" for message in messages)
