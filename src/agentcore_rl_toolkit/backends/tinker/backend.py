"""Tinker as a backend: its settings, and the checks before a run."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any, ClassVar

from ...common.checked_settings import option
from ...errors import ConfigError
from ..base import TrainingPlan, check_settings, require
from ..loop.service_settings import ServiceSettings

ADAM = ("beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")


@dataclass(frozen=True, kw_only=True, repr=False)
class TinkerSettings(ServiceSettings):
    """A run of GRPO on a Tinker service. `options` are fields of its `AdamParams`, and of the loss's configuration."""

    base_url: str | None = option(None, "the URL of the service (default: TINKER_BASE_URL, or Tinker's own)")
    ttl_days: float | None = option(None, "how long the service keeps checkpoints (default: forever)")

    adam_options: ClassVar[tuple[str, ...]] = ADAM

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ttl_days is not None and self.ttl_days < 1 / 24:
            raise ConfigError(f"ttl_days must be at least an hour (0.042), not {self.ttl_days}")


class TinkerBackend:
    """A Tinker service, with the loop in this process."""

    name = "tinker"
    extra = "tinker"
    settings = TinkerSettings

    def plan(self, settings: TinkerSettings) -> TrainingPlan:
        """Checks everything except what only the service knows: the model, and whether the key is valid."""
        notes = [*check_settings(settings), *_check_service(settings), *settings.loss_notes]
        require("agentcore_rl_toolkit.backends.tinker.weights", self.extra, "training with Tinker").adam_params(
            settings
        )
        return TrainingPlan(backend=self.name, settings=dataclasses.asdict(settings), notes=tuple(notes))

    def train(self, settings: TinkerSettings) -> dict[str, Any]:
        module = require("agentcore_rl_toolkit.backends.tinker.weights", self.extra, "training with Tinker")
        summary: dict[str, Any] = module.train(settings)
        return summary


def _check_service(settings: TinkerSettings) -> list[str]:
    url = settings.base_url or os.environ.get("TINKER_BASE_URL")
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"base_url must be a URL, not {url!r}", hint="write it like http://localhost:8000")
    notes = [f"service: {url or 'Tinker, with the SDK’s own address'}"]
    if not os.environ.get("TINKER_API_KEY"):
        notes.append("TINKER_API_KEY is not set: the SDK looks for a key elsewhere, and may not find one")
    return notes


BACKEND = TinkerBackend()
