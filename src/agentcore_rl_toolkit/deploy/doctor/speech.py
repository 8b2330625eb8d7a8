"""What a scripted policy says: a tool call that fits the tool's schema, in a model's own format, then an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ...gateway.chat import ChatCall, Message
from ...gateway.render import ChatRenderer, RenderFault

ANSWER = "The answer is 1."


def example(schema: Any) -> Any:
    """A small value that a JSON schema allows.

    >>> example({"type": "object", "properties": {"n": {"type": "integer"}, "x": {}}, "required": ["n"]})
    {'n': 1}
    >>> example({"type": "array", "items": {"enum": ["red", "blue"]}})
    ['red']
    """
    if not isinstance(schema, dict):
        return "1"
    for known in ("const", "default"):
        if schema.get(known) is not None:
            return schema[known]
    if schema.get("enum"):
        return schema["enum"][0]
    for several in ("anyOf", "oneOf", "allOf"):
        options = [option for option in schema.get(several, []) if option.get("type") != "null"]
        if options:
            return example(options[0])
    kind = schema.get("type", "string")
    kind = next((one for one in kind if one != "null"), "string") if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: example(properties.get(name)) for name in schema.get("required", list(properties))}
    if kind == "array":
        return [example(schema.get("items"))]
    return {"integer": 1, "number": 1.5, "boolean": True, "null": None}.get(kind, "1")


def call_message(tool: dict[str, Any]) -> Message:
    """The assistant calling a tool, as a canonical message."""
    function = tool["function"]
    arguments = example(function.get("parameters") or {"type": "object", "properties": {}})
    called = {"name": function["name"], "arguments": arguments}
    call = {"id": f"functions.{function['name']}:0", "type": "function", "function": called}  # some formats say it
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def speak(renderer: ChatRenderer, before: Sequence[Message], said: Message, tools: list[dict[str, Any]]) -> list[int]:
    """The ids a model samples to say `said` after `before`: what its template makes of it, to the end of the turn.

    In some formats a turn ends where the next one begins, so there has to be one.
    """
    decode = renderer.tokenizer.decode
    start = list(renderer.render(ChatCall(list(before), tools)))
    whole = list(renderer.render(ChatCall([*before, said, _next(said)], tools)))
    stops = {decode([stop]): stop for stop in renderer.stop_ids}
    begun, rest = _after(decode(start), decode(whole), list(stops)) or _parted(decode, start, whole)
    opened = "<think>" in begun and "</think>" not in begun
    ends = [(rest.find(text), text) for text in stops if text in rest]
    if not ends:
        raise RenderFault("the model's chat template doesn't end an assistant's turn with a token that stops the model")
    place, end = min(ends)
    thought = "\n</think>\n\n" if opened and "</think>" not in rest[:place] else ""
    return [*renderer.tokenizer.encode(thought + rest[:place]), stops[end]]


def _next(said: Message) -> Message:
    calls = said.get("tool_calls")
    if not calls:
        return {"role": "user", "content": "Go on."}
    return {
        "role": "tool",
        "tool_call_id": calls[0].get("id", "0"),
        "name": calls[0]["function"]["name"],
        "content": "1",
    }


def _after(start: str, whole: str, ends: list[str]) -> tuple[str, str] | None:
    """The words that end every prompt, and what `whole` says after them; None if it has written them otherwise."""
    prompt = start[max((start.rfind(end) + len(end) for end in ends if end in start), default=0) :]
    body = whole.removesuffix(prompt)
    return (prompt, body.rpartition(prompt)[2]) if prompt.strip() and prompt in body else None


def _parted(decode: Callable[[list[int]], str], start: list[int], whole: list[int]) -> tuple[str, str]:
    """What each of the two says after what they have in common."""
    pairs = zip(start, whole, strict=False)
    common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(start), len(whole)))
    return decode(start[common:]), decode(whole[common:])


def seen_tools(prompt: str) -> list[dict[str, Any]]:
    """The tools that the built-in policy's template shows: one line of JSON each.

    >>> seen_tools('<tools>\\n{"type": "function", "function": {"name": "add"}}\\n</tools>')[0]["function"]["name"]
    'add'
    """
    shown = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0]
    return [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
