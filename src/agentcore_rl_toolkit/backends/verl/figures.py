"""The figures of a verl run: workers write a line for each group, and the launcher sums them up, step by step.

groups/worker-K.jsonl   one line for each group of worker K: verl's step, and its metrics or its outcomes
totals/K.json           what worker K has used, and what it could not train on
metrics.jsonl           one line for each step, over all workers, as every backend writes it

The guards judge a step when it has finished: when a group of a later one has, or verl has ended.

Needs no verl. Steps are verl's: step k leads from k - 1 updates to k, and a validation at k runs with the weights after
k updates.
"""

from __future__ import annotations

import json
import logging
import shutil
import statistics
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, TextIO

from ...client.evaluation import Outcome, summarize
from ...engine.checkpoints import resolve_model, verl_step
from ...errors import ConfigError, RolloutsStopped
from ...rollout import Causes, Group, Rollout, merge_metrics, step_metrics
from ...rollout.judge import NO_VARIANCE
from ...rollout.run_folder.process_totals import read_totals, remove_totals, write_totals
from ...rollout.run_folder.run_text import metrics_by_step, read_object
from ...rollout.run_folder.run_writer import write_metrics
from ...rows import read_rows
from ...studio.guards import Guards, StepFacts
from ...studio.guards.guards import report, stop_run
from ...studio.guards.recorded_facts import RecordedFacts
from ...types import Status
from ..loop.held_out import held_out_outcome
from ..loop.report import run_totals
from ..loop.training_loop import MOST_EMPTY_STEPS
from ..settings import SavingSettings

logger = logging.getLogger(__name__)

Line = dict[str, Any]
_MOST_ALIKE_STEPS = 10 * MOST_EMPTY_STEPS
"""With dynamic sampling: groups worth this many steps, in a row, whose rewards are all the same, end the run."""


class GroupWriter:
    """Appends the lines of one worker."""

    def __init__(self, folder: Path, worker: int, failed_reward: float) -> None:
        self._folder, self._worker = folder, worker
        self._causes = Causes()
        self._empty = self._alike = 0
        path = folder / "groups" / f"worker-{worker}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._failed_reward = failed_reward

    def add_group(self, step: int, group: Group, given: Sequence[Rollout]) -> None:
        """Add a group of a step, and the rollouts that verl got of it."""
        metrics = step_metrics([group]) | {"rollouts/trained": len(given)}
        rewards = [rollout.reward for rollout in given if rollout.reward is not None]
        self._write({"step": step, "metrics": metrics, "rewards": rewards})
        self._causes.add([group])
        self._empty = 0 if given else self._empty + (group.dropped != NO_VARIANCE)
        self._alike = 0 if given else self._alike + 1

    def check_progress(self, rows: int) -> None:
        """Raise `RolloutsStopped` if the latest groups gave nothing to train on; a step has `rows` groups.

        verl takes another prompt in place of such a group, and would do so for ever.
        """
        if self._empty >= MOST_EMPTY_STEPS * rows or self._alike >= _MOST_ALIKE_STEPS * rows:
            raise self._causes.error(f"nothing could be trained on in {self._alike} groups in a row", self._folder)

    def write_totals(self, used: Mapping[str, Any], stopped: Exception | None) -> None:
        """Write what the worker has used, and why it ended the run if it did."""
        write_totals(self._folder, self._worker, used=used, causes=self._causes, stopped=stopped)

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
    remove_totals(folder)
    latest = verl_step(checkpoints)
    if latest is None or not resumes:
        for name in ("rollouts", "evaluations", "index", "groups"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        return
    if (folder / "metrics.jsonl").exists():
        write_metrics(folder, {step: line for step, line in metrics_by_step(folder).items() if step <= latest})
    for path in _files(folder):
        kept = [line for line, _ in _lines(path) if line["step"] < latest + ("metrics" in line)]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))


