"""verl as a backend: its settings, what is checked before a run, and launching stock verl."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...engine.checkpoints import resolve_model, verl_step
from ...errors import ConfigError
from ..base import Plan, require
from ..launch import run
from ..preflight import check
from ..settings import SavingSettings, option, refuse_env
from .agent_arn import Image
from .cpus import UNITS, here
from .environment import attention
from .figures import figures, prepare
from .overrides import CUSTOM, ENGINE, NAME, NEEDED, ROLLOUT, as_written, key_of, spelled

VERLS = {
    "data": "data.train_files",
    "eval_data": "data.val_files",
    "model": "actor_rollout_ref.model.path",
    "steps": "trainer.total_training_steps",
    "rows_per_step": "data.train_batch_size",
    "n": f"{ROLLOUT}.n",
    "seed": "data.seed",
    "temperature": f"{ROLLOUT}.temperature",
    "eval_every": "trainer.test_freq",
    "save_every": "trainer.save_freq",
    "keep": "trainer.max_actor_ckpt_to_keep",
    "resume": "trainer.resume_mode",
    "eval_samples": f"{ROLLOUT}.val_kwargs.n",
    "gpus": "trainer.n_gpus_per_node",
    "nodes": "trainer.nnodes",
    "workers": f"{ROLLOUT}.agent.num_workers",
    "engine": NAME,
}
"""Settings that verl has a key of its own for."""
EPOCHS = 1_000_000
"""verl ends at `trainer.total_epochs` too, 30 by default: more than any run has, so that `steps` alone ends it."""
LOCAL_DIR = "trainer.default_local_dir"
ADAPTERS = ("lora_rank", "lora.rank", "lora_adapter_path")
_MERGE = (
    "verl saves an adapter in its own format; for one that Transformers can load: python -m verl.model_merger merge "
    "--backend fsdp --local_dir CHECKPOINT/actor --target_dir FOLDER"
)
_LOOSE = ("max_batch_tokens",)  # verl asks for its batches row by row


@dataclass(frozen=True, kw_only=True)
class VerlSettings(SavingSettings):
    """A run of GRPO with verl. `options` are overrides of its configuration."""

    agent_name: str | None = option(None, "with container_uri: the runtime's name (default: agent)")
    container_uri: str | None = option(None, "make or update the runtime from this image in ECR")
    role_arn: str | None = option(None, "the role of a runtime that is made")
    engine: str = option(ENGINE, "which of verl's servers samples: vllm, sglang, trtllm")
    gpus: int = option(1, "GPUs of each node")
    nodes: int = option(1, "nodes of the Ray cluster")
    workers: int = option(1, "processes that run rollouts, each with a gateway of its own")

    at_least_one: ClassVar[tuple[str, ...]] = (*SavingSettings.at_least_one, "gpus", "nodes", "workers")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine not in ("vllm", "sglang", "trtllm"):
            raise ConfigError(f"engine is vllm, sglang or trtllm, not {self.engine!r}")
        for name in _LOOSE:
            if getattr(self, name) is not None:
                raise ConfigError(f"{name} can't be kept with verl", hint="set max_rollout_tokens")
        if self.workers > 1 and self.gateway_url and "{port}" not in self.gateway_url:
            hint = "write {port} in gateway_url, where each worker's port belongs, or set workers=1"
            raise ConfigError(f"{self.workers} workers can't have the one gateway_url {self.gateway_url}", hint=hint)
        if "{port}" in (self.gateway_url or "") and not self.gateway_port:
            raise ConfigError("gateway_url has {port}, but there is no gateway_port", hint="give the first one")

    @property
    def image(self) -> Image | None:
        """The image that the runtime is made from, if it is."""
        if self.container_uri is None:
            return None
        name = self.agent_name or self.agent
        if not name:
            raise ConfigError("container_uri makes a runtime, and it has no name", hint="give agent_name")
        return Image(name=name, uri=self.container_uri, role_arn=self.role_arn)

    @property
    def checkpoints(self) -> Path:
        """Where verl saves."""
        return Path(self._option(LOCAL_DIR) or self.folder / "checkpoints").resolve()

    @property
    def resumes(self) -> bool:
        """Whether verl continues from a checkpoint, if there is one."""
        mode = self._option(VERLS["resume"])
        return self.resume if mode is None else mode != "disable"

    @property
    def adapter(self) -> bool:
        """Whether verl trains an adapter. Its `hf_model` would then hold names that Transformers doesn't know."""
        asked = (self._option(f"actor_rollout_ref.model.{name}") for name in ADAPTERS)
        return any(value not in (None, "null", 0, "0", "") for value in asked)

    def _option(self, key: str) -> Any:
        return next((value for name, value in self.options.items() if key_of(name) == key), None)

    def ours(self) -> dict[str, Any]:
        """What the workers are told, beside verl's own configuration."""
        told = {"options", "output", *VERLS, *_LOOSE}
        values = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self) if spec.name not in told}
        defaults = {spec.name: spec.default for spec in dataclasses.fields(self)}
        changed = {name: value for name, value in values.items() if value != defaults[name] and value != {}}
        if self.agent and self.image is None and not self.agent.startswith("arn:"):
            changed["agent"] = str(Path(self.agent).resolve())  # the workers may be at home elsewhere
        return changed | {"output": str(self.folder.resolve())}

    def overrides(self) -> list[str]:
        """verl's configuration for this run; `options` have the last word, in Hydra's own words where they are text."""
        told = {key_of(name) for name in self.options}
        kept = {key: value for key, value in self._overrides().items() if not _covered(key_of(key), told)}
        ours = {f"{CUSTOM}.{name}": value for name, value in self.ours().items()}
        return [*spelled(kept | ours), *as_written(self.options)]

    def _overrides(self) -> dict[str, Any]:
        data = str(Path(self.data).resolve())
        held_out = str(Path(self.eval_data).resolve()) if self.eval_data else data
        known = {
            **NEEDED,
            **attention(),
            **self._for_cores(),
            **{key: getattr(self, name) for name, key in VERLS.items()},
        }
        known |= {
            "data.train_files": data,
            "data.val_files": held_out,
            "data.dataloader_num_workers": 0,
            "actor_rollout_ref.model.path": resolve_model(self.model),
            "actor_rollout_ref.actor.ppo_mini_batch_size": self.rows_per_step,
            "actor_rollout_ref.actor.use_dynamic_bsz": True,
            f"{ROLLOUT}.tensor_model_parallel_size": 1,
            "trainer.test_freq": (self.eval_every or self.steps) if self.eval_data else -1,
            "trainer.val_before_train": self.eval_data is not None,
            f"{ROLLOUT}.val_kwargs.do_sample": True,
            f"{ROLLOUT}.val_kwargs.temperature": self.temperature,
            f"{ROLLOUT}.val_kwargs.top_p": 1.0,
            f"{ROLLOUT}.val_kwargs.top_k": -1,
            "trainer.total_epochs": EPOCHS,
            "trainer.resume_mode": "auto" if self.resume else "disable",
            "trainer.max_critic_ckpt_to_keep": self.keep,
            "actor_rollout_ref.actor.checkpoint.save_contents": self._saved(),
            "trainer.project_name": "agentcore-rl",
            "trainer.experiment_name": self.folder.name,
            "trainer.logger": ["console"],
            LOCAL_DIR: str(self.checkpoints),
        }
        if self.context_limit is not None:
            half = self.context_limit // 2
            known |= {"data.max_prompt_length": half, "data.max_response_length": self.context_limit - half}
            known["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] = max(16384, self.context_limit)
        return known

    def _saved(self) -> list[str]:
        return ["model", "optimizer", "extra", *([] if self.adapter else ["hf_model"])]

    def _for_cores(self) -> dict[str, Any]:
        asked = self._option(UNITS)
        return here(self.gpus, self.nodes, asked if isinstance(asked, int) else None)


class VerlBackend:
    """verl, as a program of its own: `python -m verl.trainer.main_ppo`."""

    name = "verl"
    extra = "verl"
    settings = VerlSettings

    def plan(self, settings: VerlSettings) -> Plan:
        """Where verl is installed, its own configuration is composed and checked."""
        refuse_env(settings)
        _refuse_to_overwrite(settings)
        overrides = settings.overrides()
        notes = [*_checked(settings), *_composed(overrides), *([_MERGE] if settings.adapter else [])]
        command = (sys.executable, "-m", "verl.trainer.main_ppo", *overrides)
        shown = dataclasses.asdict(settings)
        return Plan(backend=self.name, settings=shown, command=command, notes=tuple(notes))

    def train(self, settings: VerlSettings) -> dict[str, Any]:
        require("verl", self.extra, "training with verl")
        plan, checkpoints = self.plan(settings), settings.checkpoints
        prepare(settings.folder, checkpoints, resumes=settings.resumes)
        began = time.monotonic()

        def look() -> dict[str, Any]:
            return {"seconds": round(time.monotonic() - began, 1), **figures(settings, checkpoints)}

        return run(plan, settings.folder, "verl", look)


BACKEND = VerlBackend()


def _covered(key: str, told: set[str]) -> bool:
    """Whether options set this key, or the table that it is in."""
    return any(key == one or key.startswith(f"{one}.") for one in told)


def _refuse_to_overwrite(settings: VerlSettings) -> None:
    if verl_step(settings.checkpoints) is not None and not settings.resumes:
        hint = "resume it (--resume), or choose another output"
        raise ConfigError(f"{settings.folder} has a run already", hint=hint)


def _checked(settings: VerlSettings) -> tuple[str, ...]:
    image = settings.image
    if image is None:
        return check(settings)
    spec = image.spec({"roleArn": "arn:aws:iam::000000000000:role/known-to-aws"})  # its name and its image
    arn = f"arn:aws:bedrock-agentcore:region:account:runtime/{spec.name}"
    _, *notes = check(dataclasses.replace(settings, agent=arn))
    return (f"agent: the runtime {spec.name}, made or updated from {spec.container_uri} when verl starts", *notes)


def _composed(overrides: Sequence[str]) -> list[str]:
    if importlib.util.find_spec("verl") is None:
        return ["verl is not installed here, so its configuration was not composed"]
    module = require("agentcore_rl_toolkit.backends.verl.compose", "verl", "checking verl's configuration")
    notes: list[str] = module.check(overrides)
    return notes
