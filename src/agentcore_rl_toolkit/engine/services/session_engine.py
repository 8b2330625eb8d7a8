"""A SageMaker training session as an engine, over its sampling operations.

The service samples at least 512 tokens a request and knows stop strings but no stop ids. So the engine asks for more
where it has to, and cuts the reply at the first stop id or at the wanted number of tokens: a sequence that is cut has
the distribution of one that was sampled no further. AWS bills the tokens that are cut off too.

Every request names the model package it samples from, if the engine was given one. AWS's documents differ on what a
request without one samples: the service model says the session's latest checkpoint, the SDK says the base model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ...errors import EngineError
from ..base import Sampled, SampleRequest
from ..remote.payload import finite
from .service_engine import NEUTRAL, ServiceEngine
from .training_session import TrainingSession

_LEAST_TOKENS, _MOST_TOKENS = 512, 131_072
_PACKAGE = ":model-package/"


class SessionEngine(ServiceEngine):
    """Samples in a training session, with the weights of a model package.

    A trainer passes the package, and another after each update: `engine.update(arn, "1")`. `weights=None` leaves the
    choice to the service.
    """

    service = "SageMaker"
    lacking = NEUTRAL | {"ignore_eos": False, "top_logprobs": 0}

    def __init__(
        self,
        session: TrainingSession,
        weights: str | None = None,
        *,
        name: str | None = None,
        context_length: int | None = None,
        weight_version: str = "0",
        timeout: float = 600.0,
    ) -> None:
        """
        Args:
            name: The model's name; by default, the session's.
            context_length: The longest sequence; the service doesn't report it.
            timeout: Seconds that a request may take.
        """
        known: dict[str, Any] = {"context_length": context_length, "weight_version": weight_version}
        super().__init__(weights, name=name or session.name, timeout=timeout, **known)
        self._session = session

    @classmethod
    def parse(cls, place: str) -> SessionEngine:
        """An engine from `SESSION` or `SESSION@MODEL_PACKAGE_ARN`."""
        name, _, package = place.partition("@")
        if package and _PACKAGE not in package:
            hint = "write it like my-session@arn:aws:sagemaker:us-west-2:123456789012:model-package/math/3"
            raise EngineError(f"not a model package: {package!r}\nhint: {hint}")
        region = package.split(":")[3] if package else None
        return cls(TrainingSession(name, region=region), package or None, name=name)

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._session.close)

    async def _answer(self, request: SampleRequest, weights: str | None) -> Sampled:
        limit = self._limit(request)
        if limit is None:
            raise EngineError("SageMaker needs max_tokens: it doesn't report the model's context", status=400)
        config: dict[str, Any] = {
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": request.prompt.tolist()}]},
            "numSamples": 1,
            "samplingParams": _params(request, limit),
        }
        answer = await self._session.sample(config | ({"modelPackageArn": weights} if weights else {}))
        sequences = answer.get("sequences") or []
        if len(sequences) != 1:
            raise EngineError(f"SageMaker gave {len(sequences)} sequences in place of one")
        return _sampled(sequences[0], limit, request.sampling.stop_token_ids)


def _params(request: SampleRequest, limit: int) -> dict[str, Any]:
    sampling = request.sampling
    params: dict[str, Any] = {
        "maxTokens": min(max(limit, _LEAST_TOKENS), _MOST_TOKENS),
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "topP": 1.0 if sampling.top_p is None else sampling.top_p,
        "topK": sampling.top_k if sampling.top_k and sampling.top_k > 0 else -1,
    }
    if sampling.seed is not None:
        params["seed"] = sampling.seed % 2**31
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    return params


def _sampled(sequence: dict[str, Any], limit: int, stop_ids: Sequence[int]) -> Sampled:
    """A sequence, cut at the first stop id or at the limit."""
    ids = [int(token) for token in sequence["tokens"]]
    logprobs = finite(list(sequence.get("logprobs") or []))[: len(ids)]
    logprobs += [None] * (len(ids) - len(logprobs))
    stops, finish = set(stop_ids), "length" if sequence.get("stopReason") == "length" else "stop"
    end = next((place for place, token in enumerate(ids[:limit], start=1) if token in stops), None)
    if end is not None:
        finish = "stop"
    elif len(ids) > limit:
        finish = "length"
    end = limit if end is None else end
    return Sampled(ids[:end], logprobs[:end], finish)
