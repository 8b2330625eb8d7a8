"""OpenAI's chat completions, by the `openai` SDK."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import openai

from support.gateway import MODEL

from .base import Called, Heard, Refused, Setup

PIXEL = "data:image/png;base64,iVBORw0KGgo="
_REASONS = {"tool_calls": "calls"}


class OpenAIChatSpeaker:
    """Echoes messages as the SDK gives them."""

    def __init__(self, session: dict[str, Any], setup: Setup, *, stream: bool) -> None:
        self._client = openai.OpenAI(base_url=session["base_url"], api_key="EMPTY", max_retries=0, timeout=60)
        self._setup, self._stream = setup, stream
        self._messages: list[Any] = [{"role": "system", "content": setup.system}] if setup.system else []

    def say(self, text: str, *, max_tokens: int | None = None) -> Heard:
        self._messages.append({"role": "user", "content": text})
        return self._ask(self._messages, max_tokens)

    def results(self, *results: tuple[Called, str, bool]) -> Heard:
        for call, output, _ in results:
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
        return self._ask(self._messages)

    def show_image(self) -> Heard:
        part = {"type": "image_url", "image_url": {"url": PIXEL}}
        self._messages.append({"role": "user", "content": [part]})
        return self._ask(self._messages)

    def close(self) -> None:
        self._client.close()

    def _ask(self, messages: list[Any], max_tokens: int | None = None) -> Heard:
        settings: dict[str, Any] = {"max_tokens": max_tokens or self._setup.max_tokens, "model": MODEL}
        if self._setup.tools:
            settings["tools"] = [{"type": "function", "function": tool} for tool in self._setup.tools]
        if self._setup.stop:
            settings["stop"] = list(self._setup.stop)
        try:
            if self._stream:
                settings["stream_options"] = {"include_usage": True}
                with self._client.chat.completions.stream(messages=messages, **settings) as stream:
                    pieces = []
                    with contextlib.suppress(openai.LengthFinishReasonError):  # the SDK's own, at the end
                        for event in stream:
                            pieces += [event.delta] if event.type == "content.delta" else []
                    completion = stream.current_completion_snapshot
                assert "".join(pieces) == (completion.choices[0].message.content or "")
            else:
                completion = self._client.chat.completions.create(messages=messages, **settings)
        except openai.APIStatusError as error:
            raise Refused(error.status_code, error.message) from error
        (choice,) = completion.choices
        self._messages.append(choice.message.model_dump(exclude_none=True, exclude={"parsed"}))
        calls = choice.message.tool_calls or []
        return Heard(
            choice.message.content or "",
            [Called(call.id, call.function.name, json.loads(call.function.arguments)) for call in calls],
            getattr(choice.message, "reasoning_content", None) or "",
            _REASONS.get(choice.finish_reason, choice.finish_reason),
            (completion.usage.prompt_tokens, completion.usage.completion_tokens) if completion.usage else (0, 0),
        )
