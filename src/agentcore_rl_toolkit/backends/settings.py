"""`TrainSettings`: what a run is told, on the command line, in a file, or from Python. It contacts nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """A run of GRPO on one agent."""

    agent: str = _option("", "an ARN, or the path of an agent (rl_app.py)")
    data: str = _option("", "JSONL, one payload a line")
    model: str = _option("tiny", "a folder, a hub id, or `tiny`, the built-in policy")
    output: str = _option("runs/train", "where checkpoints, rollouts and figures go")
    store: str | None = _option(
        None, "where results land: a bucket, s3://bucket/prefix or a folder (default: in output)"
    )
    eval_data: str | None = _option(None, "JSONL of held-out rows")

    steps: int = _option(50, "updates of the weights")
    rows_per_step: int = _option(8, "data rows in a step")
    n: int = _option(8, "rollouts of each row: the size of a group")
    learning_rate: float = _option(1e-5, "")
    loss: str = _option("dapo", "TRL's loss_type")
    batch_size: int = _option(16, "rollouts in one forward and backward pass")
    lora_rank: int = _option(0, "train an adapter of this rank; 0 trains all weights")
    dtype: str = _option("float32", "of the weights: float32, bfloat16, float16")
    gradient_checkpointing: bool = _option(False, "less memory, more time")
    device: str | None = _option(None, "cpu or cuda (default: a GPU if there is one)")
    seed: int = _option(0, "")

    temperature: float = _option(1.0, "of the policy")
    max_tokens: int | None = _option(None, "most tokens of one reply")
    context_limit: int | None = _option(None, "most tokens of prompt and reply of one model call")
    chat_template: str | None = _option(None, "a Jinja file to use in place of the model's own template")

    concurrency: int = _option(32, "sessions at a time")
    timeout: float = _option(300.0, "seconds a rollout may take")
    oversample: int = _option(0, "start so many more rollouts of each row, and stop the slowest")
    dynamic_sampling: bool = _option(False, "make up for groups without reward variance by further rows")
    min_trained_ratio: float = _option(0.0, "mask rollouts of which less was recorded exactly")
    max_rollout_tokens: int | None = _option(None, "mask rollouts that are longer")
    max_batch_tokens: int | None = _option(None, "drop a step's groups beyond so many tokens")
    max_failures: int = _option(16, "so many failed rollouts in a row end the run")
    failures: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "changes to the failure table, e.g. timeout=train"}
    )
    failed_reward: float = _option(0.0, "the reward of failed rollouts that the table trains on")

    eval_every: int = _option(0, "evaluate every so many steps; before and after in any case")
    eval_samples: int = _option(1, "rollouts of each held-out row")
    save_every: int = _option(20, "a checkpoint every so many steps, and one at the end")
    keep: int = _option(2, "how many checkpoints are kept")
    resume: bool = _option(False, "go on from the latest checkpoint in output")
    report_to: str = _option("none", "wandb, tensorboard or trackio, if installed; several with commas")

    def __post_init__(self) -> None:
        for name in ("steps", "rows_per_step", "batch_size", "concurrency", "save_every", "eval_samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.n < 2:
            raise ConfigError(f"n must be at least 2, not {self.n}", hint="GRPO compares the rollouts of a row")
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise ConfigError(f"dtype is float32, bfloat16 or float16, not {self.dtype!r}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> TrainSettings:
        """Settings by name; an unknown name is refused."""
        known = [spec.name for spec in dataclasses.fields(cls)]
        unknown = sorted(values.keys() - set(known))
        if unknown:
            raise ConfigError(f"unknown setting {unknown[0]!r}", hint=f"there is: {', '.join(known)}")
        return cls(**values)

    @property
    def folder(self) -> Path:
        return Path(self.output)

    @property
    def sampling(self) -> dict[str, Any]:
        """What every model call samples with."""
        asked = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in asked.items() if value is not None}
