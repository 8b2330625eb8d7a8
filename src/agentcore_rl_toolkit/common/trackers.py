"""Sends the figures of every step to W&B, MLflow, TensorBoard or trackio, for backends without reporting of their own.

Each package reads its own environment variables (`WANDB_PROJECT`, `MLFLOW_TRACKING_URI` …). One that fails is reported
once and left out from then on: it never ends a run.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)

PROJECT = "agentcore-rl"
_FORBIDDEN = re.compile(r"[^\w\-. /]", re.ASCII)  # in names of MLflow's metrics
_LONGEST = 250


class Tracker(Protocol):
    """One place to which figures are sent."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Send a step's figures."""

    def close(self) -> None:
        """Send what is left."""


class _RunTracker:
    """W&B, and trackio, which has the same functions."""

    def __init__(self, package: Any, variable: str, folder: Path, about: Mapping[str, Any]) -> None:
        self._package = package
        package.init(project=os.environ.get(variable, PROJECT), name=folder.name, config=dict(about))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._package.log(dict(figures), step=step)

    def close(self) -> None:
        self._package.finish()


class _MlflowTracker:
    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._package: Any = importlib.import_module("mlflow")
        if "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            self._package.set_experiment(PROJECT)
        self._package.start_run(run_name=folder.name)
        self._package.log_params({name: str(value)[:_LONGEST] for name, value in about.items()})

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        named = {_FORBIDDEN.sub("_", name)[:_LONGEST]: value for name, value in figures.items()}
        self._package.log_metrics(named, step=step)

    def close(self) -> None:
        self._package.end_run()


class _TensorboardTracker:
    """Writes TensorBoard's files with its own package, without torch."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        writers: Any = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        self._events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        self._writer = writers.EventFileWriter(os.environ.get("TENSORBOARD_LOGGING_DIR", str(folder / "tensorboard")))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        values = [self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        summary = self._summaries.Summary(value=values)
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        self._writer.close()


OPENERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    "wandb": lambda folder, about: _RunTracker(importlib.import_module("wandb"), "WANDB_PROJECT", folder, about),
    "mlflow": _MlflowTracker,
    "tensorboard": _TensorboardTracker,
    "trackio": lambda folder, about: _RunTracker(importlib.import_module("trackio"), "TRACKIO_PROJECT", folder, about),
}
"""What `report_to` may name."""

Track = Callable[[int, Mapping[str, Any]], None]


@contextlib.contextmanager
def open_trackers(report_to: str, folder: Path, about: Mapping[str, Any]) -> Iterator[Track]:
    """A function that sends a step's figures to every place that `report_to` names; `about` describes the run."""
    names = [name.strip() for name in report_to.split(",")] if report_to != "none" else []
    opened: dict[str, Tracker] = {}

    def attempt(name: str, work: Callable[[], Any]) -> Any:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for the run's summary
                return work()
        except Exception as error:
            logger.warning("no figures go to %s any more: %s: %s", name, type(error).__name__, error)
            opened.pop(name, None)
            return None

    for name in names:
        found = attempt(name, lambda: OPENERS[name](folder, about))  # noqa: B023
        if found is not None:
            opened[name] = found

    def track(step: int, metrics: Mapping[str, Any]) -> None:
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        for name, tracker in [*opened.items()]:
            attempt(name, lambda: tracker.log(step, numbers))  # noqa: B023

    try:
        yield track
    finally:
        for name, tracker in [*opened.items()]:
            attempt(name, tracker.close)
