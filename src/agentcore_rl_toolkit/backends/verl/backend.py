"""verl as a backend: its settings, the checks before a run, and the start of stock verl."""

from __future__ import annotations

import dataclasses
import json
import logging
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...common.checked_settings import option
from ...deploy.aws.calls import Aws
from ...deploy.aws.runtime_control import RuntimeControl, RuntimeSpec
from ...engine.checkpoints import ADAPTER_FOLDER, resolve_model, verl_step
from ...errors import AgentCoreRLError, ConfigError
from ...rollout.run_folder.run_lock import locked_run
from ...rollout.run_folder.run_writer import describe_run
from ..base import TrainingPlan, check_settings, describe_settings, is_installed, require, runs_on_aws
from ..launch import override_key, run_trainer
from ..settings import SavingSettings
from .figures import StepWatch, check_trained, remove_stale_files, run_figures
from .overrides import ADAPTER_KEYS, DEFAULT_ENGINE, LOCAL_DIR, SETTINGS, run_overrides, trains_adapter

logger = logging.getLogger(__name__)
_ON_NODE = (
    "gateway: each worker's is at its node's own address, which sessions in the cluster's VPC reach; for others give "
    "gateway_public_url"
)
_CONVERTED = "verl saves an adapter in its own format; when it ends, the newest one is converted for Transformers"


@dataclass(frozen=True, kw_only=True)
class RuntimeImage:
    """A runtime to create or update from an image in ECR. An existing runtime keeps its role."""

    name: str
    uri: str
    role_arn: str | None = None

    def spec(self, existing: Mapping[str, Any]) -> RuntimeSpec:
        """The existing runtime with this image; `existing` is AWS's description, empty if the runtime doesn't exist."""
        role = self.role_arn or existing.get("roleArn")
        if role is None:
            hint = "give role_arn once, or create the runtime with agentcore-rl deploy"
            raise ConfigError(f"the runtime {self.name} doesn't exist yet, and needs a role", hint=hint)
        network = (existing.get("networkConfiguration") or {}).get("networkModeConfig") or {}
        return RuntimeSpec(
            name=self.name,
            container_uri=self.uri,
            role_arn=role,
            environment=existing.get("environmentVariables") or {},
            subnets=tuple(network.get("subnets") or ()),
            security_groups=tuple(network.get("securityGroups") or ()),
        )

    def deploy(self, **waiting: float) -> str:
        """Create or update the runtime, and return its ARN when it is ready; `waiting` is for `RuntimeControl`."""
        with closing(Aws()) as aws:
            control = RuntimeControl(aws, **waiting)
            return control.apply(self.spec(control.find(self.name) or {})).arn


@dataclass(frozen=True, kw_only=True, repr=False)
class VerlSettings(SavingSettings):
    """A run of GRPO with verl. `options` are overrides of its configuration."""

    agent_name: str | None = option(None, "with container_uri: the runtime's name (default: agent)")
    container_uri: str | None = option(None, "create or update the runtime from this image in ECR")
    role_arn: str | None = option(None, "the role of a new runtime")
    engine: str = option(DEFAULT_ENGINE, "the one of verl's servers that samples: vllm, sglang, trtllm")
    gpus: int = option(1, "GPUs per node")
    nodes: int = option(1, "nodes of the Ray cluster")
    workers: int = option(1, "processes that run rollouts, each with its own gateway")

    at_least_one: ClassVar[tuple[str, ...]] = (*SavingSettings.at_least_one, "gpus", "nodes", "workers")
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"engine": ("vllm", "sglang", "trtllm")}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_batch_tokens is not None:
            hint = "set max_rollout_tokens"
            raise ConfigError("verl can't keep max_batch_tokens, because it draws batches row by row", hint=hint)
        url = self.gateway_public_url or ""
        if self.workers > 1 and url and "{port}" not in url:
            hint = "write {port} in gateway_public_url for each worker's port, or set workers=1"
            raise ConfigError(f"{self.workers} workers can't share the gateway_public_url {url}", hint=hint)
        if "{port}" in url and not self.gateway_port:
            raise ConfigError("gateway_public_url has {port}, but gateway_port is not set", hint="give the first port")

    @property
    def image(self) -> RuntimeImage | None:
        """The image that the runtime is created from, if it is."""
        if self.container_uri is None:
            return None
        name = self.agent_name or self.agent
        if not name:
            raise ConfigError("container_uri creates a runtime, which needs a name", hint="give agent_name")
        return RuntimeImage(name=name, uri=self.container_uri, role_arn=self.role_arn)

    @property
    def listens_on_node(self) -> bool:
        """Whether each worker's gateway is at its node's own address, if sessions run on AWS: no setting says where."""
        return self.gateway_public_url is None and self.gateway_url is None and self.gateway_host == "127.0.0.1"

    @property
    def session_host(self) -> str | None:
        return "{host}" if self.listens_on_node else super().session_host

    @property
    def checkpoints(self) -> Path:
        """The folder of verl's checkpoints."""
        return Path(self.verl_value(LOCAL_DIR) or self.folder / "checkpoints").resolve()

    @property
    def resumes(self) -> bool:
        """Whether verl continues from a checkpoint, if there is one."""
        mode = self.verl_value(SETTINGS["resume"])
        return self.resume if mode is None else mode != "disable"

    @property
    def trains_adapter(self) -> bool:
        """Whether verl trains an adapter. Transformers could not load its `hf_model` then."""
        return trains_adapter({key: self.verl_value(key) for key in ADAPTER_KEYS})

    def verl_value(self, key: str) -> Any:
        """The user's value for one of verl's keys; None if `options` don't set it."""
        return next((value for name, value in self.options.items() if override_key(name) == key), None)


