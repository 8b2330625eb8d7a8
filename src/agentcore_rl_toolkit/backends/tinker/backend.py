"""Tinker as a backend: its settings, and what is checked before a run."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any, ClassVar

from ...errors import ConfigError
from ..base import Plan, require
from ..preflight import check
from ..settings import LoopSettings, option

LOSSES = ("importance_sampling", "ppo", "cispo")
"""Of Tinker's losses, those that take what we give: tokens, the sampler's logprobs, and advantages."""
ADAM = ("beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")


@dataclass(frozen=True, kw_only=True)
class TinkerSettings(LoopSettings):
    """A run of GRPO on a Tinker service. `options` are fields of its `AdamParams`, and of the loss's configuration."""

    learning_rate: float = option(1e-4, "of the optimizer")
    lora_rank: int = option(32, "of the adapter that is trained")
    base_url: str | None = option(None, "where the service is (default: TINKER_BASE_URL, or Tinker's own)")
    tokenizer: str | None = option(None, "the model's tokenizer: a folder or a hub id (default: model)")
    loss: str = option("importance_sampling", f"one of {', '.join(LOSSES)}")
    per: str = option("token", "what counts alike in the loss: each token, or each rollout")
    scale_advantages: bool = option(True, "divide advantages by the spread of their group's rewards")
    ttl_days: float | None = option(None, "how long the service keeps checkpoints (default: forever)")

    at_least_one: ClassVar[tuple[str, ...]] = (*LoopSettings.at_least_one, "lora_rank")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in LOSSES:
            raise ConfigError(f"loss is one of {', '.join(LOSSES)}, not {self.loss!r}")
        if self.per not in ("token", "rollout"):
            raise ConfigError(f"per is token or rollout, not {self.per!r}")
        if self.report_to != "none":
            raise ConfigError("report_to is for TRL", hint="figures are in metrics.jsonl, one line a step")
        if self.ttl_days is not None and self.ttl_days < 1 / 24:
            raise ConfigError(f"ttl_days is at least an hour, not {self.ttl_days}")
        for name, value in self.options.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                hint = f"they are {', '.join(ADAM)}, and numbers for the loss"
                raise ConfigError(f"the option {name} is no number: {value!r}", hint=hint)

    @property
    def adam(self) -> dict[str, float]:
        """What the optimizer is told."""
        given = {name: float(value) for name, value in self.options.items() if name in ADAM}
        return {"learning_rate": self.learning_rate} | given

    @property
    def loss_config(self) -> dict[str, float]:
        """What the loss is told."""
        return {name: float(value) for name, value in self.options.items() if name not in ADAM}


class TinkerBackend:
    """A Tinker service, with the loop in this process."""

    name = "tinker"
    extra = "tinker"
    settings = TinkerSettings

    def plan(self, settings: TinkerSettings) -> Plan:
        """Everything is checked but what only the service knows: the model, and whether the key is good."""
        notes = [*check(settings), *_check_service(settings)]
        require("agentcore_rl_toolkit.backends.tinker.weights", self.extra, "training with Tinker").adam(settings)
        if settings.temperature != 1.0:
            notes.append(
                f"temperature {settings.temperature}: logprobs are the service's, and its loss is of temperature 1"
            )
        return Plan(backend=self.name, settings=dataclasses.asdict(settings), notes=tuple(notes))

    def train(self, settings: TinkerSettings) -> dict[str, Any]:
        module = require("agentcore_rl_toolkit.backends.tinker.training", self.extra, "training with Tinker")
        summary: dict[str, Any] = module.train(settings)
        return summary


def _check_service(settings: TinkerSettings) -> list[str]:
    url = settings.base_url or os.environ.get("TINKER_BASE_URL")
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"base_url is no URL: {url!r}", hint="write it like http://localhost:8000")
    found = [f"service: {url or 'Tinker, with the SDK’s own address'}"]
    if not os.environ.get("TINKER_API_KEY"):
        found.append("TINKER_API_KEY is not set: the SDK looks for a key elsewhere, and may find none")
    return found


BACKEND = TinkerBackend()
