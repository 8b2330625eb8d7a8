"""Calls passed on as chat, for servers whose own template has to do the rendering. Pure.

The server renders and parses; the ids it rendered and sampled are recorded all the same. Whether a prompt goes on from
the exact ids of the turn before is then the server's doing: where it doesn't, a new row begins.
"""

from __future__ import annotations

import json
from typing import Any

from .chat import ChatCall, Message, Reply, ToolCall, written_arguments
from .engine.base import Sampling


def chat_body(call: ChatCall, sampling: Sampling, model: str, stream: bool) -> dict[str, Any]:
    """A canonical call as an OpenAI chat request with vLLM's additions."""
    body: dict[str, Any] = sampling.settings()
    for name in ("stop", "stop_token_ids"):
        if name in body:
            body[name] = list(body[name])
    if "logit_bias" in body:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    schema = body.pop("json_schema", None)
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    body |= {"messages": [_message(message) for message in call.messages], "stream": stream}
    if model:
        body["model"] = model
    if call.tools:
        body["tools"] = call.tools
        named = call.tool_choice.removeprefix("=")
        body["tool_choice"] = (
            {"type": "function", "function": {"name": named}} if call.tool_choice.startswith("=") else named
        )
    if call.template:
        body["chat_template_kwargs"] = call.template
    return body


def _message(message: Message) -> Message:
    message = {name: value for name, value in message.items() if name != "omitted"}
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append(call | {"function": call["function"] | {"arguments": text}})
    return message | {"tool_calls": calls}


class Gathered:
    """A server's message, put together from its deltas."""

    def __init__(self) -> None:
        self.reply = Reply()
        self._sent = [0, 0]

    def add(self, delta: dict[str, Any]) -> None:
        """Take in what the server added to its message."""
        self.reply.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
        self.reply.content += delta.get("content") or ""
        calls = self.reply.tool_calls
        for place, part in enumerate(delta.get("tool_calls") or ()):
            index = part.get("index", place)
            while len(calls) <= index:
                calls.append(ToolCall("", "", ""))
            function = part.get("function") or {}
            calls[index].id = part.get("id") or calls[index].id
            calls[index].name += function.get("name") or ""
            calls[index].arguments += function.get("arguments") or ""

    def whole(self) -> Reply:
        """The message, once the server has ended it."""
        for call in self.reply.tool_calls:
            call.arguments = written_arguments(call.arguments)
        return self.reply

    def unsent(self) -> tuple[str, str]:
        """Reasoning and text since the last time."""
        reasoning, content = self.reply.reasoning[self._sent[0] :], self.reply.content[self._sent[1] :]
        self._sent = [len(self.reply.reasoning), len(self.reply.content)]
        return reasoning, content