class VerlBackend:
    """verl, as a separate program: `python -m verl.trainer.main_ppo`."""

    name = "verl"
    extra = "verl"
    settings = VerlSettings

    def plan(self, settings: VerlSettings) -> TrainingPlan:
        """If verl is installed, composes and checks its own configuration."""
        if verl_step(settings.checkpoints) is not None and not settings.resumes:
            hint = "resume it (--resume), or choose another output"
            raise ConfigError(f"{settings.folder} has a run already", hint=hint)
        overrides = run_overrides(settings)
        notes = [*_check(settings), *_check_overrides(overrides), *([_CONVERTED] if settings.trains_adapter else [])]
        return TrainingPlan(
            backend=self.name,
            settings=dataclasses.asdict(settings),
            command=(sys.executable, "-m", "verl.trainer.main_ppo", *overrides),
            session_env=settings.env,
            notes=tuple(notes),
        )

    def train(self, settings: VerlSettings) -> dict[str, Any]:
        require("verl", self.extra, "training with verl")
        plan = self.plan(settings)
        with locked_run(settings.folder):
            return self._train(settings, plan)

    def _train(self, settings: VerlSettings, plan: TrainingPlan) -> dict[str, Any]:
        checkpoints = settings.checkpoints
        remove_stale_files(settings.folder, checkpoints, resumes=settings.resumes)
        describe_run(settings.folder, backend=self.name, processes=settings.workers, **describe_settings(settings))
        began = time.monotonic()
        watch = StepWatch(settings)

        def figures() -> dict[str, Any]:
            watch.finish()
            if settings.trains_adapter:
                convert_adapter(checkpoints, resolve_model(settings.model))
            return {"seconds": round(time.monotonic() - began, 1), **run_figures(settings, checkpoints)}

        with watch:
            try:
                summary = run_trainer(plan, settings.folder, "verl", figures, lambda: watch.problem)
            except AgentCoreRLError as error:
                if watch.problem is None:
                    check_trained(settings, str(error).splitlines()[0])
                raise
        check_trained(settings, "verl has ended")
        return summary


BACKEND = VerlBackend()


def convert_adapter(checkpoints: Path, base: str) -> None:
    """Convert the adapter of the newest checkpoint to `actor/lora_adapter`, a folder that Transformers can load.

    verl's own converter also writes the base model, without the adapter, which is removed again.
    """
    actor = checkpoints / f"global_step_{verl_step(checkpoints)}" / "actor"
    made, kept = actor / "converted", actor / ADAPTER_FOLDER
    if kept.exists() or not (actor / "lora_train_meta.json").is_file():
        return
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(actor), "--target_dir", str(made)]
    done = subprocess.run(command, capture_output=True, text=True)
    folder = str(Path(base).resolve()) if Path(base).is_dir() else base
    try:
        adapter = made / ADAPTER_FOLDER
        config = json.loads((adapter / "adapter_config.json").read_text())
        config |= {"base_model_name_or_path": folder, "inference_mode": True}
        (adapter / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        for path in (actor / "huggingface").iterdir():  # the tokenizer
            if path.is_file() and path.name not in ("config.json", "generation_config.json"):
                shutil.copy(path, adapter)
        adapter.rename(kept)
    except (OSError, ValueError):
        told = f"{shlex.join(command)}\n{done.stderr[-2000:]}"
        logger.warning("the adapter of %s could not be converted for Transformers: %s", actor, told)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check(settings: VerlSettings) -> tuple[str, ...]:
    image = settings.image
    if image is None:
        near = (_ON_NODE,) if settings.listens_on_node and runs_on_aws(settings.agent) else ()
        return (*check_settings(settings), *near)
    spec = image.spec({"roleArn": "arn:aws:iam::000000000000:role/known-to-aws"})  # checks the name and the image
    arn = f"arn:aws:bedrock-agentcore:region:account:runtime/{spec.name}"
    _, *notes = _check(dataclasses.replace(settings, agent=arn, container_uri=None))
    return (f"agent: the runtime {spec.name}, created or updated from {spec.container_uri} when verl starts", *notes)


def _check_overrides(overrides: Sequence[str]) -> list[str]:
    if not is_installed("verl"):
        return ["verl is not installed here, so its configuration was not composed"]
    module = require("agentcore_rl_toolkit.backends.verl.compose", "verl", "checking verl's configuration")
    notes: list[str] = module.check_overrides(overrides)
    return notes
