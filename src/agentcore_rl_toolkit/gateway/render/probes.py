"""Short conversations that show what a chat template does, and whether a renderer does the same.

A renderer is trusted where it renders all of them as the template does. Everything here runs once, at the start.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..call.chat import Message

Render = Callable[[list[Message], list[dict[str, Any]] | None, bool], Any]
"""Messages, tools, and whether the prompt for a reply follows."""

_THOUGHTS = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_ARGUMENTS = {"at": "Zürich <&> 'x'", "days": 2, "exact": True, "of": [1.5, {"a": None}]}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at “this” <now>.",
        "parameters": {
            "type": "object",
            "properties": {
                "at": {"type": "string", "description": "Where."},
                "days": {"type": "integer"},
                "exact": {"type": "boolean"},
                "of": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["at"],
        },
    },
}
SYSTEM: Message = {"role": "system", "content": "Be brief."}
USER: Message = {"role": "user", "content": "What is the weather?"}
TEXT: Message = {"role": "assistant", "content": "It is sunny."}
THANKS: Message = {"role": "user", "content": "Thanks! And\n\n tomorrow?"}
THOUGHT: Message = TEXT | {"reasoning_content": "Let me think."}


def calling(count: int = 1, arguments: Any = _ARGUMENTS, **others: Any) -> Message:
    """A reply of tool calls."""
    calls = [
        {"id": f"functions.look:{n}", "type": "function", "function": {"name": "look", "arguments": arguments}}
        for n in range(count)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls} | others


def result(number: int = 0, content: str = "12 degrees") -> Message:
    return {"role": "tool", "tool_call_id": f"functions.look:{number}", "name": "look", "content": content}


@dataclass(frozen=True)
class Probe:
    """A conversation to render."""

    about: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None

    @property
    def first(self) -> bool:
        """Whether it is what a session begins with."""
        return all(message["role"] != "assistant" for message in self.messages)


PROBES = [
    Probe("a question", [USER]),
    Probe("a system prompt", [SYSTEM, USER]),
    Probe("tools", [USER], [TOOL]),
    Probe("a system prompt and tools", [SYSTEM, USER], [TOOL]),
    Probe("a second question", [SYSTEM, USER, TEXT, THANKS]),
    Probe("a tool's result", [SYSTEM, USER, calling(), result()], [TOOL]),
    Probe("a tool's result without a system prompt", [USER, calling(), result()], [TOOL]),
    Probe("two tool results", [SYSTEM, USER, calling(2), result(), result(1)], [TOOL]),
    Probe("text beside a tool call", [SYSTEM, USER, calling(content="Let me look."), result()], [TOOL]),
    Probe("reasoning before a tool call", [USER, calling(reasoning_content="Hm."), result()], [TOOL]),
    Probe("a second call", [USER, calling(), result(), calling(), result()], [TOOL]),
    Probe("a question after a tool's result", [USER, calling(), result(), TEXT, THANKS], [TOOL]),
    Probe("reasoning of an earlier answer", [SYSTEM, USER, THOUGHT, THANKS]),
]


@dataclass(frozen=True)
class Difference:
    """Where a renderer and a template first differ."""

    about: str
    rendered: str
    template: str
    first: bool
    """Whether the session's first prompt differs already."""

    def __str__(self) -> str:
        return f"for {self.about} it renders {self.rendered!r} where the chat template has {self.template!r}"


@dataclass(frozen=True)
class ProbeComparison:
    """How a renderer does beside a template."""

    agreed: int
    """Probes that were the same, up to the first that was not."""
    thoughts: int
    """How many of these differ in what is left of earlier reasoning, which the gateway keeps as it was sampled."""
    difference: Difference | None


def compare(
    render: Render, template: Render, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]
) -> ProbeComparison:
    """Compare `render`, which gives ids, with `template`, which gives text, up to the first difference.

    Conversations that the template refuses are left out. After a reply, text that is the same in other tokens will do:
    the gateway goes on from sampled ids, and renders no reply.
    """
    agreed = thoughts = 0
    for probe in PROBES:
        try:
            text = template(probe.messages, probe.tools, True)
        except Exception:  # a Jinja template may raise anything it likes
            continue
        wanted = encode(text)
        try:
            got: list[int] = render(probe.messages, probe.tools, True)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            return ProbeComparison(agreed, thoughts, Difference(probe.about, said, text[-60:], probe.first))
        ours, theirs = decode(got), decode(wanted)
        if got != wanted and (probe.first or without_thoughts(ours) != without_thoughts(theirs)):
            return ProbeComparison(agreed, thoughts, Difference(probe.about, *parted(ours, theirs), probe.first))
        agreed += 1
        thoughts += ours != theirs
    return ProbeComparison(agreed, thoughts, None)


def without_thoughts(text: str) -> str:
    """The text without whole thoughts, empty ones included."""
    return _THOUGHTS.sub("", text)


def parted(one: str, other: str) -> tuple[str, str]:
    """What two texts have around the place where they begin to differ."""
    place = len(shared(one, other))
    return one[max(0, place - 24) : place + 40], other[max(0, place - 24) : place + 40]


def shared(one: str, other: str) -> str:
    """What both texts begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))]
