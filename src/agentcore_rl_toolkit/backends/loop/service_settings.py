"""The settings of runs whose weights a service trains: Tinker, or a SageMaker training session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...common.checked_settings import option
from ...errors import ConfigError
from ..settings import MOST_RATIO, LoopSettings

if TYPE_CHECKING:
    from .mismatch import Truncation

LOSSES = ("importance_sampling", "ppo", "cispo")
"""Those of the services' losses that take tokens, the sampler's logprobs, and advantages."""
_THRESHOLDS = ("clip_low_threshold", "clip_high_threshold")
_OFF_POLICY = {
    "cispo": dict(zip(_THRESHOLDS, (0.0, MOST_RATIO), strict=True)),
    "ppo": dict(zip(_THRESHOLDS, (0.8, 1.2), strict=True)),
}
"""Thresholds with `async_steps`; those of `ppo` are the usual ones, named so that the figures count what is clipped."""


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
        if self.async_steps and self.temperature != 1.0:
            raise ConfigError(
                f"async_steps needs logprobs at temperature {self.temperature:g}; the service's loss takes them at 1",
                hint="set temperature=1, or leave async_steps out",
            )
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
        return (_OFF_POLICY.get(self.loss_name, {}) if self.async_steps else {}) | given

    @property
    def truncation(self) -> Truncation | None:
        """With `async_steps`, where the loss truncates the ratio to the sampler; None without."""
        if not self.async_steps:
            return None
        from .mismatch import Truncation  # numpy, which comes with the extras

        least, most = (self.loss_config.get(name) for name in _THRESHOLDS)
        if least is None or most is None:
            return Truncation()
        return Truncation.symmetric(least, most) if self.loss_name == "cispo" else Truncation(most, least_bad=least)

    @property
    def loss_notes(self) -> list[str]:
        """What to know about the loss before a run."""
        notes = []
        if self.temperature != 1.0:
            notes.append(f"temperature {self.temperature}: the service's loss assumes temperature 1 for its logprobs")
        if self.async_steps and self.loss_name == "importance_sampling":
            notes.append(
                f"loss importance_sampling truncates no ratio, and rollouts are up to {self.async_steps} updates old: "
                "without --loss, cispo truncates at 2"
            )
        return notes

    @property
    def loss_name(self) -> str:
        return self.loss or ("cispo" if self.async_steps else "importance_sampling")
