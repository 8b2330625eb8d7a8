"""Tinker as a backend: its settings, and the checks before a run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...errors import ConfigError
from ..base import TrainingPlan, check_settings, require
from ..settings import MOST_RATIO, LoopSettings, option

LOSSES = ("importance_sampling", "ppo", "cispo")
"""Those of Tinker's losses that take tokens, the sampler's logprobs, and advantages."""
ADAM = ("beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")


@dataclass(frozen=True, kw_only=True)
class TinkerSettings(LoopSettings):
    """A run of GRPO on a Tinker service. `options` are fields of its `AdamParams`, and of the loss's configuration."""

    learning_rate: float = option(1e-4, "the learning rate of the optimizer")
    lora_rank: int = option(32, "the rank of the adapter")
    base_url: str | None = option(None, "the URL of the service (default: TINKER_BASE_URL, or Tinker's own)")
    tokenizer: str | None = option(None, "the model's tokenizer: a folder or a hub id (default: model)")
    loss: str | None = option(
        None, f"one of {', '.join(LOSSES)} (default: importance_sampling; with async_steps cispo, which truncates)"
    )
    per: str = option("token", "what has equal weight in the loss: each token, or each rollout")
    scale_advantages: bool = option(
        True, "divide rollouts' advantages by the standard deviation of their group's rewards"
    )
    ttl_days: float | None = option(None, "how long the service keeps checkpoints (default: forever)")

    at_least_one: ClassVar[tuple[str, ...]] = (*LoopSettings.at_least_one, "lora_rank")
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"loss": LOSSES, "per": ("token", "rollout")}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.report_to != "none":
            raise ConfigError("only TRL takes report_to", hint="read metrics.jsonl, which has one line per step")
        if self.ttl_days is not None and self.ttl_days < 1 / 24:
            raise ConfigError(f"ttl_days must be at least an hour (0.042), not {self.ttl_days}")
        for name, value in self.options.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                hint = f"options are {', '.join(ADAM)}, and numbers for the loss"
                raise ConfigError(f"the option {name} must be a number, not {value!r}", hint=hint)

    @property
    def adam(self) -> dict[str, float]:
        """The fields of `AdamParams`."""
        given = {name: float(value) for name, value in self.options.items() if name in ADAM}
        return {"learning_rate": self.learning_rate} | given

    @property
    def loss_config(self) -> dict[str, float]:
        """The configuration of the loss."""
        given = {name: float(value) for name, value in self.options.items() if name not in ADAM}
        off_policy = {"clip_low_threshold": 0.0, "clip_high_threshold": MOST_RATIO}
        return (off_policy if self.async_steps and self.loss_name == "cispo" else {}) | given

    @property
    def loss_name(self) -> str:
        return self.loss or ("cispo" if self.async_steps else "importance_sampling")


class TinkerBackend:
    """A Tinker service, with the loop in this process."""

    name = "tinker"
    extra = "tinker"
    settings = TinkerSettings

    def plan(self, settings: TinkerSettings) -> TrainingPlan:
        """Checks everything except what only the service knows: the model, and whether the key is valid."""
        notes = [*check_settings(settings), *_check_service(settings)]
        require("agentcore_rl_toolkit.backends.tinker.weights", self.extra, "training with Tinker").adam_params(
            settings
        )
        if settings.temperature != 1.0:
            notes.append(
                f"temperature {settings.temperature}: the service's loss assumes temperature 1 for its logprobs"
            )
        return TrainingPlan(backend=self.name, settings=dataclasses.asdict(settings), notes=tuple(notes))

    def train(self, settings: TinkerSettings) -> dict[str, Any]:
        module = require("agentcore_rl_toolkit.backends.tinker.training", self.extra, "training with Tinker")
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
