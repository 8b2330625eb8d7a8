"""slime as a backend: its settings, the checks before a run, its start, and `SlimeRunner`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...common.checked_settings import option
from ...common.object_repr import object_repr
from ...errors import ConfigError
from ...rollout.run_folder.process_totals import read_totals, remove_totals
from ...rollout.signal.rescore import load_reward
from ...rollout.signal.scorer import Scorer
from ...rows import read_rows, row_title
from ..base import TrainingPlan, check_settings, require
from ..launch import run_trainer
from ..settings import RolloutSettings
from .checkout import Checkout, check_model
from .flags import ALIASES, HOOKS, custom_config, flag_name, flags, move_flags_to_options, write_flags

_MEGATRON = "/root/Megatron-LM"  # its place in slime's image
_PARALLEL_SIZES = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")


@dataclass(frozen=True, kw_only=True, repr=False)
class SlimeSettings(RolloutSettings):
    """A run with slime. `options` are its flags, and Megatron's and SGLang's."""

    model: str = option("", "the folder of a Hugging Face checkpoint", alias="model_dir")
    model_type: str = option("", "the name of slime's script for the model: qwen3-4B for scripts/models/qwen3-4B.sh")
    output: str = option("runs/slime", "the folder for checkpoints, rollouts and slime's own files")
    max_tokens: int | None = option(8192, "the most tokens in one completion")
    rows_per_step: int = option(32, "data rows per step")
    slime_dir: str | None = option(None, "slime's checkout (default: SLIME_DIR, or the one that Python finds)")
    megatron_dir: str | None = option(None, f"Megatron-LM's checkout (default: MEGATRON_DIR, or {_MEGATRON})")
    ref_load: str | None = option(None, "a checkpoint in Megatron's format, if slime can't load the model's own")
    gpus: int = option(8, "GPUs per node")
    nodes: int = option(1, "nodes that train")
    rollout_gpus: int | None = option(None, "GPUs that only sample (default: the training GPUs do both in turn)")
    asynchronous: bool = option(False, "sample the next step during training; needs rollout_gpus")
    hook: str = option("rollout", f"the hook that slime calls: {' or '.join(HOOKS)}")
    ray_address: str | None = option(None, "a Ray cluster to join; `local` starts one (default: join one, or start it)")
    learning_rate: float = option(1e-6, "the learning rate of the optimizer")
    max_tokens_per_gpu: int = option(9216, "tokens of a micro-batch on each GPU")
    save_every: int = option(20, "save a checkpoint every N steps")
    custom_config: Mapping[str, Any] = option({}, "further keys of slime's custom configuration")

    at_least_one: ClassVar[tuple[str, ...]] = (*RolloutSettings.at_least_one, "gpus", "nodes", "save_every")
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"hook": tuple(HOOKS)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.asynchronous and self.rollout_gpus is None:
            raise ConfigError("an asynchronous run needs GPUs that only sample", hint="give rollout_gpus")
        if self.turn_credit is not None and self.hook == "generate":
            hint = "leave hook out, or set credit=rollout"
            raise ConfigError("credit=turn compares groups, which with hook=generate slime's own loop forms", hint=hint)

    @classmethod
    def aliases(cls) -> dict[str, str]:
        return super().aliases() | ALIASES

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SlimeSettings:
        """Make settings from any of their names, those of the first toolkit's runner included."""
        return super().from_mapping(move_flags_to_options(values))

    @property
    def files(self) -> Path:
        """The folder of the files that slime reads."""
        return self.folder.resolve() / "slime"

    @property
    def data_file(self) -> Path:
        return self.files / "data.jsonl"

    @property
    def eval_file(self) -> Path:
        return self.files / "held-out.jsonl"


class SlimeBackend:
    """slime, in separate processes."""

    name = "slime"
    extra = "slime"
    settings = SlimeSettings

    def plan(self, settings: SlimeSettings) -> TrainingPlan:
        """Checks data, agent, model and flags; GPUs, Megatron and SGLang are checked only by the run itself."""
        notes = list(check_settings(settings))
        if settings.hook == "generate" and settings.reward and Scorer(load_reward(settings.reward)).ranks:
            hint = "leave hook out, or give a reward of one rollout"
            raise ConfigError(f"{settings.reward} ranks groups, which with hook=generate slime forms", hint=hint)
        checkout = Checkout.find(settings.slime_dir)
        if not settings.model_type:
            raise ConfigError("model_type is missing", hint="give the name of a script in slime's scripts/models")
        model_flags = checkout.model_flags(settings.model_type)
        check_model(Path(settings.model), model_flags)
        _check_sizes(settings)
        config = settings.files / "custom.yaml"
        ours = flags(settings, config)
        notes.append(f"slime: {checkout.folder}, model type {settings.model_type}")
        if left := checkout.check_flags(list(ours)):
            if "custom-advantage-function-path" in left:
                hint = "update slime (the flag is of April 2026), or set credit=rollout"
                problem = f"{checkout.folder} can't train on turns: it has no --custom-advantage-function-path"
                raise ConfigError(problem, hint=hint)
            notes.append(f"not flags of slime's own, left to Megatron: {', '.join('--' + name for name in left)}")
        notes.append(f"data: written for slime to {settings.files}")
        yaml = require("yaml", self.extra, "slime's custom configuration")
        return TrainingPlan(
            backend=self.name,
            settings=dataclasses.asdict(settings),
            command=(
                *(sys.executable, "-m", "agentcore_rl_toolkit.backends.slime.driver"),
                str(checkout.script(asynchronous=settings.asynchronous)),
                *model_flags,
                *write_flags(ours),
            ),
            environment=_environment(settings, checkout),
            files={str(config): yaml.safe_dump(custom_config(settings), sort_keys=False)},
            session_env=settings.env,
            notes=tuple(notes),
        )

    def train(self, settings: SlimeSettings) -> dict[str, Any]:
        plan = self.plan(settings)
        write_rows(settings.data_file, read_rows(settings.data)[0])
        if settings.eval_data:
            write_rows(settings.eval_file, read_rows(settings.eval_data)[0])
        folders = {"checkpoints": "checkpoints", "rollouts_folder": "rollouts"}
        places = {name: str(settings.folder / folder) for name, folder in folders.items()}
        remove_totals(settings.folder)

        def figures() -> dict[str, Any]:
            totals = read_totals(settings.folder)
            known = {"not_trained_on": totals.causes.figures(), "used": totals.used}
            return {"agent": settings.agent, "model": settings.model, **places, **known}

        return run_trainer(plan, settings.folder, "slime", figures)


