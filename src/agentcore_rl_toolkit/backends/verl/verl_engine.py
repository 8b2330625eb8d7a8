"""Sampling through verl's server client: token ids in, token ids out. verl manages weights and replicas.

verl answers once, with the complete sequence. The engine therefore can't stream, and can't abort a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import numpy as np

from ...engine.base import EngineInfo, HoldingEngine, Routes, Sampled, SampleRequest, Sampling
from ...errors import EngineError

_ABORTED = ("aborted", "abort")
_RETRY_SECONDS = 1.0  # before the gateway retries a sequence that the server aborted without a token
_SGLANG = {"min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_NOT_SENT = ("top_logprobs", "stop", "max_tokens", "logit_bias", "json_schema")


class VerlEngine(HoldingEngine):
    """Samples with `client.generate(request_id, prompt_ids=…, sampling_params=…)`, verl's `LLMServerClient`."""

    def __init__(
        self, client: Any, *, model: str, context_length: int, server: str = "vllm", stop_ids: Collection[int] = ()
    ) -> None:
        """`server` is verl's `rollout.name`; `stop_ids` are the server's own stop tokens."""
        super().__init__()
        self._client = client
        self._model = model
        self._context_length = context_length
        self._server = server
        self._stop_ids = frozenset(stop_ids)
        self.version: int | None = None
        """The step of the newest weights that a server has sampled with."""
        self.route_shape: tuple[int, int] | None = None
        """Layers, and experts per token, once a server has reported routes."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        await self.resumed.wait()
        prompt = request.prompt.tolist()
        longest = self._longest(len(prompt), request.sampling)
        output = await self._generate(request.session_id, prompt, self._params(request.sampling, longest))
        sampled = self._sampled(output, len(prompt), longest, request.sampling)
        if sampled.finish == "abort" and not sampled.token_ids:
            await asyncio.sleep(_RETRY_SECONDS)
        for part in _parts(sampled) if request.sampling.stop else (sampled,):
            yield part

    async def info(self) -> EngineInfo:
        version = None if self.version is None else str(self.version)
        return EngineInfo((self._model,), self._context_length, version)

    def _longest(self, prompt: int, sampling: Sampling) -> int:
        room = self._context_length - prompt
        if room < 1:
            message = f"a prompt of {prompt} tokens leaves no space in a context of {self._context_length}"
            raise EngineError(message, status=400)
        return room if sampling.max_tokens is None else min(room, sampling.max_tokens)

    def _params(self, sampling: Sampling, longest: int) -> dict[str, Any]:
        """Sampling parameters by the server's names. The gateway handles stop strings: verl's servers see no text."""
        if sampling.json_schema is not None:
            raise EngineError("verl's servers don't take a JSON schema", status=400)
        names = _SGLANG if self._server == "sglang" else {}
        known = {names.get(name, name): value for name, value in sampling.settings().items() if name not in _NOT_SENT}
        if "stop_token_ids" in known:
            known["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.logit_bias:
            known["logit_bias"] = {str(i) if self._server == "sglang" else i: bias for i, bias in sampling.logit_bias}
        return known | {"max_tokens": longest, "logprobs": True}

    async def _generate(self, session_id: str, prompt: list[int], params: dict[str, Any]) -> Any:
        try:
            return await self._client.generate(session_id, prompt_ids=prompt, sampling_params=params)
        except Exception as error:  # Ray, the load balancer and the server may raise anything
            raise EngineError(f"verl's server failed: {type(error).__name__}: {error}") from error

    def _sampled(self, output: Any, prompt: int, longest: int, sampling: Sampling) -> Sampled:
        ids = [int(token) for token in output.token_ids]
        logprobs = list(output.log_probs or [])[: len(ids)]
        logprobs += [None] * (len(ids) - len(logprobs))
        sampled = Sampled(ids, logprobs, self._finish(output.stop_reason, ids, longest, sampling))
        first, last = (output.extra_fields.get(f"{end}_global_steps") for end in ("min", "max"))
        if last is not None:
            self.version = last if self.version is None else max(self.version, last)
            sampled.weight_version = str(last)
            sampled.versions = _versions(last if first is None else first, last, len(ids))
        sampled.routes = self._routes(output.routed_experts, prompt + len(ids))
        return sampled

    def _finish(self, reason: str | None, ids: list[int], longest: int, sampling: Sampling) -> str:
        """verl reports `completed` both for a stop token and for the full length."""
        if reason in _ABORTED:
            return "abort"
        stopped = bool(ids) and ids[-1] in self._stop_ids.union(sampling.stop_token_ids)
        return "length" if reason == "length" or (len(ids) >= longest and not stopped) else "stop"

    def _routes(self, experts: Any, length: int) -> Routes | None:
        """verl's servers report routes from the first token of the prompt on, as tokens × layers × experts."""
        if experts is None:
            return None
        table = np.ascontiguousarray(np.asarray(experts)[:length], dtype="<u2")
        if table.ndim != 3:
            raise EngineError(f"expert routes have the shape {table.shape}, not tokens × layers × experts")
        self.route_shape = (table.shape[1], table.shape[2])
        return Routes(0, table.tobytes(), table.shape[1] * table.shape[2], itemsize=2)


def _versions(first: int, last: int, count: int) -> tuple[tuple[str, int], ...]:
    """Versions by token. verl doesn't say where weights changed, so all tokens except the last may be of the oldest."""
    if first == last or count < 2:
        return ((str(first), count),)
    return ((str(first), count - 1), (str(last), 1))


def _parts(sampled: Sampled) -> list[Sampled]:
    """One part per token, so the gateway can cut the sequence at a stop string."""
    oldest = sampled.versions[0][0] if sampled.versions else None
    parts = [
        Sampled([token], [logprob], weight_version=oldest, routes=sampled.routes)
        for token, logprob in zip(sampled.token_ids, sampled.logprobs, strict=True)
    ]
    return [*parts, Sampled([], [], sampled.finish, oldest, sampled.versions, routes=sampled.routes)]
