"""Tinker as an engine, through its SDK's `SamplingClient`.

Tinker answers a request as a whole, so all tokens come at once. The engine refuses settings that Tinker lacks
(penalties, a grammar, …): without them the tokens would come from another distribution than the requested one.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator
from typing import Any

try:
    import tinker
except ImportError as error:
    raise ImportError(f"{error}\nhint: pip install 'agentcore-rl-toolkit[tinker]'", name=error.name) from error

from ..errors import EngineError
from .base import EngineInfo, Sampled, SampleRequest, Sampling
from .remote.payload import finite, highest

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
"""Settings that Tinker lacks, with the value that changes nothing."""


class TinkerEngine:
    """Samples with a `SamplingClient`, or from a name: a base model, or weights (`tinker://…`).

    A trainer passes its client, and a new one after each update of the weights:

        engine = TinkerEngine(training.save_weights_and_get_sampling_client(), name="Qwen/Qwen3-8B")
        …
        engine.update(training.save_weights_and_get_sampling_client(), "1")

    Running requests end with the weights they began with, and carry their version.
    """

    def __init__(
        self,
        client: tinker.SamplingClient | str,
        *,
        name: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        context_length: int | None = None,
        weight_version: str = "0",
        timeout: float = 600.0,
    ) -> None:
        """
        Args:
            name: The model's name; by default, the one in `client`.
            base_url: The service, if `client` is a name; by default, the SDK's.
            api_key: For the service; by default, the SDK's.
            context_length: The longest sequence; by default, the service's, if `client` is a name.
            timeout: Seconds that a request may take.
        """
        self._weights: tuple[tinker.SamplingClient | str, str] = (
            client,
            weight_version,
        )  # one value, so that threads see both change together
        self._name, self._timeout = name or (client if isinstance(client, str) else "tinker"), timeout
        self._place = {"base_url": base_url, "api_key": api_key}
        self._context_length = context_length
        self._service: tinker.ServiceClient | None = None
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._starting = asyncio.Lock()
        self._closed = False

    # --- the Engine protocol -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        async with self._starting:
            client, version = self._weights
            if isinstance(client, str) and not self._closed:
                try:
                    self._weights = await asyncio.to_thread(self._open, client), version
                except Exception as error:  # the SDK has several kinds
                    raise _engine_error(error) from error

    async def close(self) -> None:
        self._closed = True
        self._resumed.set()
        if self._service is not None:
            service, self._service = self._service, None
            await asyncio.to_thread(close_service, service)

    async def info(self) -> EngineInfo:
        self._client()
        return EngineInfo((self._name,), self._context_length, self.weight_version)

    async def pause(self) -> None:
        """New requests wait; running ones continue."""
        self._resumed.clear()

    async def resume(self) -> None:
        self._resumed.set()

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        await self._resumed.wait()
        client, version = self._client()
        self._check(request, client)
        asked = {"topk_sample_logprobs": request.sampling.top_logprobs} if request.sampling.top_logprobs else {}
        future = client.sample(
            prompt=tinker.ModelInput.from_ints(request.prompt.tolist()),
            num_samples=1,
            sampling_params=self._params(request),
            **asked,
        )
        try:
            response = await asyncio.wait_for(asyncio.wrap_future(future), self._timeout)
        except asyncio.TimeoutError:
            raise EngineError(f"Tinker took longer than {self._timeout:g} seconds", status=504) from None
        except Exception as error:  # the SDK has several kinds; a cancellation is not among them, and cancels `future`
            raise _engine_error(error) from error
        yield _sampled(response.sequences[0], request.sampling.top_logprobs, version)

    # --- for a trainer -----------------------------------------------------------------------------------------------

    @property
    def weight_version(self) -> str:
        return self._weights[1]

    def update(self, client: tinker.SamplingClient, version: str) -> None:
        """Sample with other weights from now on, from any thread."""
        self._weights = client, version

    # --- parts -------------------------------------------------------------------------------------------------------

    def _open(self, name: str) -> tinker.SamplingClient:
        self._service = tinker.ServiceClient(**self._place)
        if name.startswith("tinker://"):
            return self._service.create_sampling_client(model_path=name)
        if self._context_length is None:
            self._context_length = context_length(self._service, name)
        return self._service.create_sampling_client(base_model=name)

    def _client(self) -> tuple[tinker.SamplingClient, str]:
        if self._closed:
            raise EngineError("the engine was closed", status=503)
        client, version = self._weights
        if isinstance(client, str):
            raise EngineError("the engine has not been started", status=503)
        return client, version

    def _check(self, request: SampleRequest, client: tinker.SamplingClient) -> None:
        sampling, length, context = request.sampling, len(request.prompt), self._context_length
        if request.model not in (None, self._name):
            raise EngineError(f"this engine serves {self._name!r}, not {request.model!r}", status=404)
        if not length:
            raise EngineError("the prompt is empty", status=400)
        if context is not None and length + (sampling.max_tokens or 1) > context:
            wanted = f"{length} tokens and {sampling.max_tokens or 'at least 1'} to sample"
            raise EngineError(f"the prompt has {wanted}, more than the context of {context}", status=400)
        for name, neutral in NEUTRAL.items():
            if getattr(sampling, name) not in (None, neutral):
                raise EngineError(f"Tinker can't sample with {name}", status=400)
        if sampling.top_logprobs and "topk_sample_logprobs" not in inspect.signature(client.sample).parameters:
            raise EngineError(f"tinker {tinker.__version__} does not return alternatives to sampled tokens", status=400)

    def _params(self, request: SampleRequest) -> tinker.SamplingParams:
        sampling, limit = request.sampling, request.sampling.max_tokens
        if limit is None and self._context_length is not None:
            limit = self._context_length - len(request.prompt)
        return tinker.SamplingParams(
            max_tokens=limit,
            seed=None if sampling.seed is None else sampling.seed % 2**31,
            stop=_stop(sampling),
            temperature=1.0 if sampling.temperature is None else sampling.temperature,
            top_k=sampling.top_k if sampling.top_k and sampling.top_k > 0 else -1,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
        )


def context_length(service: tinker.ServiceClient, model: str) -> int | None:
    """The longest sequence of a model, as the service reports it; None if it doesn't."""
    for known in service.get_server_capabilities().supported_models:
        if known.model_name == model:
            return getattr(known, "max_context_length", None)
    return None


