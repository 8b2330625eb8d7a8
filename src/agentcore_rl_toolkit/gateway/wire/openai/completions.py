"""OpenAI's completions, to and from canonical calls. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from ....errors import GatewayFault
from ...call.chat import TextCall
from ...record.turn import Tokens
from ..base import Wire, WireRequest
from ..fields import Choices, Count, Name, TopLogprobs, parse
from .chat_completions import (
    CompletionsExchange,
    CompletionsRequest,
    Tops,
    finish_reason,
    finite_or_none,
    refuse,
    token_texts,
)
from .sampling import to_sampling

if TYPE_CHECKING:
    from ...record.session import ChoiceOutcome


class TextRequest(CompletionsRequest, kw_only=True):
    """A request to `/completions`."""

    prompt: Name | Annotated[list[str | Count | list[Count]], Meta(min_length=1)]
    logprobs: TopLogprobs | bool | None = None
    best_of: Choices | None = None
    echo: Any = None
    suffix: Any = None


def read_completion(request: TextRequest) -> TextCall:
    for name in ("echo", "suffix"):
        if getattr(request, name):
            raise GatewayFault.invalid(f"{name} is not supported", param=name)
    if (request.best_of or 1) > (request.n or 1):
        raise GatewayFault.invalid("best_of is not supported: the gateway returns every sample; use n", param="best_of")
    return TextCall(
        prompt=_read_prompt(request.prompt),
        sampling=to_sampling(request, int(request.logprobs or 0)),
        n=request.n or 1,
        model=request.model or None,
        logprobs=request.logprobs is not None and request.logprobs is not False,
    )


def _read_prompt(prompt: str | list[Any]) -> str | list[int]:
    """One prompt: a text or token ids, or a list with one of these."""
    if isinstance(prompt, list) and isinstance(prompt[0], (str, list)):
        if len(prompt) > 1:
            raise GatewayFault.invalid("prompt holds several prompts; send one in each request", param="prompt")
        prompt = prompt[0]
    if not prompt or (isinstance(prompt, list) and not all(type(token) is int for token in prompt)):
        raise GatewayFault.invalid("prompt is neither a text nor a list of token ids", param="prompt")
    return prompt


class TextExchange(CompletionsExchange):
    _prefix, _kind, _chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, request: WireRequest) -> None:
        body = parse(request.body, TextRequest)
        super().__init__(read_completion(body), body, request)
        self._lengths: Counter[int] = Counter()
        """Characters of each choice so far."""

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        logprobs = self._logprobs(tokens, choice) if tokens.ids else None
        return self._event(choice, {"text": content}, logprobs, None) if content or logprobs else b""

    def finish(self, choice: int, outcome: ChoiceOutcome) -> bytes:
        return self._event(choice, {"text": ""}, None, finish_reason(outcome))

    def _choice(self, place: int, outcome: ChoiceOutcome) -> dict[str, Any]:
        return {
            "index": place,
            "text": outcome.reply.content,
            "logprobs": self._logprobs(outcome.tokens, place),
            "finish_reason": finish_reason(outcome),
        }

    def _logprobs(self, tokens: Tokens, choice: int) -> dict[str, Any] | None:
        if not self.call.logprobs:
            return None
        texts, values, tops = token_texts(tokens, self._decode)
        start = self._lengths[choice]
        self._lengths[choice] += sum(map(len, texts))
        return text_logprobs(texts, values, tops, start)


def text_logprobs(tokens: Sequence[str], values: Sequence[float], tops: Tops, start: int = 0) -> dict[str, Any]:
    offsets, place = [], start
    for token in tokens:
        offsets.append(place)
        place += len(token)
    return {
        "tokens": list(tokens),
        "token_logprobs": [finite_or_none(value) for value in values],
        # Of several alternatives with the same text, the likeliest stays.
        "top_logprobs": [{text: finite_or_none(value) for text, value in reversed(top)} for top in tops],
        "text_offset": offsets,
    }


TEXT = Wire(TextExchange, refuse)
