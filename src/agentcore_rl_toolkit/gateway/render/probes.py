"""Short conversations that show how a chat template renders, and whether a renderer does the same.

The gateway trusts a renderer that renders all of them as the template does. It runs the probes once, at startup.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..call.chat import Message

Render = Callable[[list[Message], list[dict[str, Any]] | None, bool], Any]
"""Renders messages and tools; the flag says whether to add the generation prompt."""

_THOUGHTS = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_ARGUMENTS = {"at": "Zürich <&> 'x'", "days": 2, "exact": True, "of": [1.5, {"a": None}]}
TOOL: dict[str, Any] = {
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


def make_calls(count: int = 1, arguments: Any = _ARGUMENTS, name: str = "look", **others: Any) -> Message:
    """A reply that makes `count` tool calls."""
    function = {"name": name, "arguments": arguments}
    calls = [{"id": f"functions.{name}:{n}", "type": "function", "function": function} for n in range(count)]
    return {"role": "assistant", "content": "", "tool_calls": calls} | others


def make_result(number: int = 0, content: str = "12 degrees") -> Message:
    return {"role": "tool", "tool_call_id": f"functions.look:{number}", "name": "look", "content": content}


@dataclass(frozen=True)
class Probe:
    label: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None

    @property
    def first(self) -> bool:
        """Whether a session can begin with it: it has no reply yet."""
        return all(message["role"] != "assistant" for message in self.messages)


PROBES = [
    Probe("a question", [USER]),
    Probe("a system prompt", [SYSTEM, USER]),
    Probe("tools", [USER], [TOOL]),
    Probe("a system prompt and tools", [SYSTEM, USER], [TOOL]),
    Probe("a second question", [SYSTEM, USER, TEXT, THANKS]),
    Probe("a tool's result", [SYSTEM, USER, make_calls(), make_result()], [TOOL]),
    Probe("a tool's result without a system prompt", [USER, make_calls(), make_result()], [TOOL]),
    Probe("two tool results", [SYSTEM, USER, make_calls(2), make_result(), make_result(1)], [TOOL]),
    Probe("text beside a tool call", [SYSTEM, USER, make_calls(content="Let me look."), make_result()], [TOOL]),
    Probe("reasoning before a tool call", [USER, make_calls(reasoning_content="Hm."), make_result()], [TOOL]),
    Probe("a second call", [USER, make_calls(), make_result(), make_calls(), make_result()], [TOOL]),
    Probe("a question after a tool's result", [USER, make_calls(), make_result(), TEXT, THANKS], [TOOL]),
    Probe("reasoning of an earlier answer", [SYSTEM, USER, THOUGHT, THANKS]),
]


@dataclass(frozen=True)
class Difference:
    """Where a renderer and a template first differ."""

    probe: str
    rendered: str
    template: str
    first: bool
    """Whether a session's first prompt already differs."""

    def __str__(self) -> str:
        return f"for {self.probe} it renders {self.rendered!r} where the chat template has {self.template!r}"


@dataclass(frozen=True)
class ProbeComparison:
    """How far a renderer agrees with a template."""

    agreed: int
    """How many probes agree before the first that differs."""
    thoughts: int
    """How many of these differ only in earlier reasoning, which the gateway keeps as it was sampled."""
    difference: Difference | None


def compare_rendering(
    render: Render, template: Render, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]
) -> ProbeComparison:
    """Compare `render`, which returns ids, with `template`, which returns text, up to the first difference.

    Probes that the template refuses are skipped. In a probe that contains a reply, equal text in different tokens
    counts as equal: the gateway keeps the sampled ids, and never renders a reply.
    """
    agreed = thoughts = 0
    for probe in PROBES:
        try:
            text = template(probe.messages, probe.tools, True)
        except Exception:  # a Jinja template may raise any exception
            continue
        wanted = encode(text)
        try:
            got: list[int] = render(probe.messages, probe.tools, True)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
            return ProbeComparison(agreed, thoughts, Difference(probe.label, raised, text[-60:], probe.first))
        rendered, expected = decode(got), decode(wanted)
        if got != wanted and (probe.first or strip_thoughts(rendered) != strip_thoughts(expected)):
            quoted = quote_difference(rendered, expected)
            return ProbeComparison(agreed, thoughts, Difference(probe.label, *quoted, probe.first))
        agreed += 1
        thoughts += rendered != expected
    return ProbeComparison(agreed, thoughts, None)


def strip_thoughts(text: str) -> str:
    """Remove complete thoughts, including empty ones."""
    return _THOUGHTS.sub("", text)


def quote_difference(one: str, other: str) -> tuple[str, str]:
    """Quote both texts around the first place where they differ."""
    place = count_common(one, other)
    return one[max(0, place - 24) : place + 40], other[max(0, place - 24) : place + 40]


def count_common(one: Any, other: Any) -> int:
    """How many leading characters of two texts, or ids of two lists, are the same."""
    return len(os.path.commonprefix([one, other]))  # noqa: RUF071 - not of paths
