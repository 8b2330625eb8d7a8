"""The settings of runs whose weights a service trains: Tinker, or a SageMaker training session."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...common.checked_settings import option
from ...errors import ConfigError
from ..settings import MOST_RATIO, LoopSettings

LOSSES = ("importance_sampling", "ppo", "cispo")
"""Those of the services' losses that take tokens, the sampler's logprobs, and advantages."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ServiceSettings(LoopSettings):
    """A run of GRPO on a training service. `options` are the optimizer's settings, and the loss's configuration."""

    learning_rate: float = option(1e-4, "the learning rate of the optimizer")
    lora_rank: int = option(32, "the rank of the adapter")
    tokenizer: str | None = option(None, "the model's tokenizer: a folder or a hub id (default: model)")
    loss: str | None = option(
        None, f"one of {', '.join(LOSSES)} (default: importance_sampling; with async_steps cispo, which truncates)"
    )
    per: str = option("token", "weigh each token, or each rollout, equally in the loss")
    scale_advantages: bool = option(
        True, "divide rollouts' advantages by the standard deviation of their group's rewards"
    )

    trains_here: ClassVar[bool] = False
    at_least_one: ClassVar[tuple[str, ...]] = (*LoopSettings.at_least_one, "lora_rank")
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"loss": LOSSES, "per": ("token", "rollout")}
    adam_options: ClassVar[tuple[str, ...]] = ()
    """The options that go to the optimizer; the others go to the loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.options.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                hint = f"options are {', '.join(self.adam_options)}, and numbers for the loss"
                raise ConfigError(f"the option {name} must be a number, not {value!r}", hint=hint)

    @property
    def adam(self) -> dict[str, float]:
        given = {name: float(value) for name, value in self.options.items() if name in self.adam_options}
        return {"learning_rate": self.learning_rate} | given

    @property
    def loss_config(self) -> dict[str, float]:
        given = {name: float(value) for name, value in self.options.items() if name not in self.adam_options}
        off_policy = {"clip_low_threshold": 0.0, "clip_high_threshold": MOST_RATIO}
        return (off_policy if self.async_steps and self.loss_name == "cispo" else {}) | given

    @property
    def most_ratio(self) -> float | None:
        """With `async_steps`, the ratio to the sampler above which the loss truncates; None without."""
        return self.loss_config.get("clip_high_threshold", math.inf) if self.async_steps else None

    @property
    def loss_name(self) -> str:
        return self.loss or ("cispo" if self.async_steps else "importance_sampling")
