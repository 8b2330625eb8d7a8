"""OpenAI's completions, to and from canonical calls. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....errors import GatewayFault
from ...call.chat import TextCall
from ...record.turn import Tokens
from ..base import Asked, Wire
from ..fields import text, whole
from .chat_completions import MOST_CHOICES, Exchange, Tops, finish_reason, number, refuse, token_texts
from .sampling import read_sampling

if TYPE_CHECKING:
    from ...record.session import Outcome


def read_completion(body: dict[str, Any]) -> TextCall:
    """A request to `/completions`."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt:
        if not all(type(i) is int and 0 <= i < 2**31 for i in prompt):
            several = all(isinstance(one, (str, list)) for one in prompt)
            said = "has several prompts; send one a request" if several else "is neither a text nor a list of token ids"
            raise GatewayFault.invalid(f"prompt {said}", param="prompt")
    elif not isinstance(prompt, str) or not prompt:
        raise GatewayFault.invalid("prompt is neither a text nor a list of token ids (one a request)", param="prompt")
    for name in ("echo", "suffix"):
        if body.get(name):
            raise GatewayFault.invalid(f"{name} is not supported", param=name)
    if whole(body, "best_of", 1, 1, MOST_CHOICES) > whole(body, "n", 1, 1, MOST_CHOICES):
        raise GatewayFault.invalid(
            "best_of is not supported: nothing that was sampled is kept back; use n", param="best_of"
        )
    top = body.get("logprobs")
    return TextCall(
        prompt=prompt,
        sampling=read_sampling(body, top_logprobs=whole(body, "logprobs", 0, 0, 20) if top is not None else 0),
        n=whole(body, "n", 1, 1, MOST_CHOICES),
        model=text(body, "model"),
        logprobs=top is not None and top is not False,
    )


class TextExchange(Exchange):
    """One request to `/completions`."""

    _prefix, _kind, _chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, asked: Asked) -> None:
        super().__init__(read_completion(asked.body), asked)
        self._said: Counter[int] = Counter()
        """Characters of each choice so far."""

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        logprobs = self._logprobs(tokens, choice) if tokens.ids else None
        return self._event(choice, {"text": content}, logprobs, None) if content or logprobs else b""

    def finish(self, choice: int, outcome: Outcome) -> bytes:
        return self._event(choice, {"text": ""}, None, finish_reason(outcome))

    def _choice(self, place: int, outcome: Outcome) -> dict[str, Any]:
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
        start = self._said[choice]
        self._said[choice] += sum(map(len, texts))
        return text_logprobs(texts, values, tops, start)


def text_logprobs(tokens: Sequence[str], values: Sequence[float], tops: Tops, start: int = 0) -> dict[str, Any]:
    """Logprobs as `/completions` gives them."""
    offsets, place = [], start
    for token in tokens:
        offsets.append(place)
        place += len(token)
    return {
        "tokens": list(tokens),
        "token_logprobs": [number(value) for value in values],
        "top_logprobs": [{t: number(v) for t, v in reversed(top)} for top in tops],  # of one text, the likeliest
        "text_offset": offsets,
    }


TEXT = Wire(TextExchange, refuse)
