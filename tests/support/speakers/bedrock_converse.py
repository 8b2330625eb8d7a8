"""Bedrock's Converse and ConverseStream, by boto3."""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from support.bedrock import bedrock
from support.gateway import MODEL

from .base import Called, Heard, Refused, Setup

_REASONS = {"end_turn": "stop", "tool_use": "calls", "max_tokens": "length", "stop_sequence": "stop_string"}


class BedrockConverseSpeaker:
    """Echoes messages as boto3 gives them, put together from the events of a stream."""

    def __init__(self, session: dict[str, Any], setup: Setup, *, stream: bool) -> None:
        self._client = bedrock(session)
        self._setup, self._stream = setup, stream
        self._messages: list[dict[str, Any]] = []

    def say(self, text: str, *, max_tokens: int | None = None) -> Heard:
        self._messages.append({"role": "user", "content": [{"text": text}]})
        return self._ask(self._messages, max_tokens)

    def results(self, *results: tuple[Called, str, bool]) -> Heard:
        content = [
            {
                "toolResult": {
                    "toolUseId": call.id,
                    "content": [{"text": output}],
                    "status": "error" if failed else "success",
                }
            }
            for call, output, failed in results
        ]
        self._messages.append({"role": "user", "content": content})
        return self._ask(self._messages)

    def show_image(self) -> Heard:
        image = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}
        self._messages.append({"role": "user", "content": [image]})
        return self._ask(self._messages)

    def close(self) -> None:
        self._client.close()

    def _ask(self, messages: list[dict[str, Any]], max_tokens: int | None = None) -> Heard:
        inference: dict[str, Any] = {"maxTokens": max_tokens or self._setup.max_tokens}
        if self._setup.stop:
            inference["stopSequences"] = list(self._setup.stop)
        settings: dict[str, Any] = {"modelId": MODEL, "messages": messages, "inferenceConfig": inference}
        if self._setup.system:
            settings["system"] = [{"text": self._setup.system}]
        if self._setup.tools:
            settings["toolConfig"] = {"tools": [{"toolSpec": _spec(tool)} for tool in self._setup.tools]}
        try:
            if self._stream:
                answer = gather(self._client.converse_stream(**settings)["stream"])
            else:
                answer = self._client.converse(**settings)
        except ClientError as error:
            raise Refused(
                error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Message"]
            ) from error
        message, usage = answer["output"]["message"], answer["usage"]
        self._messages.append(message)
        assert usage["totalTokens"] == usage["inputTokens"] + usage["cacheReadInputTokens"] + usage["outputTokens"]
        blocks = message["content"]
        thoughts = [
            block["reasoningContent"]["reasoningText"]["text"] for block in blocks if "reasoningContent" in block
        ]
        calls = [block["toolUse"] for block in blocks if "toolUse" in block]
        return Heard(
            "".join(block["text"] for block in blocks if "text" in block),
            [Called(call["toolUseId"], call["name"], call["input"]) for call in calls],
            "".join(thoughts),
            _REASONS[answer["stopReason"]],
            (usage["totalTokens"] - usage["outputTokens"], usage["outputTokens"]),
        )


def _spec(tool: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": tool["name"],
        "description": tool["description"],
        "inputSchema": {"json": tool["parameters"]},
    }


def gather(events: Any) -> dict[str, Any]:
    """What `converse` would have answered, from the events of `converse_stream`, which have to be in order."""
    known = list(events)
    names = [next(iter(event)) for event in known]
    assert names[0] == "messageStart"
    assert names[-2:] == ["messageStop", "metadata"]
    assert set(names[1:-2]) <= {"contentBlockStart", "contentBlockDelta", "contentBlockStop"}
    content: list[dict[str, Any]] = []
    for event in known[1:-2]:
        ((name, said),) = event.items()
        place = said["contentBlockIndex"]
        if name == "contentBlockStart":
            assert place == len(content)
            content.append({"toolUse": said["start"]["toolUse"] | {"input": ""}})
        elif name == "contentBlockDelta":
            if place == len(content):
                content.append({})
            assert place == len(content) - 1
            _add(content[place], said["delta"])
        else:
            assert place == len(content) - 1
            if "toolUse" in content[place]:
                content[place]["toolUse"]["input"] = json.loads(content[place]["toolUse"]["input"])
    assert names.count("contentBlockStop") == len(content)
    message = {"role": known[0]["messageStart"]["role"], "content": content}
    return {"output": {"message": message}} | known[-2]["messageStop"] | known[-1]["metadata"]


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    ((kind, said),) = delta.items()
    if kind == "text":
        block["text"] = block.get("text", "") + said
    elif kind == "toolUse":
        block["toolUse"]["input"] += said["input"]
    else:
        thought = block.setdefault("reasoningContent", {"reasoningText": {"text": ""}})
        for name, value in said.items():  # text, and a signature at the end
            thought["reasoningText"][name] = thought["reasoningText"].get(name, "") + value
    assert len(block) == 1  # of one kind