def close_service(service: tinker.ServiceClient, *, failed: bool = False) -> None:
    """End a session with the service; older SDKs leave that to its idle timeout."""
    if hasattr(service, "close"):
        with contextlib.suppress(Exception):  # it is over either way
            service.close("errored" if failed else "success").result(10)


def _stop(sampling: Sampling) -> list[int] | list[str] | None:
    """Tinker takes ids or strings, not both: ids then, because the gateway also cuts at strings.

    None keeps the model's own end of turn, an empty list removes it.
    """
    if sampling.stop_token_ids:
        return list(sampling.stop_token_ids)
    if sampling.stop:
        return list(sampling.stop)
    return [] if sampling.ignore_eos else None


def _sampled(sequence: Any, top: int, version: str) -> Sampled:
    ids = list(sequence.tokens)
    logprobs = finite(list(sequence.logprobs or []))[: len(ids)]
    sampled = Sampled(ids, logprobs + [None] * (len(ids) - len(logprobs)), weight_version=version)
    sampled.finish = "length" if sequence.stop_reason == "length" else "stop"
    if top:
        sampled.top_logprobs = [highest(entries or (), top) for entries in sequence.topk_logprobs or []]
    return sampled


def _engine_error(error: Exception) -> EngineError:
    """The SDK's error, with the status an agent should see."""
    if isinstance(error, EngineError):
        return error
    message = f"Tinker failed: {str(error) or type(error).__name__}"
    if isinstance(error, tinker.APIStatusError):
        return EngineError(message, status=error.status_code if error.status_code in (400, 413, 422, 429) else 502)
    if isinstance(error, tinker.RequestFailedError) and str(getattr(error.category, "value", "")).lower() == "user":
        return EngineError(message, status=400)
    return EngineError(message)
