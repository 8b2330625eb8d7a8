"""TRL as a backend: its settings, and the checks before a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...errors import ConfigError
from ..base import TrainingPlan, check_settings, require
from ..settings import LoopSettings, option


@dataclass(frozen=True, kw_only=True)
class TrlSettings(LoopSettings):
    """A run of GRPO with TRL. `options` are fields of its `GRPOConfig`."""

    loss: str | None = option(
        None, "TRL's loss_type (default: dapo; with async_steps cispo, which truncates the policy's ratio)"
    )
    vllm: str | None = option(None, "sample with vLLM: `colocate`, or the URL of a server that TRL sends weights to")
    batch_size: int = option(16, "rollouts in one forward and backward pass")
    dtype: str = option("float32", "the type to sample and train in: float32, bfloat16, float16")
    gradient_checkpointing: bool = option(False, "save memory by recomputing activations")
    device: str | None = option(None, "cpu or cuda (default: a GPU if there is one)")

    at_least_one: ClassVar[tuple[str, ...]] = (*LoopSettings.at_least_one, "batch_size")
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "dtype": ("float32", "bfloat16", "float16"),
        "loss": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"),
    }

    @property
    def loss_name(self) -> str:
        return self.loss or ("cispo" if self.async_steps else "dapo")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vllm not in (None, "colocate") and not self.vllm.startswith(("http://", "https://")):
            raise ConfigError(f"vllm must be `colocate` or the URL of a server, not {self.vllm!r}")


class TrlBackend:
    """Hugging Face TRL, in this process."""

    name = "trl"
    extra = "trl"
    settings = TrlSettings

    def plan(self, settings: TrlSettings) -> TrainingPlan:
        """Checks everything except the model, which is loaded when training starts."""
        notes = check_settings(settings)
        require("agentcore_rl_toolkit.backends.trl.grpo_config", self.extra, "training with TRL").trl_config(settings)
        return TrainingPlan(backend=self.name, settings=dataclasses.asdict(settings), notes=notes)

    def train(self, settings: TrlSettings) -> dict[str, Any]:
        module = require("agentcore_rl_toolkit.backends.trl.training", self.extra, "training with TRL")
        self.plan(settings)
        summary: dict[str, Any] = module.train(settings)
        return summary


BACKEND = TrlBackend()
