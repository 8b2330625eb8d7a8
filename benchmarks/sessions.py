"""Scripted agents of six turns with tools, and what their clients do to the history that they send back.

`fidelity.py` and `templates.py` run them against gateways; nothing here knows one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.request import Request, urlopen

Message = dict[str, Any]
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": PARAMETERS}}
    for name in ("search", "lookup")
]
SYSTEM = {"role": "system", "content": "You find things out. Use the tools, then answer."}


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


SCRIPT = {
    "1": "<think>\nI should search first.\n</think>\n\n" + call("search", limit=3, query="café opening hours"),
    "2": "Two of them look right. I will look up the first.\n" + call("lookup", limit=1, query="Café Zwölf"),
    "3": "<think>\nThe hours differ by day.\n</think>\n\nLet me compare.\n" + call("search", limit=2, query="holidays"),
    "4": call("lookup", limit=1, query="Monday") + "\n" + call("lookup", limit=1, query="Sunday"),
    "5": "<think>\nOne more check.\n</think>\n\n" + call("search", limit=5, query="Café Zwölf closed"),
    "6": "<think>\nEnough.\n</think>\n\nIt opens at 8 on weekdays and at 10 on Sundays.",
    "a": call("search", limit=1, query="sub-question"),
    "b": "The sub-question's answer is 42.",
    # The same turn as a model might well spell it: other spaces, an escape, keys in another order.
    "own": '<tool_call>\n{"name":"search", "arguments":{"query":"caf\\u00e9","limit":3}}\n</tool_call>',
}
"""What the model samples; the last marker like [2] in a prompt says which."""


@dataclass
class Call:
    """One call of the engine."""

    prompt: list[int]
    sampled: list[int]
    logprobs: list[float]


def parse(text: str, number: int) -> Message:
    """A sampled text as a message, with what belongs to the format and not to the content taken away."""
    message: Message = {"role": "assistant"}
    if "</think>" in text:
        thought, text = text.split("</think>", 1)
        message["reasoning_content"] = thought.removeprefix("<think>").strip("\n")
    calls = re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", text, re.DOTALL)
    message["content"] = text.split("<tool_call>")[0].strip("\n") or None
    if calls:
        functions = [json.loads(one) for one in calls]
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{n}",
                "type": "function",
                "function": {"name": f["name"], "arguments": json.dumps(f["arguments"], ensure_ascii=False)},
            }
            for n, f in enumerate(functions)
        ]
    return message


# --- the agent -----------------------------------------------------------------------------------------------------


class Sampler(Protocol):
    """What the agent looks at of an engine."""

    calls: list[Call]
    tokenizer: Any


class Served(Protocol):
    """What the agent needs of a gateway: sessions as path, header and id."""

    @property
    def name(self) -> str: ...

    @property
    def port(self) -> int: ...

    def sessions(self, count: int) -> list[list[str]]: ...


@dataclass
class Agent:
    """An agent whose client changes what it echoes."""

    gateway: Served
    engine: Sampler
    change: Callable[[Message], Message]
    retries: bool = False
    tools: list[dict[str, Any]] | None = field(default_factory=lambda: TOOLS)
    taken: list[Call] = field(default_factory=list)
    """The engine's calls whose answers the agent went on with."""

    def __post_init__(self) -> None:
        self.path, header, self.session = self.gateway.sessions(1)[0]
        self.header = header.split(": ")

    def ask(self, messages: list[Message], again: bool = False) -> Message:
        body = {"model": "stub", "messages": messages, "tools": self.tools, "max_tokens": 512, "temperature": 1.0}
        headers = {
            "content-type": "application/json",
            "x-stainless-retry-count": str(int(again)),
            self.header[0]: self.header[1],
        }
        request = Request(f"http://127.0.0.1:{self.gateway.port}{self.path}", json.dumps(body).encode(), headers)
        with urlopen(request, timeout=30) as response:
            message: Message = json.loads(response.read())["choices"][0]["message"]
        return message

    def turn(self, messages: list[Message]) -> None:
        """One model call; the answer is echoed, and the tools' results follow."""
        before = len(self.engine.calls)
        answer = self.ask(messages)
        if self.retries:  # the client lost the answer and asks once more
            answer = self.ask(messages, again=True)
        if len(self.engine.calls) == before:
            raise SystemExit(f"{self.gateway.name} answered a new turn without asking the engine")
        self.taken.append(self.engine.calls[-1])
        if len(answer.get("tool_calls") or []) != self.calls_in(self.taken[-1]):
            sampled = self.engine.tokenizer.decode(self.taken[-1].sampled)
            raise SystemExit(f"{self.gateway.name} made {answer!r} of {sampled!r}")
        messages.append(self.change(answer))

    def calls_in(self, call: Call) -> int:
        """How many tools the model called."""
        text: str = self.engine.tokenizer.decode(call.sampled)
        return text.count("<tool_call>")

    def results(self, messages: list[Message], marker: str) -> None:
        for n, one in enumerate(messages[-1].get("tool_calls") or []):
            result = {"role": "tool", "tool_call_id": one["id"], "content": f"result {n}: 12 rows [{marker}]"}
            messages.append(result)

    def six_turns(self, first: str = "1") -> list[Message]:
        messages = [SYSTEM, {"role": "user", "content": f"When does the café open? [{first}]"}]
        self.turn(messages)
        for marker in "23456":
            self.results(messages, marker)
            self.turn(messages)
        return messages


