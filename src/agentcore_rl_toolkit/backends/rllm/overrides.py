"""A run's settings as the overrides of rLLM's configuration. Pure: nothing is imported, read or contacted.

Values are written in Hydra's grammar. A user's option wins over ours; a text among them is passed on as it was written,
as on Hydra's own command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.checkpoints import resolve_model
from ...errors import ConfigError
from .sessions import LOGGED, PLACE

if TYPE_CHECKING:
    from .backend import RllmSettings

REMOTE = "rllm.remote_runtime."
_MISPLACED = {f"{REMOTE}agentcore.session_timeout": f"{REMOTE}session_timeout"}
_SETTINGS = {
    f"{REMOTE}agentcore.agent_runtime_arn": "agent",
    f"{REMOTE}agentcore.s3_bucket": "store",
    f"{REMOTE}enabled": "backend",
    f"{REMOTE}backend": "backend",
    "rllm/backend": "trainer",
    PLACE: "output",
}
_PLAIN = re.compile(r"[A-Za-z_/][\w./:-]*")
_WORDS = frozenset({"true", "false", "null", "none", "nan", "inf", "yes", "no", "on", "off"})


def overrides(settings: RllmSettings, arn: str, store: str, exp_id: str, rows: int) -> list[str]:
    """All overrides of a run, ours and the user's; `rows` is how many rows the data has."""
    ours = {
        "rllm/backend": settings.trainer,
        **_remote(settings, arn, store),
        **_loop(settings, exp_id, rows),
        **(_verl(settings) if settings.trainer == "verl" else _tinker(settings)),
    }
    written = {name: f"{name}={hydra_value(value)}" for name, value in ours.items()}
    return list(_merged(ours, written, settings.options).values())


def hydra_value(value: Any) -> str:
    """A value in Hydra's grammar.

    >>> hydra_value("runs/my run"), hydra_value([1, None, "it's"]), hydra_value("a/b.c"), hydra_value("true")
    ("'runs/my run'", "[1,null,'it\\\\'s']", 'a/b.c', "'true'")
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (int, float)):
        return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{hydra_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(hydra_value(one) for one in value) + "]"
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} can't be an option of rLLM", hint="give numbers, texts, lists and tables")
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    # Hydra takes backslashes as they are, except before a quote.
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value) + "'"


def _remote(settings: RllmSettings, arn: str, store: str) -> dict[str, Any]:
    return {
        f"{REMOTE}enabled": True,
        f"{REMOTE}backend": "agentcore",
        f"{REMOTE}agentcore.agent_runtime_arn": arn,
        f"{REMOTE}agentcore.s3_bucket": store,
        f"{REMOTE}agentcore.tps_limit": settings.tps_limit,
        f"{REMOTE}session_timeout": settings.timeout,
        **({} if settings.agent.startswith("arn:") else {"rllm.gateway.host": "127.0.0.1"}),
    }


def _loop(settings: RllmSettings, exp_id: str, rows: int) -> dict[str, Any]:
    folder = settings.folder.resolve()
    held_out = {"val_before_train": True} if settings.eval_data else {"val_before_train": False, "test_freq": -1}
    return {
        "rllm.data.train_batch_size": settings.rows_per_step,
        "rllm.data.seed": settings.seed,
        "rllm.trainer.total_batches": settings.steps,
        "rllm.trainer.total_epochs": math.ceil(settings.steps / max(1, rows // settings.rows_per_step)),
        "rllm.trainer.project_name": folder.name,
        "rllm.trainer.experiment_name": exp_id,
        **{f"rllm.trainer.{name}": value for name, value in held_out.items()},
        # Without it rLLM trains on a session that broke or ran out of time as if its reward had been 0.
        "rllm.compact_filtering.enable": True,
        LOGGED: True,
        PLACE: str(folder),
        "hydra.run.dir": str(folder / "hydra"),
    }


def _verl(settings: RllmSettings) -> dict[str, Any]:
    model = resolve_model(settings.model)
    return {
        "rllm.rollout.n": settings.n,
        "+model.name": model,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.actor.ppo_mini_batch_size": settings.rows_per_step,  # verl refuses more than a step has
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "trainer.default_local_dir": _checkpoints(settings.folder),
    }


def _tinker(settings: RllmSettings) -> dict[str, Any]:
    return {
        "model.name": resolve_model(settings.model),
        "training.group_size": settings.n,
        "validation.group_size": 1,
        "training.default_local_dir": _checkpoints(settings.folder),
    }


def _checkpoints(folder: Path) -> str:
    return str(folder.resolve() / "checkpoints")


def _merged(ours: Mapping[str, Any], written: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, str]:
    """Ours by name, each replaced by what the user says of it; then the user's others."""
    result = {_bare(name): text for name, text in written.items()}
    spelled = {_bare(name): name for name in written}
    placed: dict[str, Any] = {}
    for given, value in _flat(options):
        name = _MISPLACED.get(_bare(given), _bare(given))
        if placed.setdefault(name, value) != value:
            raise ConfigError(f"{name} is given twice, as {placed[name]} and {value}", hint="leave one of them out")
        if name in _SETTINGS:
            _refuse(name, value, ours[name])
        elif given.startswith("~"):
            result[name] = given if value is None else f"{given}={value}"
        else:
            key = spelled.get(name) or (name if _bare(given) in _MISPLACED else given)
            result[name] = f"{key}={value if isinstance(value, str) else hydra_value(value)}"
    return result


def _refuse(name: str, value: Any, ours: Any) -> None:
    if value != ours:
        hint = f"set {_SETTINGS[name]}, and leave the option out"
        raise ConfigError(f"the option {name}={value} contradicts this run's {ours}", hint=hint)


def _flat(options: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Tables of a file as dotted names."""
    for name, value in options.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _bare(name: str) -> str:
    return name.lstrip("+~")
