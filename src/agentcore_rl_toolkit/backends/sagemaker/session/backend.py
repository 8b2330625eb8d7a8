"""SageMaker's training sessions as a backend: their settings, and the checks before a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ....common.checked_settings import option
from ....errors import ConfigError
from ...base import TrainingPlan, check_settings, require
from ...loop.service_settings import ServiceSettings
from ..sagemaker_place import SagemakerPlace, check_model_name, check_role, output_uri

ADAM = {
    "beta1": "beta1",
    "beta2": "beta2",
    "eps": "eps",
    "weight_decay": "weightDecay",
    "grad_clip_norm": "gradClipNorm",
    "lora_plus_lr_ratio": "loraPlusLrRatio",
}
"""Options of the optimizer, and the service's names for them."""
_CLIPS = {"clip_low_threshold": (0.0, 1.0), "clip_high_threshold": (1.0, 10.0)}
"""Options of the loss, and the values that the service takes."""
_HIGHEST_RATE = 0.01


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingSessionSettings(SagemakerPlace, ServiceSettings):
    """A run of GRPO in a SageMaker training session. `options` go to its optimizer, and to its loss."""

    lora_alpha: int = option(64, "the scaling factor of the adapter")
    region: str | None = option(None, "the AWS region (default: the one in AWS's configuration)")

    at_least_one: ClassVar[tuple[str, ...]] = (*ServiceSettings.at_least_one, "lora_alpha")
    adam_options: ClassVar[tuple[str, ...]] = tuple(ADAM)
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = ServiceSettings.choices

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learning_rate > _HIGHEST_RATE:
            raise ConfigError(f"learning_rate must be at most {_HIGHEST_RATE}, not {self.learning_rate}")
        if self.lora_rank > 256:
            raise ConfigError(f"lora_rank must be at most 256, not {self.lora_rank}")
        for name, value in self.loss_config.items():
            if name not in _CLIPS:
                hint = f"options are {', '.join((*ADAM, *_CLIPS))}"
                raise ConfigError(f"a training session has no option {name}", hint=hint)
            least, most = _CLIPS[name]
            if not least <= value <= most:
                raise ConfigError(f"{name} must be from {least:g} to {most:g}, not {value}")


class SessionBackend:
    """A SageMaker training session, with the loop in this process."""

    name = "sagemaker-session"
    extra = "sagemaker"
    settings = TrainingSessionSettings

    def plan(self, settings: TrainingSessionSettings) -> TrainingPlan:
        """Checks everything except what only AWS knows: the model, the role, and what your credentials may do."""
        check_model_name(settings.model)
        check_role(settings.role_arn)
        if settings.tokenizer is None:
            hint = "give tokenizer: the model's folder or its id on the hub of Hugging Face"
            raise ConfigError("tokenizer is missing: SageMaker's model names don't identify one", hint=hint)
        if settings.max_tokens is None and settings.context_limit is None:
            hint = "give max_tokens, or context_limit: the service doesn't report the model's context"
            raise ConfigError("neither max_tokens nor context_limit is set", hint=hint)
        notes = [*check_settings(settings), f"checkpoints: {output_uri(settings)}", *settings.loss_notes]
        notes.append("skipped the checks on AWS: `agentcore-rl doctor --sagemaker-role ARN` checks permissions")
        return TrainingPlan(backend=self.name, settings=dataclasses.asdict(settings), notes=tuple(notes))

    def train(self, settings: TrainingSessionSettings) -> dict[str, Any]:
        self.plan(settings)
        module = require(
            "agentcore_rl_toolkit.backends.sagemaker.session.session_weights", self.extra, "training in a session"
        )
        summary: dict[str, Any] = module.train(settings)
        return summary


BACKEND = SessionBackend()
