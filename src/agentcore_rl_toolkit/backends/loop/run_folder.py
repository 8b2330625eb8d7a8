"""The files of a run, by step, so that a killed run resumes from its latest checkpoint.

checkpoints/checkpoint-K   the weights after K updates
rollouts/step-K.jsonl      the rollouts that led from K updates to K + 1
evaluations/step-K.jsonl   held-out rows with the weights after K updates
metrics.jsonl, summary.json, reward.png
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from ...errors import ConfigError
from ..settings import LoopSettings


class RunFolder:
    """The folder of one run, as process number `process` of the run uses it."""

    def __init__(self, settings: LoopSettings, is_complete: Callable[[Path], bool], *, process: int = 0) -> None:
        """`is_complete` says whether a checkpoint was written to its end."""
        self.path, self._resume = settings.folder, settings.resume
        self._is_complete, self._process = is_complete, process

    def prepare(self) -> int | None:
        """Remove the files of later steps and return the step to resume from; None for a new run."""
        latest = self.latest()
        if latest is not None and not self._resume:
            raise ConfigError(f"{self.path} has a run already", hint="resume it (--resume), or choose another output")
        if latest is None:
            for name in ("rollouts", "evaluations", "metrics.jsonl"):
                _remove(self.path / name)
        else:
            for path in (*self._files("rollouts"), *self._files("evaluations")):
                if step_of(path) >= latest + (path.parent.name == "evaluations"):
                    path.unlink()
        self.path.mkdir(parents=True, exist_ok=True)
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

    def rollouts(self, step: int) -> Path:
        """The file for a step's rollouts; an earlier attempt is removed."""
        path = self.path / "rollouts" / self._name(step)
        path.unlink(missing_ok=True)
        return path

    def evaluation(self, step: int) -> Path:
        return self.path / "evaluations" / self._name(step)

    def evaluations(self) -> Iterator[tuple[int, Path]]:
        """Complete evaluations of this process, by step."""
        for path in self._files("evaluations"):
            if path.name == self._name(step_of(path)):
                yield step_of(path), path

    def _files(self, kind: str) -> list[Path]:
        return sorted((self.path / kind).glob("step-*.jsonl"))

    def _name(self, step: int) -> str:
        return f"step-{step:06d}{f'.process-{self._process}' if self._process else ''}.jsonl"


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
