"""The weights of a run, which the service trains, samples from, and saves under names.

A checkpoint in the run's folder is a small file with those names.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tinker

from ...engine.checkpoints import resolve_model
from ...engine.tinker import close_service, context_length
from ...errors import AgentCoreRLError, ConfigError
from ..loop.mismatch import Mismatch
from .backend import TinkerSettings
from .convert import Example

_FILE = "tinker.json"
_DAY = 24 * 60 * 60


class TinkerWeights:
    """The weights of one run. Use it as a context manager."""

    def __init__(self, settings: TinkerSettings, checkpoint: Path | None = None) -> None:
        """Creates new weights, or restores those of a checkpoint together with its optimizer."""
        self._settings, self._adam = settings, adam_params(settings)
        url = settings.base_url or os.environ.get("TINKER_BASE_URL")
        if url is not None:
            _check_reachable(url)
        with service_errors("can't use the service"):
            self._service = tinker.ServiceClient(base_url=settings.base_url)
            if checkpoint is None:
                self._training = self._service.create_lora_training_client(
                    base_model=resolve_model(settings.model), rank=settings.lora_rank, seed=settings.seed
                )
            else:
                state = json.loads((checkpoint / _FILE).read_text())["state"]
                self._training = self._service.create_training_client_from_state_with_optimizer(state)
            self.context_length = context_length(self._service, resolve_model(settings.model))

    def sampler(self) -> tinker.SamplingClient:
        """A client that samples with the current weights."""
        with service_errors("can't sample from the weights"):
            return self._training.save_weights_and_get_sampling_client()

    def update(self, examples: Sequence[Example]) -> dict[str, float]:
        """Take one optimizer step and return its metrics. Examples with advantage 0 change nothing and are left out."""
        moving = [example for example in examples if np.any(example.datum.loss_fn_inputs["advantages"].data)]
        figures: dict[str, float] = {"rows/run": len(examples), "rows/trained": len(moving)}
        if not moving:
            return figures
        with service_errors("can't train the weights"):
            data, config = [example.datum for example in moving], self._settings.loss_config
            passed = self._training.forward_backward(data, self._settings.loss_name, config or None)
            stepped = self._training.optim_step(self._adam)  # queued behind it, to save a round trip
            output, optimizer = passed.result(), stepped.result()
        figures |= {f"loss/{name}": float(value) for name, value in output.metrics.items()}
        figures |= {f"optimizer/{name}": float(value) for name, value in (optimizer.metrics or {}).items()}
        if self._settings.async_steps:
            figures |= _off_policy(moving, output.loss_fn_outputs, config.get("clip_high_threshold", math.inf))
        return figures | _sampler_mismatch(moving, output.loss_fn_outputs)

    def save(self, place: Path, step: int) -> None:
        """Save the weights with the optimizer, and the weights to sample from, as a checkpoint."""
        name, ttl = f"step-{step:06d}", self._settings.ttl_days
        seconds = None if ttl is None else int(ttl * _DAY)
        with service_errors("can't save a checkpoint"):
            state = self._training.save_state(name, ttl_seconds=seconds)
            sampler = self._training.save_weights_for_sampler(name, ttl_seconds=seconds)
            known = {"step": step, "state": state.result().path, "sampler": sampler.result().path}
        place.mkdir(parents=True, exist_ok=True)
        unfinished = place / f"{_FILE}.unfinished"
        unfinished.write_text(json.dumps(known | {"model": self._settings.model}, indent=2) + "\n")
        unfinished.rename(place / _FILE)

    def delete(self, place: Path) -> None:
        """Delete a checkpoint here and, if the service allows it, there."""
        known = json.loads((place / _FILE).read_text())
        (place / _FILE).unlink()
        place.rmdir()
        for name in ("state", "sampler"):
            with contextlib.suppress(tinker.TinkerError, ValueError):  # some services can't, or use other names
                self._rest().delete_checkpoint_from_tinker_path(known[name]).result()

    def _rest(self) -> Any:
        own = getattr(tinker, "RestClient", None)
        if own is None or "base_url" not in inspect.signature(own).parameters:  # in older SDKs
            return self._service.create_rest_client()
        return own(base_url=self._settings.base_url)

    def __enter__(self) -> TinkerWeights:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        close_service(self._service, failed=kind is not None)


def is_complete(place: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    return (place / _FILE).is_file()


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


def _off_policy(examples: Sequence[Example], outputs: Sequence[Any], most: float) -> dict[str, float]:
    """The mean ratio of the policy to the sampler, and the share of tokens whose ratio was truncated at `most`."""
    ratios = []
    for example, output in zip(examples, outputs, strict=False):
        inputs = example.datum.loss_fn_inputs
        ours, theirs = (np.asarray(side["logprobs"].data, np.float64) for side in (output, inputs))
        ratios.append(np.exp(ours - theirs)[np.asarray(inputs["advantages"].data) != 0])
    every = np.concatenate(ratios) if ratios else np.zeros(0)
    if not every.size:
        return {}
    return {"off_policy/ratio": float(every.mean()), "off_policy/truncated": float((every > most).mean())}


def _sampler_mismatch(examples: Sequence[Example], outputs: Sequence[Any]) -> dict[str, float]:
    """How far the trainer's logprobs are from the sampler's, which has the same weights."""
    mismatch = Mismatch()
    for example, output in zip(examples, outputs, strict=False):
        inputs = example.datum.loss_fn_inputs
        trained = np.asarray(inputs["advantages"].data) != 0
        mismatch.add(*(np.asarray(side["logprobs"].data)[trained] for side in (inputs, output)))
    return mismatch.metrics()
