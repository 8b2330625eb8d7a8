"""The base of engines on a training service: their weights change under them, and replies arrive whole.

Such a service answers a request when all of its tokens are sampled. The engine refuses settings that the service lacks
(penalties, a grammar, …): without them the tokens would come from another distribution than the requested one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from ...errors import EngineError
from ..base import EngineInfo, HoldingEngine, Sampled, SampleRequest, check_request

NEUTRAL: dict[str, Any] = {
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": (),
    "min_tokens": 0,
    "json_schema": None,
    "form": None,
}
"""Settings that training services lack, with the value that changes nothing."""


class ServiceEngine(HoldingEngine):
    """Base of the engines of Tinker and of SageMaker's training sessions.

    Running requests end with the weights they began with, and carry their version.
    """

    service = "the service"
    lacking: ClassVar[dict[str, Any]] = NEUTRAL
    """The settings to refuse, with the values that change nothing."""

    def __init__(
        self, weights: Any, *, name: str, context_length: int | None, weight_version: str, timeout: float
    ) -> None:
        super().__init__()
        self._weights: tuple[Any, str] = weights, weight_version  # one value, so that threads see both change together
        self._name, self._context_length, self._timeout = name, context_length, timeout
        self._closed = False

    # --- the Engine protocol -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        self.resumed.set()

    async def info(self) -> EngineInfo:
        self._current()
        return EngineInfo((self._name,), self._context_length, self.weight_version)

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        await self.resumed.wait()
        weights, version = self._current()
        self._check(request)
        try:
            sampled = await asyncio.wait_for(self._answer(request, weights), self._timeout)
        except asyncio.TimeoutError:
            raise EngineError(f"{self.service} took longer than {self._timeout:g} seconds", status=504) from None
        sampled.weight_version = version
        yield sampled

    # --- for a trainer -----------------------------------------------------------------------------------------------

    @property
    def weight_version(self) -> str:
        return self._weights[1]

    def update(self, weights: Any, version: str) -> None:
        """Sample with other weights from now on, from any thread."""
        self._weights = weights, version

    # --- parts -------------------------------------------------------------------------------------------------------

    async def _answer(self, request: SampleRequest, weights: Any) -> Sampled:
        """One whole sequence from the service. Raises `EngineError`."""
        raise EngineError(f"{self.service} can't sample", status=501)

    def _current(self) -> tuple[Any, str]:
        if self._closed:
            raise EngineError("the engine was closed", status=503)
        return self._weights

    def _check(self, request: SampleRequest) -> None:
        check_request(request, self._name, self._context_length)
        for name, neutral in self.lacking.items():
            if getattr(request.sampling, name) not in (None, neutral):
                raise EngineError(f"{self.service} can't sample with {name}", status=400)

    def _limit(self, request: SampleRequest) -> int | None:
        """The most tokens to sample: the request's, or what the context leaves."""
        if request.sampling.max_tokens is not None or self._context_length is None:
            return request.sampling.max_tokens
        return self._context_length - len(request.prompt)
