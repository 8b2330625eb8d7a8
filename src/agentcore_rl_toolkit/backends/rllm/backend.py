"""rLLM as a backend: its settings, the checks before a run, its start, and the count of its failed sessions."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...common.checked_settings import option
from ...engine.tiny import NAME as TINY
from ...errors import AgentCoreRLError, ConfigError
from ...rows import absolute_source, read_rows
from ...store import open_store
from ...types import RolloutId
from ..base import TrainingPlan, check_settings, is_installed, runs_on_aws
from ..launch import run_trainer
from ..settings import TrainSettings
from .check_overrides import INSTALL, check_overrides
from .data import check_ids, dataset_name
from .overrides import run_overrides

logger = logging.getLogger(__name__)

_EPISODES = "episodes"
"""The folder that rLLM's episode logger creates."""
_LONGEST_ERROR = 300


@dataclass(frozen=True, kw_only=True, repr=False)
class RllmSettings(TrainSettings):
    """A run with rLLM. `options` are overrides of its configuration."""

    trainer: str = option("verl", "rLLM's trainer: verl (your GPUs) or tinker (a service)")
    dataset: str | None = option(None, "the name of the rows in rLLM (default: agentcore_ and the file's name)")

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"trainer": ("verl", "tinker")}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sqs_url:
            raise ConfigError("rLLM's adapter doesn't take sqs_url", hint="leave it out: rLLM polls the store")


class RllmBackend:
    """rLLM, in a separate process."""

    name = "rllm"
    extra = "rllm"
    settings = RllmSettings

    def plan(self, settings: RllmSettings) -> TrainingPlan:
        """Checks everything except AWS, and rLLM's own configuration if rLLM is not installed."""
        _check_files(settings)
        notes = list(check_settings(settings))
        if runs_on_aws(settings.agent):
            notes.append("sessions on AWS call rLLM's gateway: set rllm.gateway.tunnel if they can't reach it")
        experiment, store = settings.experiment(), _store(settings)
        RolloutId(experiment, "check", "check")
        rows = len(read_rows(settings.data)[0])
        overrides = run_overrides(settings, _arn(settings.agent), store, experiment, rows)
        notes += check_overrides(settings.trainer, overrides)
        return TrainingPlan(
            backend=self.name,
            settings=dataclasses.asdict(settings),
            command=(sys.executable, "-m", f"{__package__}.main", *_arguments(settings, store), "--", *overrides),
            session_env=settings.env,
            notes=tuple(notes),
        )

    def train(self, settings: RllmSettings) -> dict[str, Any]:
        plan = self.plan(settings)
        for module in ("rllm", settings.trainer):
            if not is_installed(module):
                raise ImportError(f"{module} is not installed\nhint: {INSTALL.format(trainer=settings.trainer)}")
        if settings.trainer == "tinker" and "TINKER_API_KEY" not in os.environ:
            raise ConfigError("TINKER_API_KEY is not set", hint="export the key of your Tinker account")
        counts = SessionCounts(settings.folder)
        summary = run_trainer(plan, settings.folder, "rLLM", counts.read)
        if not summary["interrupted"]:
            counts.check()
        return summary


BACKEND = RllmBackend()


class SessionCounts:
    """How the sessions of a run ended: rLLM itself succeeds even if all of them failed.

    rLLM's episode logger writes a file for each session, with the adapter's error. Asynchronous training writes none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.sessions = 0
        self.errors: Counter[str] = Counter()

    def read(self) -> dict[str, Any]:
        """Count the episodes of this run, which are newer than its command; the figures of the summary."""
        began = (self._folder / "command.sh").stat().st_mtime_ns
        for path in (self._folder / _EPISODES).glob("*/episode_*.json"):
            if path.stat().st_mtime_ns >= began:
                self.sessions += 1
                self._count(path)
        return {"sessions": self.sessions, "failed_sessions": self.errors.total()}

    def check(self) -> None:
        """Raise an error if every session failed."""
        episodes = self._folder / _EPISODES
        if not self.sessions:
            logger.warning("rLLM logged no episodes in %s, so it is unknown how its sessions ended", episodes)
        elif self.errors.total() == self.sessions:
            error, _ = self.errors.most_common(1)[0]
            hint = f"nothing was trained on; every session is in {episodes}"
            raise AgentCoreRLError(f"all {self.sessions} sessions failed, for example: {error}", hint=hint)

    def _count(self, path: Path) -> None:
        try:
            episode = json.loads(path.read_text())
        except ValueError:  # rLLM was killed while it wrote the file
            return
        error = (episode.get("metadata") or {}).get("error")
        if error is not None:
            text = " ".join(str(error.get("error_message")).split())
            self.errors[text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]} …"] += 1


def _check_files(settings: RllmSettings) -> None:
    for name, path in (("data", settings.data), ("eval_data", settings.eval_data)):
        if path == "-":
            raise ConfigError(f"{name} must be a file", hint="rLLM reads it in a separate process")
        if path:
            check_ids(path, read_rows(path)[0])
    if settings.trainer == "tinker" and settings.model == TINY and "tinker_base_url" not in settings.options:
        hint = "give model: one that Tinker has, such as Qwen/Qwen3-4B-Instruct-2507"
        raise ConfigError("Tinker doesn't have the built-in policy", hint=hint)


def _arn(agent: str) -> str:
    """The agent's ARN; for a path, the local runtime's."""
    if agent.startswith("arn:"):
        from ...runtime.aws import AgentCoreRuntime

        return AgentCoreRuntime(agent).arn
    from ...runtime.local import AgentSource

    return AgentSource.parse(agent).arn


def _store(settings: RllmSettings) -> str:
    """The store of results, with an absolute path: a folder announces its results, and rLLM polls a bucket."""
    store = settings.store or str(settings.folder / "results")
    if "/" in store and not store.startswith(("s3:", "file:")):
        store = os.path.abspath(store)
    open_store(store).close()
    return store


def _arguments(settings: RllmSettings, store: str) -> list[str]:
    """The command line of `main.py`."""
    name = settings.dataset or dataset_name(settings.data)
    words = ["--trainer", settings.trainer, "--dataset", name, "--data", absolute_source(settings.data)]
    if settings.eval_data:
        words += ["--eval-data", absolute_source(settings.eval_data)]
    if not settings.agent.startswith("arn:"):
        words += ["--agent", settings.agent, "--buckets", str(settings.folder.resolve() / "buckets"), "--store", store]
        words += ["--env-file", str(settings.env_file)] if settings.env else []
        words += [word for address in settings.allow for word in ("--allow", address)]
        words += ["--memory-mb", str(settings.memory_mb)] if settings.memory_mb is not None else []
    return words
