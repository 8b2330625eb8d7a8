"""What a scripted policy says: a tool call that fits the tool's schema, in a model's own format, then an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...gateway.call.chat import ChatCall, Message
from ...gateway.render.renderer import ChatRenderer
from ...gateway.render.template_reply import spoken

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
    """The ids a model samples to say `said` after `before`."""

    def prompt(messages: list[Message], tools: list[dict[str, Any]]) -> Sequence[int]:
        return renderer.render(ChatCall(messages, tools))

    return spoken(renderer.tokenizer, prompt, renderer.stops, before, said, tools)


def seen_tools(prompt: str) -> list[dict[str, Any]]:
    """The tools that the built-in policy's template shows: one line of JSON each.

    >>> seen_tools('<tools>\\n{"type": "function", "function": {"name": "add"}}\\n</tools>')[0]["function"]["name"]
    'add'
    """
    shown = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0]
    return [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
