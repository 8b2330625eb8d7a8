"""The checkpoints of a run: a killed run resumes from the latest, and the files of later steps are removed.

checkpoints/checkpoint-K   the weights after K updates

`rollout/run_folder` writes and reads the run's rollouts.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from ...errors import ConfigError
from ...rollout.run_folder.run_lock import locked_run


class CheckpointFolder:
    """The checkpoints in the folder of one run."""

    def __init__(self, path: Path, is_complete: Callable[[Path], bool], *, resume: bool, first: bool = True) -> None:
        """`is_complete` says whether a checkpoint was written to its end. `first` is the process of a run that prepares
        the folder for all of them."""
        self.path, self._resume = path, resume
        self._is_complete, self._first = is_complete, first

    @contextlib.contextmanager
    def opened(self) -> Iterator[int | None]:
        """Keep other runs out, remove the files of later steps, and give the step to resume from (None: a new run)."""
        if not self._first:
            yield self.latest()
            return
        with locked_run(self.path):
            yield self._prepare()

    def _prepare(self) -> int | None:
        latest = self.latest()
        if latest is not None and not self._resume:
            raise ConfigError(f"{self.path} has a run already", hint="resume it (--resume), or choose another output")
        _remove(self.path / "summary.json")  # a run that goes on has not ended
        if latest is None:
            for name in ("rollouts", "evaluations", "index", "metrics.jsonl", "row_outcomes.jsonl"):
                _remove(self.path / name)
        else:
            for kind, first in (("rollouts", latest), ("evaluations", latest + 1)):
                for path in (self.path / kind).glob("step-*.jsonl"):
                    if step_of(path) >= first:
                        path.unlink()
        return latest

    def latest(self) -> int | None:
        """The step of the newest complete checkpoint; an incomplete one is removed."""
        for path in (self.path / "checkpoints").glob("checkpoint-*"):
            if not self._is_complete(path):
                _remove(path)
        return max(map(step_of, self.checkpoints()), default=None)

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        found = (self.path / "checkpoints").glob("checkpoint-*")
        return sorted(filter(self._is_complete, found), key=step_of)

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"checkpoint-{step}"


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint or a file."""
    found = re.search(r"-(\d+)", path.name)
    if found is None:
        raise ConfigError(f"{path} has no step in its name")
    return int(found[1])


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