def plain(agent: Agent) -> int:
    agent.six_turns()
    return 1


def own_spelling(agent: Agent) -> int:
    agent.six_turns("own")
    return 1


def compaction(agent: Agent) -> int:
    """After three turns the client replaces the history by a summary."""
    messages = [SYSTEM, {"role": "user", "content": "When does the café open? [1]"}]
    for marker in "234":
        agent.turn(messages)
        agent.results(messages, marker)
    messages[1:] = [{"role": "user", "content": "So far: two cafés found, hours differ. Go on. [4]"}]
    agent.turn(messages)
    for marker in "56":
        agent.results(messages, marker)
        agent.turn(messages)
    return 2


def sub_agent(agent: Agent) -> int:
    """Between two turns a sub-agent with its own prompt works in the same session."""
    messages = [SYSTEM, {"role": "user", "content": "When does the café open? [1]"}]
    for marker in "23":
        agent.turn(messages)
        agent.results(messages, marker)
    sub = [{"role": "system", "content": "You answer one question."}, {"role": "user", "content": "Which? [a]"}]
    agent.turn(sub)
    agent.results(sub, "b")
    agent.turn(sub)
    for marker in "456":
        agent.turn(messages)
        agent.results(messages, marker)
    agent.turn(messages)
    return 2


# --- what clients do -----------------------------------------------------------------------------------------------


def same(message: Message) -> Message:
    return {key: value for key, value in message.items() if value is not None or key == "content"}


def on_arguments(change: Callable[[dict[str, Any]], str]) -> Callable[[Message], Message]:
    def apply(message: Message) -> Message:
        calls = []
        for one in message.get("tool_calls") or []:
            function = one["function"]
            calls.append(one | {"function": function | {"arguments": change(json.loads(function["arguments"]))}})
        return same(message) | ({"tool_calls": calls} if calls else {})

    return apply


def on_content(change: Callable[[str], Any]) -> Callable[[Message], Message]:
    def apply(message: Message) -> Message:
        return same(message) | ({"content": change(message["content"])} if message.get("content") else {})

    return apply


def split_parts(text: str) -> list[Message]:
    half = len(text) // 2
    return [{"type": "text", "text": part} for part in (text[:half], text[half:])]


def no_reasoning(message: Message) -> Message:
    return {key: value for key, value in same(message).items() if not key.startswith("reasoning")}


def null_content(message: Message) -> Message:
    return same(message) | {"content": message.get("content") or None}


def empty_content(message: Message) -> Message:
    return same(message) | {"content": message.get("content") or ""}


def new_ids(message: Message) -> Message:
    calls = [one | {"id": f"tool_{n}_{len(one['id'])}"} for n, one in enumerate(message.get("tool_calls") or [])]
    return same(message) | ({"tool_calls": calls} if calls else {})


def everything(message: Message) -> Message:
    spaced = on_arguments(lambda a: json.dumps(dict(reversed(a.items())), separators=(" , ", " : ")))
    return new_ids(no_reasoning(on_content(lambda t: split_parts(t + " "))(spaced(null_content(message)))))


CASES: dict[str, tuple[Callable[[Agent], int], Callable[[Message], Message]]] = {
    "nothing": (plain, same),
    "arguments with other spaces": (plain, on_arguments(lambda a: json.dumps(a, separators=(" , ", " : ")))),
    "arguments in another order": (plain, on_arguments(lambda a: json.dumps(dict(reversed(a.items()))))),
    "whitespace added to text": (plain, on_content(lambda text: f"{text}\n")),
    "whitespace stripped off text": (plain, on_content(str.strip)),
    "reasoning dropped": (plain, no_reasoning),
    "null for empty content": (plain, null_content),
    'content "" for null': (plain, empty_content),
    "text split into parts": (plain, on_content(split_parts)),
    "other tool-call ids": (plain, new_ids),
    "all of these": (plain, everything),
    "HTTP retry of every call": (plain, same),
    "the model's own JSON spelling": (own_spelling, same),
    "compaction": (compaction, same),
    "sub-agent": (sub_agent, same),
}


@dataclass
class Row:
    """A training row: as many of each."""

    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]


def exact(taken: list[Call], made: list[Row]) -> int:
    """Tokens of the agent's turns that some row trains as they were sampled: context, id and logprob."""
    count = 0
    for turn in taken:
        start, stop = len(turn.prompt), len(turn.prompt) + len(turn.sampled)
        holding = [row for row in made if row.token_ids[:stop] == turn.prompt + turn.sampled]
        trained = [row.logprobs[start:stop] for row in holding if all(row.loss_mask[start:stop])]
        count += max((near(one, turn.logprobs) for one in trained), default=0)
    return count


def near(some: list[float], others: list[float]) -> int:
    return sum(abs(a - b) < 1e-7 for a, b in zip(some, others, strict=True))
