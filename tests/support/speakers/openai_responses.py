"""OpenAI's Responses, by the `openai` SDK."""

from __future__ import annotations

import json
from typing import Any

import openai

from support.gateway import MODEL

from .base import Called, Heard, Refused, Setup
from .openai_chat import PIXEL


class OpenAIResponsesSpeaker:
    """Echoes items as the SDK gives them."""

    def __init__(self, session: dict[str, Any], setup: Setup, *, stream: bool) -> None:
        self._client = openai.OpenAI(base_url=session["base_url"], api_key="EMPTY", max_retries=0, timeout=60)
        self._setup, self._stream = setup, stream
        self._items: list[Any] = []

    def say(self, text: str, *, max_tokens: int | None = None) -> Heard:
        return self._ask([{"role": "user", "content": text}], max_tokens)

    def results(self, *results: tuple[Called, str, bool]) -> Heard:
        return self._ask(
            [{"type": "function_call_output", "call_id": call.id, "output": output} for call, output, _ in results]
        )

    def show_image(self) -> Heard:
        part = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
        return self._ask([{"role": "user", "content": [part]}])

    def close(self) -> None:
        self._client.close()

    def _ask(self, new: list[Any], max_tokens: int | None = None) -> Heard:
        try:
            response = self._respond(self._settings(max_tokens), new)
        except openai.APIStatusError as error:
            raise Refused(error.status_code, error.message) from error
        self._keep(new, response)
        calls = [item for item in response.output if item.type == "function_call"]
        thoughts = [item for item in response.output if item.type == "reasoning"]
        cut = response.incomplete_details is not None
        assert (response.status, cut) in (("completed", False), ("incomplete", True))
        return Heard(
            response.output_text,
            [Called(call.call_id, call.name, json.loads(call.arguments)) for call in calls],
            "".join(part.text for item in thoughts for part in item.content),
            "length" if cut else "calls" if calls else "stop",
            (response.usage.input_tokens, response.usage.output_tokens),
        )

    def _settings(self, max_tokens: int | None) -> dict[str, Any]:
        settings: dict[str, Any] = {"max_output_tokens": max_tokens or self._setup.max_tokens, "model": MODEL}
        if self._setup.system:
            settings["instructions"] = self._setup.system
        if self._setup.tools:
            settings["tools"] = [{"type": "function", **tool} for tool in self._setup.tools]
        if self._setup.stop:
            settings["extra_body"] = {"stop": list(self._setup.stop)}
        return settings

    def _respond(self, settings: dict[str, Any], new: list[Any]) -> Any:
        settings |= self._history(new)
        if not self._stream:
            return self._client.responses.create(**settings)
        said = ""
        with self._client.responses.stream(**settings) as stream:
            for number, event in enumerate(stream):
                assert event.sequence_number == number
                said += event.delta if event.type == "response.output_text.delta" else ""
        assert event.type in ("response.completed", "response.incomplete")
        assert event.response.output_text == said
        return event.response

    def _history(self, new: list[Any]) -> dict[str, Any]:
        return {"input": self._items + new}

    def _keep(self, new: list[Any], response: Any) -> None:
        self._items += [*new, *(item.to_dict() for item in response.output)]


class OpenAIResponsesByIdSpeaker(OpenAIResponsesSpeaker):
    """Says which response to go on from, and what is new."""

    _last: str | None = None

    def _history(self, new: list[Any]) -> dict[str, Any]:
        return {"input": new} | ({"previous_response_id": self._last} if self._last else {})

    def _keep(self, new: list[Any], response: Any) -> None:
        self._last = response.id
