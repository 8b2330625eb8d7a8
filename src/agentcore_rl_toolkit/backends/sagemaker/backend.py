"""SageMaker's multi-turn RL jobs as a backend: their settings, the checks before a run, and the job's document."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from ...common.checked_settings import option
from ...deploy.aws.calls import Aws
from ...errors import AwsRefused, ConfigError
from ...rows import read_rows
from ...runtime.local.agent_source import ON_AWS
from ..base import TrainingPlan, check_overlap, require
from ..settings import TrainSettings
from .sagemaker_place import HUB, SagemakerPlace, check_model_name, check_role, find_model, output_uri

SCHEMA_VERSION = "1.0.0"
_RUNTIME = re.compile(
    r"arn:(aws[a-z-]*):bedrock-agentcore:([a-z]{2}(?:-[a-z]+)+-[0-9]):([0-9]{12}):runtime/([a-zA-Z0-9_-]+)"
)
_IGNORED = ("steps", "seed", "sqs_url", "exp_id", "timeout", "tps_limit", "env", "allow", "memory_mb")
"""Settings that the job decides."""
_OFFLINE = ("NoCredentials", "NoRegion")


@dataclass(frozen=True, kw_only=True, repr=False)
class SagemakerSettings(SagemakerPlace):
    """A multi-turn RL job. `options` are its hyperparameters, such as max_epochs and learning_rate."""

    rows_per_step: int = option(32, "the job's global_batch_size: data rows per step")
    n: int = option(8, "the job's group_size: rollouts per row")
    qualifier: str = option("DEFAULT", "the endpoint of the runtime to invoke")
    checkpoint_group: str = option(
        "agentcore-rl-checkpoints", "the model package group of intermediate checkpoints, created if missing"
    )
    mlflow: str | None = option(None, "the ARN of the MLflow app that records metrics by step (default: none)")
    resume: bool = option(False, "follow the job in output again")
    poll_seconds: float = option(15.0, "seconds between two looks at the job")

    more_than_zero = (*TrainSettings.more_than_zero, "poll_seconds")

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = {spec.name: spec.default for spec in dataclasses.fields(TrainSettings)}
        for name in _IGNORED:
            if getattr(self, name) not in (defaults[name], {}):
                hint = "a job's length is set with options: max_epochs" if name == "steps" else "leave it out"
                hint = ON_AWS.get(f"--{name.replace('_', '-')}", hint)
                raise ConfigError(f"a SageMaker job has no setting {name}", hint=hint)
        for name, value in self.options.items():
            if not isinstance(value, bool | int | float | str):
                raise ConfigError(f"the option {name} must be a number or a text, not {value!r}")
        if self.model_package_group == self.checkpoint_group:
            raise ConfigError("model_package_group and checkpoint_group must differ", hint="name another group")

    @property
    def runtime(self) -> re.Match[str]:
        """The parts of the agent's ARN: partition, region, account and id."""
        found = _RUNTIME.fullmatch(self.agent)
        if found is None:
            hint = "give the ARN that `agentcore-rl deploy` printed; a job can't invoke an agent on this machine"
            raise ConfigError(f"{self.agent!r} is not the ARN of an AgentCore runtime", hint=hint)
        return found

    @property
    def region(self) -> str:
        """The job is in the runtime's region."""
        return self.runtime[2]

    def group_arn(self, name: str) -> str:
        if name.startswith("arn:"):
            return name
        return f"arn:{self.runtime[1]}:sagemaker:{self.region}:{self.runtime[3]}:model-package-group/{name}"


class SagemakerBackend:
    """A multi-turn RL job, which AWS runs; this process only follows it."""

    name = "sagemaker"
    extra = "sagemaker"
    settings = SagemakerSettings

    def plan(self, settings: SagemakerSettings) -> TrainingPlan:
        """Checks everything here and, with credentials, that the runtime and the model are there."""
        notes = check_locally(settings)
        base_model = settings.model
        if not base_model.startswith("arn:"):
            known = f"arn:{settings.runtime[1]}:sagemaker:{settings.region}:aws:hub-content/{HUB}/Model/"
            base_model = known + base_model
        try:
            base_model = check_on_aws(Aws(settings.region), settings)
            notes.append(f"runtime {settings.runtime[4]} is ready; the hub has the model")
        except AwsRefused as error:
            if error.code not in _OFFLINE:
                raise
            notes.append("skipped the checks on AWS: no credentials were found, so the model's version is not known")
        document = job_document(settings, base_model, f"{output_uri(settings)}/<job>")
        return TrainingPlan(
            backend=self.name, settings=dataclasses.asdict(settings), notes=tuple(notes), document=document
        )

    def train(self, settings: SagemakerSettings) -> dict[str, Any]:
        module = require("agentcore_rl_toolkit.backends.sagemaker.job_run", self.extra, "running a SageMaker job")
        summary: dict[str, Any] = module.train(settings)
        return summary


BACKEND = SagemakerBackend()


def check_on_aws(aws: Aws, settings: SagemakerSettings) -> str:
    """Refuse a runtime that is not ready; the ARN of the base model."""
    runtime = aws.read("bedrock-agentcore-control", "get_agent_runtime", agentRuntimeId=settings.runtime[4])
    if runtime["status"] != "READY":
        raise ConfigError(f"the runtime {settings.runtime[4]} is {runtime['status']}", hint="run agentcore-rl deploy")
    return find_model(aws, settings.model)


def job_document(settings: SagemakerSettings, base_model: str, place: str) -> dict[str, Any]:
    """The job's configuration, as version 1.0.0 of its schema has it; rows and results are under `place`."""
    channels = ["train", *(["validation"] if settings.eval_data else [])]
    training: dict[str, Any] = {
        "BaseModelArn": base_model,
        "AcceptEula": settings.accept_eula,
        "HyperParameters": {"global_batch_size": settings.rows_per_step, "group_size": settings.n}
        | dict(settings.options),
    }
    if settings.mlflow is not None:
        training["MlflowConfig"] = {"MlflowResourceArn": settings.mlflow}
    return {
        "AgentConfig": {"BedrockAgentCoreConfig": {"AgentRuntimeArn": settings.agent, "Qualifier": settings.qualifier}},
        "InputDataConfig": [
            {
                "ChannelName": name,
                "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"{place}/data/{name}.jsonl"}},
            }
            for name in channels
        ],
        "OutputDataConfig": {"S3OutputPath": f"{place}/output"},
        "ModelPackageConfig": {
            "OutputModelPackageGroupArn": settings.group_arn(settings.model_package_group),
            "IntermediateCheckpointModelPackageGroupArn": settings.group_arn(settings.checkpoint_group),
        },
        "TrainingConfig": training,
    }


def check_locally(settings: SagemakerSettings) -> list[str]:
    """Refuse what can't work, without calling AWS; notes about the agent and the data."""
    notes = [f"agent: {settings.agent}, invoked by the job in {settings.region}"]
    check_model_name(settings.model)
    check_role(settings.role_arn)
    output_uri(settings)
    for name, path in (("data", settings.data), ("eval_data", settings.eval_data)):
        if path:
            rows, problems = read_rows(path)
            if not rows:
                raise ConfigError(f"{path} has no rows", hint="one payload per line")
            notes += [f"{name}: {len(rows)} rows in {path}", *(f"{name}: {one}; left out" for one in problems)]
    return [*notes, *(check_overlap(settings.data, settings.eval_data) if settings.eval_data else [])]
