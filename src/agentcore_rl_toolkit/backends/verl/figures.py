"""The figures of a verl run: workers write a line for each group, and the launcher sums them up when verl has ended.

groups/worker-K.jsonl   one line for each group of worker K: verl's step, and its metrics or its outcomes
metrics.jsonl           one line for each step, over all workers, as every backend writes it

Needs no verl. Steps are verl's: step k leads from k - 1 updates to k, and a validation at k runs with the weights after
k updates.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, TextIO

from ...client.evaluation import Outcome, summarize
from ...engine.checkpoints import resolve_model, verl_step
from ...errors import ConfigError
from ...rollout import Group, Rollout, merge_metrics, step_metrics
from ...types import Status
from ..loop.report import run_totals
from ..loop.training_loop import held_out_outcome
from ..settings import SavingSettings

Line = dict[str, Any]


class GroupWriter:
    """Appends the lines of one worker."""

    def __init__(self, folder: Path, worker: int, failed_reward: float) -> None:
        path = folder / "groups" / f"worker-{worker}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._failed_reward = failed_reward

    def add_group(self, step: int, group: Group, given: Sequence[Rollout]) -> None:
        """Add a group of a step, and the rollouts that verl got of it."""
        metrics = step_metrics([group]) | {"rollouts/trained": len(given)}
        rewards = [rollout.reward for rollout in given if rollout.reward is not None]
        self._write({"step": step, "metrics": metrics, "rewards": rewards})

    def add_validation(self, step: int, group: Group) -> None:
        """Add the group of a held-out row."""
        outcomes = [astuple(held_out_outcome(rollout, self._failed_reward)) for rollout in group.rollouts]
        self._write({"step": step, "outcomes": outcomes})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Line) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def remove_stale_files(folder: Path, checkpoints: Path, *, resumes: bool) -> None:
    """Remove the lines that a resumed run writes again; for a new run, all files of an earlier one."""
    latest = verl_step(checkpoints)
    if latest is None or not resumes:
        for name in ("rollouts", "groups"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        return
    for path in _files(folder):
        kept = [line for line in _lines(path) if line["step"] < latest + ("metrics" in line)]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))


def run_figures(settings: SavingSettings, checkpoints: Path) -> dict[str, Any]:
    """The run's figures, under the names that every backend uses; writes metrics.jsonl."""
    steps: dict[int, list[Line]] = defaultdict(list)
    outcomes: dict[int, list[Outcome]] = defaultdict(list)
    for path in _files(settings.folder):
        for line in _lines(path):
            if "metrics" in line:
                steps[line["step"]].append(line)
            else:
                outcomes[line["step"]] += [_outcome(*fields) for fields in line["outcomes"]]
    done = max([verl_step(checkpoints) or 0, *(step - 1 for step in steps), *outcomes])
    merged = [_merged(step, steps[step]) for step in sorted(steps)]
    if merged:
        (settings.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in merged))
    evaluations = {step: summarize(known) for step, known in outcomes.items()}
    return {
        "model": settings.model,
        "agent": settings.agent,
        "seed": settings.seed,
        "steps": done,
        **run_totals(merged, evaluations, done),
        "checkpoint": _checkpoint(checkpoints),
        "rollouts_folder": str(settings.folder / "rollouts"),
    }


def _merged(step: int, lines: Sequence[Line]) -> Line:
    rewards = [reward for line in lines for reward in line["rewards"]]
    metrics = merge_metrics([line["metrics"] for line in lines])
    metrics.pop("reward", None)  # a mean of the groups' means
    return {"step": step, **metrics} | ({"reward": statistics.fmean(rewards)} if rewards else {})


def _checkpoint(checkpoints: Path) -> str | None:
    """The newest weights that Transformers can load, or else verl's own newest checkpoint."""
    step = verl_step(checkpoints)
    if step is None:
        return None
    try:
        return resolve_model(str(checkpoints.parent))
    except ConfigError:
        return str(checkpoints / f"global_step_{step}")


def _outcome(input_id: str, session_id: str, status: str, reward: float | None, seconds: float | None) -> Outcome:
    return Outcome(input_id, session_id, Status(status), reward, seconds)


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "groups").glob("worker-*.jsonl"))


def _lines(path: Path) -> Iterator[Line]:
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):  # a kill may cut off the last line
            yield json.loads(line)
