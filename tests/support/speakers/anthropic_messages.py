"""Anthropic's Messages, by the `anthropic` SDK: its own API, and Bedrock's InvokeModel."""

from __future__ import annotations

from typing import Any

import anthropic

from support.gateway import MODEL

from .base import Called, Heard, Refused, Setup

PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
_REASONS = {"end_turn": "stop", "tool_use": "calls", "max_tokens": "length", "stop_sequence": "stop_string"}


class AnthropicSpeaker:
    """Echoes content blocks as the SDK gives them."""

    def __init__(self, session: dict[str, Any], setup: Setup, *, stream: bool) -> None:
        self._client = self._made(session)
        self._setup, self._stream = setup, stream
        self._messages: list[Any] = []

    def _made(self, session: dict[str, Any]) -> Any:
        return anthropic.Anthropic(base_url=session["anthropic_base_url"], api_key="EMPTY", max_retries=0, timeout=60)

    def say(self, text: str, *, max_tokens: int | None = None) -> Heard:
        self._messages.append({"role": "user", "content": text})
        return self._ask(self._messages, max_tokens)

    def results(self, *results: tuple[Called, str, bool]) -> Heard:
        blocks = [
            {"type": "tool_result", "tool_use_id": call.id, "content": output, "is_error": failed}
            for call, output, failed in results
        ]
        self._messages.append({"role": "user", "content": blocks})
        return self._ask(self._messages)

    def show_image(self) -> Heard:
        self._messages.append({"role": "user", "content": [{"type": "image", "source": PIXEL}]})
        return self._ask(self._messages)

    def close(self) -> None:
        self._client.close()

    def _ask(self, messages: list[Any], max_tokens: int | None = None) -> Heard:
        settings: dict[str, Any] = {"max_tokens": max_tokens or self._setup.max_tokens, "model": MODEL}
        if self._setup.system is not None:
            settings["system"] = self._setup.system
        if self._setup.tools:
            settings["tools"] = [
                {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
                for tool in self._setup.tools
            ]
        if self._setup.stop:
            settings["stop_sequences"] = list(self._setup.stop)
        try:
            message = self._streamed(messages, settings) if self._stream else self._whole(messages, settings)
        except anthropic.APIStatusError as error:
            raise Refused(error.status_code, error.message) from error
        self._messages.append({"role": "assistant", "content": message.content})
        used = message.usage
        cached = (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
        return Heard(
            "".join(block.text for block in message.content if block.type == "text"),
            [Called(block.id, block.name, block.input) for block in message.content if block.type == "tool_use"],
            "".join(block.thinking for block in message.content if block.type == "thinking"),
            _REASONS[message.stop_reason or ""],
            (used.input_tokens + cached, used.output_tokens),
        )

    def _whole(self, messages: list[Any], settings: dict[str, Any]) -> Any:
        return self._client.messages.create(messages=messages, **settings)

    def _streamed(self, messages: list[Any], settings: dict[str, Any]) -> Any:
        pieces = ""
        with self._client.messages.stream(messages=messages, **settings) as stream:
            for event in stream:
                pieces += event.text if event.type == "text" else ""
            message = stream.get_final_message()
        assert pieces == "".join(block.text for block in message.content if block.type == "text")
        return message


class AnthropicBedrockSpeaker(AnthropicSpeaker):
    """The same over Bedrock's InvokeModel."""

    def _made(self, session: dict[str, Any]) -> Any:
        return anthropic.AnthropicBedrock(
            base_url=session["bedrock_endpoint_url"],
            aws_access_key="stand-in",
            aws_secret_key="stand-in",
            aws_region="us-west-2",
            max_retries=0,
            timeout=60,
        )
