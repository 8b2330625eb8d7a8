"""A run's settings as overrides of rLLM's configuration, in Hydra's grammar. A user's option wins over ours. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...engine.checkpoints import resolve_model
from ...errors import ConfigError
from ..launch import hydra_value, override_key, write_option

if TYPE_CHECKING:
    from .backend import RllmSettings

REMOTE = "rllm.remote_runtime."
_EPISODE_LOG_DIR = "rllm.episode_logging.episode_log_dir"
_MISPLACED = {f"{REMOTE}agentcore.session_timeout": f"{REMOTE}session_timeout"}
"""Keys that rLLM's users write in the wrong table."""
_SETTINGS = {
    f"{REMOTE}agentcore.agent_runtime_arn": "agent",
    f"{REMOTE}agentcore.s3_bucket": "store",
    f"{REMOTE}enabled": "backend",
    f"{REMOTE}backend": "backend",
    "rllm/backend": "trainer",
    _EPISODE_LOG_DIR: "output",
}
"""Keys that options may not change, each with the setting that decides it."""


def run_overrides(settings: RllmSettings, arn: str, store: str, experiment: str, rows: int) -> list[str]:
    """All overrides of a run, ours and the user's; `rows` is the number of data rows."""
    ours = {
        "rllm/backend": settings.trainer,
        **_remote_keys(settings, arn, store),
        **_loop_keys(settings, experiment, rows),
        **(_verl_keys(settings) if settings.trainer == "verl" else _tinker_keys(settings)),
    }
    merged = {override_key(name): f"{name}={hydra_value(value)}" for name, value in ours.items()}
    spelling = {override_key(name): name for name in ours}
    placed: dict[str, Any] = {}
    for given, value in _flatten(settings.options):
        key = override_key(given)
        name = _MISPLACED.get(key, key)
        if placed.setdefault(name, value) != value:
            raise ConfigError(f"{name} is given twice, as {placed[name]} and {value}", hint="leave one of them out")
        if name in _SETTINGS:
            if value != ours[name]:
                hint = f"set {_SETTINGS[name]}, and leave the option out"
                raise ConfigError(f"the option {name}={value} contradicts this run's {ours[name]}", hint=hint)
        elif given.startswith("~"):
            merged[name] = given if value is None else f"{given}={value}"
        else:
            merged[name] = write_option(spelling.get(name) or (name if key in _MISPLACED else given), value)
    return list(merged.values())


def _remote_keys(settings: RllmSettings, arn: str, store: str) -> dict[str, Any]:
    return {
        f"{REMOTE}enabled": True,
        f"{REMOTE}backend": "agentcore",
        f"{REMOTE}agentcore.agent_runtime_arn": arn,
        f"{REMOTE}agentcore.s3_bucket": store,
        f"{REMOTE}agentcore.tps_limit": _integer_if_whole(settings.tps_limit),
        f"{REMOTE}session_timeout": _integer_if_whole(settings.timeout),
        **({} if settings.agent.startswith("arn:") else {"rllm.gateway.host": "127.0.0.1"}),
    }


def _loop_keys(settings: RllmSettings, experiment: str, rows: int) -> dict[str, Any]:
    folder = settings.folder.resolve()
    validation = {"val_before_train": True} if settings.eval_data else {"val_before_train": False, "test_freq": -1}
    return {
        "rllm.data.train_batch_size": settings.rows_per_step,
        "rllm.data.seed": settings.seed,
        "rllm.trainer.total_batches": settings.steps,
        "rllm.trainer.total_epochs": math.ceil(settings.steps / max(1, rows // settings.rows_per_step)),
        "rllm.trainer.project_name": folder.name,
        "rllm.trainer.experiment_name": experiment,
        **{f"rllm.trainer.{name}": value for name, value in validation.items()},
        # Without it rLLM trains on a session that failed or timed out as if its reward had been 0.
        "rllm.compact_filtering.enable": True,
        "rllm.episode_logging.log_episodes": True,
        _EPISODE_LOG_DIR: str(folder),
        "hydra.run.dir": str(folder / "hydra"),
    }


def _verl_keys(settings: RllmSettings) -> dict[str, Any]:
    model = resolve_model(settings.model)
    return {
        "rllm.rollout.n": settings.n,
        "+model.name": model,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.actor.ppo_mini_batch_size": settings.rows_per_step,  # verl refuses more than a step has
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "trainer.default_local_dir": str(settings.folder.resolve() / "checkpoints"),
    }


def _tinker_keys(settings: RllmSettings) -> dict[str, Any]:
    return {
        "model.name": resolve_model(settings.model),
        "training.group_size": settings.n,
        "validation.group_size": 1,
        "training.default_local_dir": str(settings.folder.resolve() / "checkpoints"),
    }


def _flatten(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The tables of a file as dotted names."""
    for name, value in options.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _integer_if_whole(value: float) -> float:
    """rLLM's own files have integers here."""
    return int(value) if float(value).is_integer() else value
