"""A model that follows a script: it calls the agent's first tool, in a model's own format, and then answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ...engine.base import SampleRequest
from ...gateway.call.chat import ChatCall, Message
from ...gateway.render.renderer import ChatRenderer
from ...gateway.render.template_reply import encode_template_reply
from ...gateway.render.tokenizer import Tokenizer

Tools = list[dict[str, Any]]
Script = Callable[[SampleRequest], Sequence[int]]

ANSWER = "The answer is 1."
USER = {"role": "user", "content": "Use the tool."}
_FINAL = {"role": "assistant", "content": ANSWER}


def model_script(renderer: ChatRenderer, tools: Tools) -> Script:
    """A script in the format of the renderer's model, for an agent with these tools."""
    calls = [call_message(tools[0])] if tools else []
    replies = iter([reply_ids(renderer, [USER], message, tools) for message in calls])
    final = reply_ids(renderer, [USER], _FINAL, tools)
    return lambda request: next(replies, final)


def tiny_script(tokenizer: Tokenizer) -> tuple[Script, Tools]:
    """A script in the built-in model's format; the list is filled with the agent's tools once it has shown them."""
    renderer = ChatRenderer(tokenizer)
    tools: Tools = []

    def sample(request: SampleRequest) -> Sequence[int]:
        prompt = tokenizer.decode(list(request.prompt))
        tools[:] = tools or shown_tools(prompt)
        calls = bool(tools) and "<tool_response>" not in prompt
        return reply_ids(renderer, [USER], call_message(tools[0]) if calls else _FINAL, tools)

    return sample, tools


def reply_ids(renderer: ChatRenderer, before: Sequence[Message], reply: Message, tools: Tools) -> list[int]:
    """The ids that the model samples to give `reply` to `before`."""

    def prompt(messages: list[Message], tools: Tools) -> Sequence[int]:
        return renderer.render(ChatCall(messages, tools))

    return encode_template_reply(renderer.tokenizer, prompt, renderer.stops, before, reply, tools)


def call_message(tool: dict[str, Any]) -> Message:
    """An assistant's message that calls a tool with arguments that its schema allows."""
    name, parameters = tool["function"]["name"], tool["function"].get("parameters")
    function = {"name": name, "arguments": example_value(parameters or {"type": "object", "properties": {}})}
    call = {"id": f"functions.{name}:0", "type": "function", "function": function}  # some formats render the id
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def example_value(schema: Any) -> Any:
    """A small value that a JSON schema allows.

    >>> example_value({"type": "object", "properties": {"n": {"type": "integer"}, "x": {}}, "required": ["n"]})
    {'n': 1}
    >>> example_value({"type": "array", "items": {"enum": ["red", "blue"]}})
    ['red']
    """
    if not isinstance(schema, dict):
        return "1"
    for keyword in ("const", "default"):
        if schema.get(keyword) is not None:
            return schema[keyword]
    if schema.get("enum"):
        return schema["enum"][0]
    for keyword in ("anyOf", "oneOf", "allOf"):
        options = [option for option in schema.get(keyword, []) if option.get("type") != "null"]
        if options:
            return example_value(options[0])
    kind = schema.get("type", "string")
    kind = next((one for one in kind if one != "null"), "string") if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: example_value(properties.get(name)) for name in schema.get("required", list(properties))}
    if kind == "array":
        return [example_value(schema.get("items"))]
    return {"integer": 1, "number": 1.5, "boolean": True, "null": None}.get(kind, "1")


def shown_tools(prompt: str) -> Tools:
    """The tools in a prompt of the built-in model, whose template writes one line of JSON for each.

    >>> shown_tools('<tools>\\n{"type": "function", "function": {"name": "add"}}\\n</tools>')[0]["function"]["name"]
    'add'
    """
    shown = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0]
    return [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
