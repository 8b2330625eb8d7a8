"""TRL as a backend: its settings, those of fine-tuning on stored rollouts, and the checks before a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...common.checked_settings import CheckedSettings, option
from ...engine.checkpoints import resolve_model
from ...errors import ConfigError
from ..base import TrainingPlan, check_settings, require
from ..settings import LoopSettings

SERVER = "vllm="
"""What a teacher that a server samples begins with."""
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True, repr=False)
class TrlSettings(LoopSettings):
    """A run of GRPO with TRL. `options` are fields of its `GRPOConfig`."""

    loss: str | None = option(
        None, "TRL's loss_type (default: dapo; with async_steps cispo, which truncates the policy's ratio)"
    )
    vllm: str | None = option(None, "sample with vLLM: `colocate`, or the URL of a server that TRL sends weights to")
    teacher: str | None = option(
        None, "distill from this model, too: a folder, a hub id, or vllm=URL; it needs the same tokenizer"
    )
    teacher_weight: float = option(1.0, "with teacher: how much log teacher − log policy of a token counts")
    reward_weight: float = option(1.0, "with teacher: how much the advantage from rewards counts; 0 distills only")
    batch_size: int = option(16, "rollouts in one forward and backward pass")
    dtype: str = option("float32", "the type to sample and train in: float32, bfloat16, float16")
    gradient_checkpointing: bool = option(False, "save memory by recomputing activations")
    device: str | None = option(None, "cpu or cuda (default: a GPU if there is one)")

    at_least_one: ClassVar[tuple[str, ...]] = (*LoopSettings.at_least_one, "batch_size")
    at_least_zero: ClassVar[tuple[str, ...]] = (*LoopSettings.at_least_zero, "reward_weight")
    more_than_zero: ClassVar[tuple[str, ...]] = (*LoopSettings.more_than_zero, "teacher_weight")
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "dtype": _DTYPES,
        "loss": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"),
    }

    @property
    def loss_name(self) -> str:
        return self.loss or ("cispo" if self.async_steps else "dapo")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vllm not in (None, "colocate") and not self.vllm.startswith(("http://", "https://")):
            raise ConfigError(f"vllm must be `colocate` or the URL of a server, not {self.vllm!r}")
        for name in ("teacher_weight", "reward_weight"):
            if self.teacher is None and getattr(self, name) != 1.0:
                raise ConfigError(f"{name}={getattr(self, name)} has no effect", hint="name a teacher")
        if self.teacher is not None and (self.dynamic_sampling or self.skip_epochs):
            hint = "leave out dynamic_sampling and skip_epochs"
            raise ConfigError("with a teacher, groups whose rewards are all the same are trained on too", hint=hint)


@dataclass(frozen=True, kw_only=True, repr=False)
class SftSettings(CheckedSettings):
    """Fine-tuning on stored rollouts with TRL. `options` are fields of its `SFTConfig`."""

    sources: tuple[str, ...] = option((), "the output folder of a run, or a file of rollouts; may be repeated")
    model: str = option("tiny", "start from this model: a folder, a hub id, the output folder of a run, or `tiny`")
    output: str = option("runs/sft", "the folder for checkpoints and metrics")
    best: int = option(1, "train on at most this many rollouts of each data row, the ones with the highest rewards")
    min_reward: float | None = option(
        None, "train only on rollouts with at least this reward (default: the mean of all)"
    )
    max_rollout_tokens: int | None = option(None, "leave out rollouts with more tokens")
    epochs: int = option(3, "how often to train on each rollout")
    rows_per_step: int = option(16, "training rows per weight update; most rollouts are one row")
    batch_size: int = option(16, "rows in one forward and backward pass")
    learning_rate: float = option(1e-5, "the learning rate at the start; it falls to 0")
    lora_rank: int = option(0, "train a LoRA adapter of this rank; 0 trains all weights")
    chat_template: str | None = option(None, "a Jinja file that replaces the model's chat template")
    dtype: str = option("float32", "the type to train in: float32, bfloat16")
    gradient_checkpointing: bool = option(False, "save memory by recomputing activations")
    device: str | None = option(None, "cpu or cuda (default: a GPU if there is one)")
    seed: int = option(0, "seeds the choice among equal rewards, shuffling and initialization")
    save_every: int = option(100, "save a checkpoint every N updates, and at the end")
    keep: int = option(2, "the number of checkpoints to keep")
    resume: bool = option(False, "resume from the latest checkpoint in output")
    options: Mapping[str, Any] = option({}, "a field of TRL's SFTConfig")

    at_least_one: ClassVar[tuple[str, ...]] = (
        *("best", "max_rollout_tokens", "epochs", "rows_per_step", "batch_size", "save_every", "keep"),
    )
    at_least_zero: ClassVar[tuple[str, ...]] = ("lora_rank",)
    more_than_zero: ClassVar[tuple[str, ...]] = ("learning_rate",)
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"dtype": _DTYPES[:2]}

    @property
    def folder(self) -> Path:
        return Path(self.output)


class TrlBackend:
    """Hugging Face TRL, in this process."""

    name = "trl"
    extra = "trl"
    settings = TrlSettings

    def plan(self, settings: TrlSettings) -> TrainingPlan:
        """Checks everything except the model, which is loaded when training starts."""
        notes = check_settings(settings)
        if settings.teacher is not None and not settings.teacher.startswith(SERVER):
            resolve_model(settings.teacher)  # refuses a path without a model
        of_trl = require("agentcore_rl_toolkit.backends.trl.grpo_config", self.extra, "training with TRL")
        of_trl.trl_config(settings)
        of_trl.check_weight_transfer(settings)
        return TrainingPlan(backend=self.name, settings=dataclasses.asdict(settings), notes=notes)

    def train(self, settings: TrlSettings) -> dict[str, Any]:
        self.plan(settings)  # first, because the import takes seconds
        module = require("agentcore_rl_toolkit.backends.trl.training", self.extra, "training with TRL")
        summary: dict[str, Any] = module.train(settings)
        return summary


BACKEND = TrlBackend()