class StepWatch:
    """Follows verl while it runs, in a thread: writes each finished step's line of metrics.jsonl, and has it judged."""

    def __init__(self, settings: SavingSettings, *, every: float = 5.0) -> None:
        """`every`: seconds from one look to the next."""
        self.problem: RolloutsStopped | None = None
        """Why a guard ends the run."""
        self._folder, self._every = settings.folder, every
        self._guards = Guards(settings.guard, settings.guards_from)
        known = metrics_by_step(self._folder)
        self._guards.resume(self._folder, max(known, default=None))
        self._steps, self._ends = _StepLines(), dict[Path, int]()
        self._done = set(known)
        self._recorded = RecordedFacts(self._folder)
        held_out = read_rows(settings.eval_data)[0] if settings.eval_data else []
        rows = read_rows(settings.data)[0] if held_out else []
        self._shared = self._guards.facts.find_shared_rows(rows, held_out)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="steps of verl", daemon=True)

    def __enter__(self) -> StepWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Judge what is left, once verl has ended."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._look(final=True)

    def _follow(self) -> None:
        while not self._ended.wait(self._every) and self.problem is None:
            self._look()

    def _look(self, *, final: bool = False) -> None:
        try:
            for path in _files(self._folder):
                self._ends[path] = self._steps.read(path, self._ends.get(path, 0))
            latest = max(self._steps.groups, default=0)
            for step in sorted(self._steps.groups.keys() - self._done):
                if final or step < latest:
                    self._done.add(step)
                    self._end_step(step)
            stopped = read_totals(self._folder).stopped
            if stopped is not None:
                raise RolloutsStopped(stopped)
        except RolloutsStopped as problem:
            self.problem = self.problem or problem
        except Exception as error:  # looking never ends a run by its own fault
            logger.warning("the steps of verl could not be judged: %s: %s", type(error).__name__, error)

    def _end_step(self, step: int) -> None:
        line = _merged(step, self._steps.groups[step])
        evaluations = {at: summarize(known) for at, known in self._steps.outcomes.items() if at < step}
        for at, summary in evaluations.items():
            self._guards.facts.add_evaluation(at, summary)
        held_out = evaluations[max(evaluations)].reward if evaluations else None
        if held_out is not None and "reward" in line:
            line["reward/held_out_gap"] = line["reward"] - held_out
        if self._shared and self._guards.facts.shared_example is None:
            self._guards.facts.shared_example = self._recorded.held_out_example(self._shared)
        found = self._guards.judge(StepFacts(step, line, self._recorded.of_step(step - 1, self._guards.observe)))
        line |= {f"guard/{one.guard}": 1.0 for one in found}
        write_metrics(self._folder, metrics_by_step(self._folder) | {step: line})
        report(found, self._folder, logger.warning)
        stop_run(found, self._folder)


class _StepLines:
    """The lines that workers have written, by verl's step."""

    def __init__(self) -> None:
        self.groups: dict[int, list[Line]] = defaultdict(list)
        self.outcomes: dict[int, list[Outcome]] = defaultdict(list)

    def read(self, path: Path, start: int = 0) -> int:
        """Read a file's lines from the byte `start`; returns where the next line begins."""
        for line, end in _lines(path, start):
            start = end
            if "metrics" in line:
                self.groups[line["step"]].append(line)
            else:
                for input_id, session_id, status, reward, seconds in line["outcomes"]:
                    self.outcomes[line["step"]].append(Outcome(input_id, session_id, Status(status), reward, seconds))
        return start


def run_figures(settings: SavingSettings, checkpoints: Path) -> dict[str, Any]:
    """The run's figures, under the names that every backend uses; writes metrics.jsonl."""
    lines = _StepLines()
    for path in _files(settings.folder):
        lines.read(path)
    done = max([verl_step(checkpoints) or 0, *(step - 1 for step in lines.groups), *lines.outcomes])
    judged = metrics_by_step(settings.folder)
    merged = {step: {**judged.get(step, {}), **_merged(step, lines.groups[step])} for step in sorted(lines.groups)}
    if merged:
        write_metrics(settings.folder, merged)
    evaluations = {step: summarize(known) for step, known in lines.outcomes.items()}
    totals = read_totals(settings.folder)
    return {
        "model": settings.model,
        "agent": settings.agent,
        "seed": settings.seed,
        "steps": done,
        **run_totals([*merged.values()], evaluations, done),
        "not_trained_on": totals.causes.figures(),
        "used": totals.used,
        "checkpoint": _checkpoint(checkpoints),
        "rollouts_folder": str(settings.folder / "rollouts"),
    }


def check_trained(settings: SavingSettings, ended: str) -> None:
    """Raise the causes if a run has ended by itself, and none of its rollouts could be trained on."""
    summary = read_object(settings.folder / "summary.json") or {}
    if summary.get("rollouts") and not summary["trained"] and not summary["interrupted"]:
        by_hand = f"rollout {settings.agent} --data {settings.data} --model {settings.model} --limit 1"
        causes = read_totals(settings.folder).causes
        raise causes.error(f"{ended}, and nothing could be trained on", settings.folder, by_hand)


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


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "groups").glob("worker-*.jsonl"))


def _lines(path: Path, start: int = 0) -> Iterator[tuple[Line, int]]:
    """The whole lines from a byte on, each with where it ends."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            start += len(line)
            if line.endswith(b"\n"):  # a kill may cut off the last line
                yield json.loads(line), start
