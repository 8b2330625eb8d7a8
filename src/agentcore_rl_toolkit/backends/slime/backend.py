"""slime as a backend: its settings, what is checked before a run, and its start."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...errors import ConfigError
from ...rows import read_rows
from ..base import Plan, require
from ..launch import run
from ..preflight import check
from ..settings import RolloutSettings, option, refuse_env
from .checkout import Checkout, check_model
from .command import PLUGS, custom_config, flags, rendered
from .data import write_rows
from .setting_names import OTHER_NAMES, understood

_MEGATRON = "/root/Megatron-LM"  # where slime's image has it


@dataclass(frozen=True, kw_only=True)
class SlimeSettings(RolloutSettings):
    """A run with slime. `options` are its flags, and Megatron's and SGLang's."""

    model: str = option("", "the folder of a Hugging Face checkpoint", seed="model_dir")
    model_type: str = option("", "the name of slime's script for the model: qwen3-4B for scripts/models/qwen3-4B.sh")
    output: str = option("runs/slime", "where checkpoints, rollouts and slime's own files go")
    max_tokens: int | None = option(8192, "most tokens of one reply")
    rows_per_step: int = option(32, "data rows in a step")
    slime_dir: str | None = option(None, "slime's checkout (default: SLIME_DIR, or where Python finds it)")
    megatron_dir: str | None = option(None, f"Megatron-LM's checkout (default: MEGATRON_DIR, or {_MEGATRON})")
    ref_load: str | None = option(None, "a checkpoint in Megatron's format, for models whose own slime can't load")
    gpus: int = option(8, "GPUs of a node")
    nodes: int = option(1, "nodes that train")
    rollout_gpus: int | None = option(None, "GPUs that only sample (default: those that train do both in turn)")
    asynchronous: bool = option(False, "sample the next step while this one is trained; needs rollout_gpus")
    plug: str = option("rollout", f"where slime calls us: {' or '.join(PLUGS)}")
    ray_address: str | None = option(None, "a Ray cluster to join; `local` starts one (default: join one, or start it)")
    learning_rate: float = option(1e-6, "of the optimizer")
    max_tokens_per_gpu: int = option(9216, "tokens of a micro-batch on each GPU")
    save_every: int = option(20, "a checkpoint every so many steps")
    custom_config: Mapping[str, Any] = option({}, "further keys of slime's custom configuration")

    at_least_one: ClassVar[tuple[str, ...]] = (*RolloutSettings.at_least_one, "gpus", "nodes", "save_every")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plug not in PLUGS:
            raise ConfigError(f"plug is {' or '.join(PLUGS)}, not {self.plug!r}")
        if self.asynchronous and self.rollout_gpus is None:
            raise ConfigError("an asynchronous run samples on GPUs of its own", hint="give rollout_gpus")
        if self.temperature <= 0:
            raise ConfigError(f"temperature is above 0, not {self.temperature}", hint="0 is no policy to train")

    @classmethod
    def aliases(cls) -> dict[str, str]:
        """Further names of settings, each with ours."""
        return super().aliases() | OTHER_NAMES

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SlimeSettings:
        """Settings by any of their names, those of the first toolkit's runner among them."""
        return super().from_mapping(understood(values))

    @property
    def files(self) -> Path:
        """Where what slime reads is written."""
        return self.folder.resolve() / "slime"


class SlimeBackend:
    """slime, in processes of its own."""

    name = "slime"
    extra = "slime"
    settings = SlimeSettings

    def plan(self, settings: SlimeSettings) -> Plan:
        """Data, agent, model and flags are checked; GPUs, Megatron and SGLang are met when the run starts."""
        refuse_env(settings)
        notes = list(check(settings))
        checkout = Checkout.find(settings.slime_dir)
        model_flags = _model_flags(settings, checkout)
        _check_sizes(settings)
        told = flags(settings, *_data_files(settings), str(settings.files / "custom.yaml"))
        notes.append(f"slime: {checkout.folder}, model type {settings.model_type}")
        if left := checkout.check_flags(list(told)):
            notes.append(f"not flags of slime's own, left to Megatron: {', '.join('--' + name for name in left)}")
        notes.append(f"data: written for slime to {settings.files}")
        yaml = require("yaml", self.extra, "slime's custom configuration")
        return Plan(
            backend=self.name,
            settings=dataclasses.asdict(settings),
            command=(
                *(sys.executable, "-m", "agentcore_rl_toolkit.backends.slime.driver"),
                str(checkout.script(asynchronous=settings.asynchronous)),
                *model_flags,
                *rendered(told),
            ),
            environment=_environment(settings, checkout),
            files={str(settings.files / "custom.yaml"): yaml.safe_dump(custom_config(settings), sort_keys=False)},
            notes=tuple(notes),
        )

    def train(self, settings: SlimeSettings) -> dict[str, Any]:
        """Start slime, and wait for it."""
        plan = self.plan(settings)
        data, eval_data = _data_files(settings)
        write_rows(Path(data), read_rows(settings.data)[0])
        if settings.eval_data and eval_data:
            write_rows(Path(eval_data), read_rows(settings.eval_data)[0])
        return run(plan, settings.folder, "slime", lambda: _known(settings))


def _known(settings: SlimeSettings) -> dict[str, str]:
    """What the summary says beside how it ended."""
    places = {"checkpoints": "checkpoints", "rollouts_folder": "rollouts"}
    known = {name: str(settings.folder / place) for name, place in places.items()}
    return {"agent": settings.agent, "model": settings.model, **known}


def _model_flags(settings: SlimeSettings, checkout: Checkout) -> list[str]:
    if not settings.model_type:
        raise ConfigError("model_type is missing", hint="the name of a script in slime's scripts/models: qwen3-4B, …")
    told = checkout.model_flags(settings.model_type)
    check_model(Path(settings.model), told)
    return told


def _check_sizes(settings: SlimeSettings) -> None:
    """Refuse what Megatron can't be laid out for."""
    options = {name.removeprefix("--").replace("_", "-"): value for name, value in settings.options.items()}
    parts = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
    width = 1
    for name in parts:
        width *= int(options.get(name, 1))
    gpus = settings.gpus * settings.nodes
    if gpus % width:
        raise ConfigError(f"{gpus} GPUs are no multiple of {width}, the product of {', '.join(parts)}")
    updates = int(options.get("num-steps-per-rollout", 1))
    least = 2 * settings.rows_per_step // updates
    if least < gpus // width:
        hint = "more rows_per_step, or more parallelism within the model"
        raise ConfigError(
            f"an update may come down to {least} rollouts, and {gpus // width} parts of the data want one each",
            hint=hint,
        )


def _data_files(settings: SlimeSettings) -> tuple[str, str | None]:
    """Where the rows are written for slime."""
    held_out = str(settings.files / "held-out.jsonl") if settings.eval_data else None
    return str(settings.files / "data.jsonl"), held_out


def _environment(settings: SlimeSettings, checkout: Checkout) -> dict[str, str]:
    megatron = settings.megatron_dir or os.environ.get("MEGATRON_DIR") or _MEGATRON
    if settings.megatron_dir and not (Path(megatron) / "megatron").is_dir():
        raise ConfigError(f"{megatron} is no checkout of Megatron-LM", hint="megatron_dir has a folder megatron in it")
    paths = [str(checkout.folder), megatron, os.environ.get("PYTHONPATH", "")]
    told = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    return told | ({"RAY_ADDRESS": settings.ray_address} if settings.ray_address else {})


BACKEND = SlimeBackend()
