"""What a run leaves behind, by step, so that one that was killed goes on from its latest checkpoint.

checkpoints/checkpoint-K   the weights after K updates
rollouts/step-K.jsonl      what led from K updates to K + 1
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
    """The folder of one run. `process` is which of several processes of the run this is."""

    def __init__(self, settings: LoopSettings, whole: Callable[[Path], bool], *, process: int = 0) -> None:
        """`whole` tells whether a checkpoint was written to its end."""
        self.path, self._resume = settings.folder, settings.resume
        self._whole, self._process = whole, process

    def prepare(self) -> int | None:
        """The step to go on from, None for a new run. What a run left behind after it is removed."""
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
        """The step of the newest whole checkpoint; one that a kill has cut off is removed."""
        steps = []
        for path in (self.path / "checkpoints").glob("checkpoint-*"):
            if self._whole(path):
                steps.append(step_of(path))
            else:
                _remove(path)
        return max(steps, default=None)

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"checkpoint-{step}"

    def rollouts(self, step: int) -> Path:
        """The file for a step's rollouts, which is not there yet."""
        path = self.path / "rollouts" / self._name(step)
        path.unlink(missing_ok=True)
        return path

    def evaluation(self, step: int) -> Path:
        return self.path / "evaluations" / self._name(step)

    def evaluations(self) -> Iterator[tuple[int, Path]]:
        """Whole evaluations of this process, by step."""
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
