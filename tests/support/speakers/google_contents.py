"""Google's generateContent and streamGenerateContent, by the `google-genai` SDK."""

from __future__ import annotations

from typing import Any

from google import genai
from google.genai import errors, types

from support.gateway import MODEL

from .base import Called, Heard, Refused, Setup


class GoogleSpeaker:
    """Echoes contents as the SDK gives them; those of a stream chunk by chunk, as its own chats do."""

    def __init__(self, session: dict[str, Any], setup: Setup, *, stream: bool) -> None:
        self._client = google(session)
        self._setup, self._stream = setup, stream
        self._contents: list[types.Content] = []

    def say(self, text: str, *, max_tokens: int | None = None) -> Heard:
        self._contents.append(types.Content(role="user", parts=[types.Part(text=text)]))
        return self._ask(self._contents, max_tokens)

    def results(self, *results: tuple[Called, str, bool]) -> Heard:
        parts = [
            types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=call.name, response={"error" if failed else "output": output}
                )
            )
            for call, output, failed in results
        ]
        self._contents.append(types.Content(role="user", parts=parts))
        return self._ask(self._contents)

    def show_image(self) -> Heard:
        image = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")
        self._contents.append(types.Content(role="user", parts=[image]))
        return self._ask(self._contents)

    def close(self) -> None:
        self._client.close()

    def _ask(self, contents: list[types.Content], max_tokens: int | None = None) -> Heard:
        config = types.GenerateContentConfig(
            system_instruction=self._setup.system,
            max_output_tokens=max_tokens or self._setup.max_tokens,
            stop_sequences=list(self._setup.stop) or None,
            tools=[types.Tool(function_declarations=[_declared(tool) for tool in self._setup.tools])],
            thinking_config=types.ThinkingConfig(include_thoughts=True),
        )
        models, asked = self._client.models, {"model": MODEL, "contents": contents, "config": config}
        try:
            said = list(models.generate_content_stream(**asked)) if self._stream else [models.generate_content(**asked)]
        except errors.APIError as error:
            raise Refused(error.code, error.message or "") from error
        contents_said = [chunk.candidates[0].content for chunk in said]
        self._contents += contents_said
        parts = [part for content in contents_said for part in content.parts]
        calls = [part.function_call for part in parts if part.function_call]
        last, used = said[-1].candidates[0], said[-1].usage_metadata
        assert used.total_token_count == used.prompt_token_count + used.candidates_token_count
        cut = last.finish_reason == types.FinishReason.MAX_TOKENS
        assert cut or last.finish_reason == types.FinishReason.STOP
        return Heard(
            "".join(part.text for part in parts if part.text and not part.thought),
            [Called(call.id, call.name, call.args) for call in calls],
            "".join(part.text for part in parts if part.text and part.thought),
            "length" if cut else "calls" if calls else "stop",
            (used.prompt_token_count, used.candidates_token_count),
        )


def google(session: dict[str, Any], **settings: Any) -> Any:
    """The real client, which doesn't try again. Close it."""
    options = types.HttpOptions(base_url=session["google_base_url"], timeout=60_000)
    return genai.Client(**{"api_key": "EMPTY", "vertexai": False, "http_options": options} | settings)


def _declared(tool: dict[str, Any]) -> types.FunctionDeclaration:
    return types.FunctionDeclaration(
        name=tool["name"], description=tool["description"], parameters_json_schema=tool["parameters"]
    )
