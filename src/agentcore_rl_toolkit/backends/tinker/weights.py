"""The weights of a run, which the service trains, samples from, and saves under names; and the run itself."""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tinker

from ...engine.checkpoints import resolve_model
from ...engine.services.tinker import TinkerEngine, close_service, context_length
from ...errors import AgentCoreRLError, ConfigError
from ..loop.report import Report
from ..loop.service_examples import Example, measure_example_logprobs
from ..loop.service_run import ServiceRun
from .backend import TinkerSettings
from .convert import to_datum

_DAY = 24 * 60 * 60


def train(settings: TinkerSettings, *, report: Report | None = None) -> dict[str, Any]:
    """Train and return the summary, which is also written to `summary.json`."""
    return ServiceRun(settings, "tinker", lambda names: TinkerWeights(settings, names), report).run()


class TinkerWeights:
    """The `ServiceWeights` of one run. Use it as a context manager."""

    def __init__(self, settings: TinkerSettings, names: Mapping[str, str] | None = None) -> None:
        """Creates new weights, or restores those of a checkpoint together with its optimizer."""
        self._settings, self._adam = settings, adam_params(settings)
        url = settings.base_url or os.environ.get("TINKER_BASE_URL")
        if url is not None:
            _check_reachable(url)
        with service_errors("can't use the service"):
            self._service = tinker.ServiceClient(base_url=settings.base_url)
            if names is None:
                self._training = self._service.create_lora_training_client(
                    base_model=resolve_model(settings.model), rank=settings.lora_rank, seed=settings.seed
                )
            else:
                self._training = self._service.create_training_client_from_state_with_optimizer(names["state"])
            self.context_length = context_length(self._service, resolve_model(settings.model))

    def engine(self, version: str) -> TinkerEngine:
        return TinkerEngine(
            self.sampler(),
            name=self._settings.model,
            context_length=self.context_length,
            weight_version=version,
            timeout=self._settings.timeout,
        )

    def sampler(self) -> tinker.SamplingClient:
        with service_errors("can't sample from the weights"):
            return self._training.save_weights_and_get_sampling_client()

    def update(self, examples: Sequence[Example]) -> dict[str, float]:
        with service_errors("can't train the weights"):
            data, config = [to_datum(example) for example in examples], self._settings.loss_config
            passed = self._training.forward_backward(data, self._settings.loss_name, config or None)
            stepped = self._training.optim_step(self._adam)  # queued behind it, to save a round trip
            output, optimizer = passed.result(), stepped.result()
        figures = {f"loss/{name}": float(value) for name, value in output.metrics.items()}
        figures |= {f"optimizer/{name}": float(value) for name, value in (optimizer.metrics or {}).items()}
        logprobs = [np.asarray(one["logprobs"].data, np.float64) for one in output.loss_fn_outputs]
        return figures | measure_example_logprobs(examples, logprobs, self._settings.truncation)

    def save(self, step: int) -> dict[str, str]:
        name, ttl = f"step-{step:06d}", self._settings.ttl_days
        seconds = None if ttl is None else int(ttl * _DAY)
        with service_errors("can't save a checkpoint"):
            state = self._training.save_state(name, ttl_seconds=seconds)
            sampler = self._training.save_weights_for_sampler(name, ttl_seconds=seconds)
            return {"state": state.result().path, "sampler": sampler.result().path}

    def delete(self, names: Mapping[str, str]) -> None:
        for name in ("state", "sampler"):
            with contextlib.suppress(tinker.TinkerError, ValueError):  # some services can't, or use other names
                self._rest().delete_checkpoint_from_tinker_path(names[name]).result()

    def _rest(self) -> Any:
        own = getattr(tinker, "RestClient", None)
        if own is None or "base_url" not in inspect.signature(own).parameters:  # in older SDKs
            return self._service.create_rest_client()
        return own(base_url=self._settings.base_url)

    def __enter__(self) -> TinkerWeights:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        close_service(self._service, failed=kind is not None)


def adam_params(settings: TinkerSettings) -> tinker.AdamParams:
    """The optimizer's settings, checked by the SDK."""
    try:
        return tinker.AdamParams(**settings.adam)
    except ValueError as error:
        raise ConfigError(f"tinker {tinker.__version__} refuses the optimizer settings: {error}") from None


@contextlib.contextmanager
def service_errors(problem: str) -> Iterator[None]:
    """Raise the SDK's errors as ours. The SDK has already retried for minutes."""
    try:
        yield
    except tinker.AuthenticationError as error:
        raise ConfigError(f"{problem}: {error}", hint="set TINKER_API_KEY to a key of this service") from error
    except (tinker.TinkerError, ValueError) as error:
        raise AgentCoreRLError(f"{problem}: {error}", hint="--resume continues from the latest checkpoint") from error


def _check_reachable(url: str) -> None:
    """Fail at once if no server listens; the SDK would retry for five minutes."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), 10).close()
    except OSError as error:
        hint = "start the service, or set base_url or TINKER_BASE_URL"
        raise ConfigError(f"no Tinker service answers at {url}: {error.strerror or error}", hint=hint) from None
