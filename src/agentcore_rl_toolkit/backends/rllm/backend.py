"""rLLM as a backend: its settings, what is checked before a run, and the command that a run is."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from ...engine.tiny import NAME as TINY
from ...errors import ConfigError
from ...rows import read_rows
from ...store import open_store
from ...types import RolloutId
from ..base import Plan
from ..launch import run
from ..preflight import check, on_aws
from ..settings import TrainSettings, option, refuse_env
from .check import INSTALL, check_overrides, is_installed
from .data import check_ids, dataset_name
from .overrides import overrides
from .sessions import Sessions

TRAINERS = ("verl", "tinker")


@dataclass(frozen=True, kw_only=True)
class RllmSettings(TrainSettings):
    """A run with rLLM. `options` are overrides of its configuration."""

    trainer: str = option("verl", "what rLLM trains with: verl (your GPUs) or tinker (a service)")
    dataset: str | None = option(None, "what rLLM knows the rows as (default: agentcore_ and the file's name)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trainer not in TRAINERS:
            raise ConfigError(f"trainer is verl or tinker, not {self.trainer!r}")
        if self.tps_limit <= 0 or self.timeout <= 0:
            raise ConfigError("tps_limit and timeout must be above 0")
        if self.sqs_url:
            raise ConfigError("rLLM's adapter takes no sqs_url", hint="leave it out: results are found in the store")


class RllmBackend:
    """rLLM, in a process of its own."""

    name = "rllm"
    extra = "rllm"
    settings = RllmSettings

    def plan(self, settings: RllmSettings) -> Plan:
        """Everything is checked but AWS, and but rLLM's own configuration where it is not installed."""
        refuse_env(settings)
        _check_files(settings)
        notes = [*check(settings), *_notes(settings)]
        exp_id = settings.exp_id or f"{settings.folder.resolve().name}-{time.strftime('%Y%m%d-%H%M%S')}"
        RolloutId(exp_id, "check", "check")
        store = _store(settings)
        written = overrides(settings, _arn(settings), store, exp_id, len(read_rows(settings.data)[0]))
        notes += check_overrides(settings.trainer, written)
        return Plan(
            backend=self.name,
            settings=dataclasses.asdict(settings),
            command=(sys.executable, "-m", f"{__package__}.main", *_arguments(settings, store), "--", *written),
            notes=tuple(notes),
        )

    def train(self, settings: RllmSettings) -> dict[str, Any]:
        plan = self.plan(settings)
        for module in ("rllm", settings.trainer):
            if not is_installed(module):
                raise ImportError(f"{module} is not installed\nhint: {INSTALL.format(trainer=settings.trainer)}")
        if settings.trainer == "tinker" and "TINKER_API_KEY" not in os.environ:
            raise ConfigError("TINKER_API_KEY is not set", hint="export the key of your Tinker account")
        found = Sessions()
        summary = run(plan, settings.folder, "rLLM", lambda: found.read(settings.folder))
        if not summary["interrupted"]:
            found.check(settings.folder)
        return summary


def _check_files(settings: RllmSettings) -> None:
    for name, path in (("data", settings.data), ("eval_data", settings.eval_data)):
        if path == "-":
            raise ConfigError(f"{name} must be a file", hint="rLLM reads it in a process of its own")
        if path:
            check_ids(path, read_rows(path)[0])
    if settings.trainer == "tinker" and settings.model == TINY and "tinker_base_url" not in settings.options:
        hint = "give model: one that Tinker has, such as Qwen/Qwen3-4B-Instruct-2507"
        raise ConfigError("Tinker doesn't have the built-in policy", hint=hint)


def _notes(settings: RllmSettings) -> list[str]:
    if on_aws(settings.agent):
        return ["sessions on AWS call rLLM's gateway: if this machine's address is not theirs, set rllm.gateway.tunnel"]
    return []


def _arn(settings: RllmSettings) -> str:
    """The agent's ARN, that of a path being the local runtime's."""
    if settings.agent.startswith("arn:"):
        from ...runtime.aws import AgentCoreRuntime

        return AgentCoreRuntime(settings.agent).arn
    from ...runtime.local import AgentSource

    return AgentSource.parse(settings.agent).arn


def _store(settings: RllmSettings) -> str:
    """Where results land. A folder says that they are there; a bucket is asked again and again."""
    store = settings.store or str(settings.folder / "results")
    if "/" in store and not store.startswith(("s3:", "file:")):
        store = os.path.abspath(store)
    open_store(store).close()
    return store


def _arguments(settings: RllmSettings, store: str) -> list[str]:
    name = settings.dataset or dataset_name(settings.data)
    given = ["--trainer", settings.trainer, "--dataset", name, "--data", os.path.abspath(settings.data)]
    if settings.eval_data:
        given += ["--eval-data", os.path.abspath(settings.eval_data)]
    if not settings.agent.startswith("arn:"):
        given += ["--agent", settings.agent, "--buckets", str(settings.folder.resolve() / "buckets"), "--store", store]
        given += [word for address in settings.allow for word in ("--allow", address)]
        given += ["--memory-mb", str(settings.memory_mb)] if settings.memory_mb is not None else []
    return given


BACKEND = RllmBackend()
