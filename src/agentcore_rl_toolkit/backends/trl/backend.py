"""TRL as a backend: its settings, and what is checked before a run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from ...errors import ConfigError
from ..base import Plan, require
from ..preflight import check
from ..settings import LoopSettings, option


@dataclass(frozen=True, kw_only=True)
class TrlSettings(LoopSettings):
    """A run of GRPO with TRL. `options` are fields of its `GRPOConfig`."""

    loss: str = option("dapo", "TRL's loss_type")
    vllm: str | None = option(None, "sample with vLLM: `colocate`, or the URL of a server that TRL sends weights to")
    batch_size: int = option(16, "rollouts in one forward and backward pass")
    dtype: str = option("float32", "of the weights: float32, bfloat16, float16")
    gradient_checkpointing: bool = option(False, "less memory, more time")
    device: str | None = option(None, "cpu or cuda (default: a GPU if there is one)")

    at_least_one: ClassVar[tuple[str, ...]] = (*LoopSettings.at_least_one, "batch_size")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise ConfigError(f"dtype is float32, bfloat16 or float16, not {self.dtype!r}")
        if self.vllm not in (None, "colocate") and not self.vllm.startswith(("http://", "https://")):
            raise ConfigError(f"vllm is `colocate` or the URL of a server, not {self.vllm!r}")


class TrlBackend:
    """Hugging Face TRL, in this process."""

    name = "trl"
    extra = "trl"
    settings = TrlSettings

    def plan(self, settings: TrlSettings) -> Plan:
        """Everything is checked but the model, which is loaded when training starts."""
        notes = check(settings)
        config = require("agentcore_rl_toolkit.backends.trl.config", self.extra, "training with TRL")
        config.trl_config(settings)
        return Plan(backend=self.name, settings=dataclasses.asdict(settings), notes=notes)

    def train(self, settings: TrlSettings) -> dict[str, Any]:
        module = require("agentcore_rl_toolkit.backends.trl.training", self.extra, "training with TRL")
        summary: dict[str, Any] = module.train(settings)
        return summary


BACKEND = TrlBackend()
