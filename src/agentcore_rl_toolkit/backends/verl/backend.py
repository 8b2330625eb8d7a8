"""verl as a backend: its settings, what is checked before a run, and launching stock verl."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...checkpoints import resolve_model
from ...errors import ConfigError
from ..base import Plan, require
from ..checks import check
from ..launch import run
from ..settings import RolloutSettings, option, refuse_env
from .agent import Image
from .cpus import UNITS, here
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
    "eval_samples": f"{ROLLOUT}.val_kwargs.n",
    "gpus": "trainer.n_gpus_per_node",
    "nodes": "trainer.nnodes",
    "workers": f"{ROLLOUT}.agent.num_workers",
    "engine": NAME,
}
"""Settings that verl has a key of its own for."""
_LOOSE = ("max_batch_tokens",)  # verl asks for its batches row by row


@dataclass(frozen=True, kw_only=True)
class VerlSettings(RolloutSettings):
    """A run of GRPO with verl. `options` are overrides of its configuration."""

    agent_name: str | None = option(None, "with container_uri: the runtime's name (default: agent)")
    container_uri: str | None = option(None, "make or update the runtime from this image in ECR")
    role_arn: str | None = option(None, "the role of a runtime that is made")
    engine: str = option(ENGINE, "which of verl's servers samples: vllm, sglang, trtllm")
    gpus: int = option(1, "GPUs of each node")
    nodes: int = option(1, "nodes of the Ray cluster")
    workers: int = option(1, "processes that run rollouts, each with a gateway of its own")

    at_least_one: ClassVar[tuple[str, ...]] = (*RolloutSettings.at_least_one, "gpus", "nodes", "workers")

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
        kept = {key: value for key, value in self._overrides().items() if key not in told}
        ours = {f"{CUSTOM}.{name}": value for name, value in self.ours().items()}
        return [*spelled(kept | ours), *as_written(self.options)]

    def _overrides(self) -> dict[str, Any]:
        data = str(Path(self.data).resolve())
        held_out = str(Path(self.eval_data).resolve()) if self.eval_data else data
        known = {**NEEDED, **self._for_cores(), **{key: getattr(self, name) for name, key in VERLS.items()}}
        known |= {
            "data.train_files": data,
            "data.val_files": held_out,
            "data.dataloader_num_workers": 0,
            "actor_rollout_ref.model.path": resolve_model(self.model),
            "actor_rollout_ref.actor.ppo_mini_batch_size": self.rows_per_step,
            "actor_rollout_ref.actor.use_dynamic_bsz": True,
            f"{ROLLOUT}.tensor_model_parallel_size": 1,
            "trainer.test_freq": self.eval_every or -1,
            "trainer.val_before_train": self.eval_data is not None,
            "trainer.project_name": "agentcore-rl",
            "trainer.experiment_name": self.folder.name,
            "trainer.logger": ["console"],
            "trainer.default_local_dir": str((self.folder / "checkpoints").resolve()),
        }
        if self.context_limit is not None:
            half = self.context_limit // 2
            known |= {"data.max_prompt_length": half, "data.max_response_length": self.context_limit - half}
            known["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] = max(16384, self.context_limit)
        return known

    def _for_cores(self) -> dict[str, Any]:
        asked = next((value for name, value in self.options.items() if key_of(name) == UNITS), None)
        return here(self.gpus, self.nodes, asked if isinstance(asked, int) else None)


class VerlBackend:
    """verl, as a program of its own: `python -m verl.trainer.main_ppo`."""

    name = "verl"
    extra = "verl"
    settings = VerlSettings

    def plan(self, settings: VerlSettings) -> Plan:
        """Where verl is installed, its own configuration is composed and checked."""
        refuse_env(settings)
        overrides = settings.overrides()
        notes = [*_checked(settings), *_composed(overrides)]
        command = (sys.executable, "-m", "verl.trainer.main_ppo", *overrides)
        shown = dataclasses.asdict(settings)
        return Plan(backend=self.name, settings=shown, command=command, notes=tuple(notes))

    def train(self, settings: VerlSettings) -> dict[str, Any]:
        require("verl", self.extra, "training with verl")
        return run(self.plan(settings), settings.folder, "verl")


BACKEND = VerlBackend()


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