BACKEND = SlimeBackend()


class SlimeRunner:
    """Trains an agent with slime.

        runner = SlimeRunner(
            agent_runtime_arn=…, s3_bucket=…, exp_id=…, model_dir=…, data_path=…, model_type="qwen3-4B"
        )
        runner.train(num_rollout=200)

    Takes every setting of `SlimeSettings`, by our name, slime's, or that of the first toolkit's runner.
    """

    def __init__(self, **settings: Any) -> None:
        SlimeSettings.from_mapping(settings)  # refuse mistakes here, not in `train`
        self._given = settings

    def __repr__(self) -> str:
        return object_repr(self, self.settings())

    @classmethod
    def from_yaml(cls, path: str | Path) -> SlimeRunner:
        """Read the settings of a YAML file; its paths are relative to the working directory."""
        yaml = require("yaml", BACKEND.extra, "SlimeRunner.from_yaml")
        try:
            values = yaml.safe_load(Path(path).read_text())
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror}") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not YAML: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{path} has no settings", hint="write: agent_runtime_arn: …")
        values.pop("backend", None)
        return cls(**values)

    def settings(self, **changes: Any) -> SlimeSettings:
        """The settings of a run, with changes."""
        ours = SlimeSettings.aliases()
        changed = {ours.get(name, name) for name in changes}
        kept = {name: value for name, value in self._given.items() if ours.get(name, name) not in changed}
        return SlimeSettings.from_mapping(kept | changes)

    def plan(self, **changes: Any) -> TrainingPlan:
        """Describe what `train` would start, after all checks that need no GPU. Starts and writes nothing."""
        return BACKEND.plan(self.settings(**changes))

    def train(self, **changes: Any) -> dict[str, Any]:
        """Train and return the run's summary. A failed run raises `AgentCoreRLError`."""
        return BACKEND.train(self.settings(**changes))


def _check_sizes(settings: SlimeSettings) -> None:
    """Refuse sizes that Megatron can't lay out."""
    options = {flag_name(name): value for name, value in settings.options.items()}
    width = 1
    for name in _PARALLEL_SIZES:
        width *= int(options.get(name, 1))
    gpus = settings.gpus * settings.nodes
    if gpus % width:
        raise ConfigError(f"{gpus} GPUs must be a multiple of {width}, the product of {', '.join(_PARALLEL_SIZES)}")
    least = 2 * settings.rows_per_step // int(options.get("num-steps-per-rollout", 1))
    if least < gpus // width:
        hint = "raise rows_per_step, or the parallelism within the model"
        raise ConfigError(
            f"an update may have only {least} rollouts, and each of {gpus // width} data-parallel ranks needs one",
            hint=hint,
        )


def _environment(settings: SlimeSettings, checkout: Checkout) -> dict[str, str]:
    megatron = settings.megatron_dir or os.environ.get("MEGATRON_DIR") or _MEGATRON
    if settings.megatron_dir and not (Path(megatron) / "megatron").is_dir():
        hint = "megatron_dir must contain the folder megatron"
        raise ConfigError(f"{megatron} is not a checkout of Megatron-LM", hint=hint)
    paths = [str(checkout.folder), megatron, os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    return variables | ({"RAY_ADDRESS": settings.ray_address} if settings.ray_address else {})


def slime_row(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A payload as slime reads it.

    slime only shows the prompt. It is a list of messages because slime insists on one for vision models.

    >>> slime_row({"prompt": "2+2?", "answer": "4"})["metadata"]
    {'prompt': '2+2?', 'answer': '4'}
    """
    return {"prompt": [{"role": "user", "content": row_title(payload)}], "metadata": dict(payload)}


def write_rows(path: Path, payloads: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(slime_row(payload)) + "\n" for payload in payloads))
