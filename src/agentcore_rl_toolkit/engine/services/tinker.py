"""Tinker as an engine, through its SDK's `SamplingClient`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any

try:
    import tinker
except ImportError as error:
    raise ImportError(f"{error}\nhint: pip install 'agentcore-rl-toolkit[tinker]'", name=error.name) from error

from ...errors import EngineError
from ..base import Sampled, SampleRequest, Sampling
from ..remote.payload import finite, highest
from .service_engine import ServiceEngine


class TinkerEngine(ServiceEngine):
    """Samples with a `SamplingClient`, or from a name: a base model, or weights (`tinker://…`).

    A trainer passes its client, and a new one after each update of the weights:

        engine = TinkerEngine(training.save_weights_and_get_sampling_client(), name="Qwen/Qwen3-8B")
        …
        engine.update(training.save_weights_and_get_sampling_client(), "1")
    """

    service = "Tinker"

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
        name = name or (client if isinstance(client, str) else "tinker")
        known: dict[str, Any] = {"context_length": context_length, "weight_version": weight_version}
        super().__init__(client, name=name, timeout=timeout, **known)
        self._place = {"base_url": base_url, "api_key": api_key}
        self._service: tinker.ServiceClient | None = None
        self._starting = asyncio.Lock()

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
        await super().close()
        if self._service is not None:
            service, self._service = self._service, None
            await asyncio.to_thread(close_service, service)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _open(self, name: str) -> tinker.SamplingClient:
        self._service = tinker.ServiceClient(**self._place)
        if name.startswith("tinker://"):
            return self._service.create_sampling_client(model_path=name)
        if self._context_length is None:
            self._context_length = context_length(self._service, name)
        return self._service.create_sampling_client(base_model=name)

    async def _answer(self, request: SampleRequest, weights: Any) -> Sampled:
        asked = {"topk_sample_logprobs": request.sampling.top_logprobs} if request.sampling.top_logprobs else {}
        if asked and "topk_sample_logprobs" not in inspect.signature(weights.sample).parameters:
            raise EngineError(f"tinker {tinker.__version__} does not return alternatives to sampled tokens", status=400)
        future = weights.sample(
            prompt=tinker.ModelInput.from_ints(request.prompt.tolist()),
            num_samples=1,
            sampling_params=self._params(request),
            **asked,
        )
        try:
            response = await asyncio.wrap_future(future)
        except Exception as error:  # the SDK has several kinds; a cancellation is not among them, and cancels `future`
            raise _engine_error(error) from error
        return _sampled(response.sequences[0], request.sampling.top_logprobs)

    def _current(self) -> tuple[Any, str]:
        client, version = super()._current()
        if isinstance(client, str):
            raise EngineError("the engine has not been started", status=503)
        return client, version

    def _params(self, request: SampleRequest) -> tinker.SamplingParams:
        sampling = request.sampling
        return tinker.SamplingParams(
            max_tokens=self._limit(request),
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


def _sampled(sequence: Any, top: int) -> Sampled:
    ids = list(sequence.tokens)
    logprobs = finite(list(sequence.logprobs or []))[: len(ids)]
    sampled = Sampled(ids, logprobs + [None] * (len(ids) - len(logprobs)))
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
