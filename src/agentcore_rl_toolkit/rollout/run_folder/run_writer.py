"""Writing a run's rollouts and their index. The only place that does, whichever backend runs the rollouts.

A rollout is one line of its step's file and one record of the index, in this order; a kill between the two costs
nothing, because readers find lines that the index lacks. A disk that refuses is reported, and fails no rollout.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..rollout import Group, Rollout
from .ratio_files import LogRatios, ratio_file, write_ratios
from .rollout_files import RolloutWriter, read_rollouts
from .run_index import FILE, IndexWriter, rollout_values

logger = logging.getLogger(__name__)

_MOST_SHARED = 16

UNFINISHED = "unfinished-"
"""The start of the name of an evaluation's file until the evaluation is complete."""


def describe_run(folder: Path, **known: Any) -> None:
    """Write `run.json`: what the run is."""
    write_anew(folder / "run.json", json.dumps(known, default=str, indent=2) + "\n")


def write_metrics(folder: Path, lines: Mapping[int, Mapping[str, Any]]) -> None:
    """Write `metrics.jsonl` with these lines, by the step that each is of."""
    write_anew(folder / "metrics.jsonl", "".join(json.dumps(lines[step]) + "\n" for step in sorted(lines)))


def write_anew(path: Path, text: str) -> None:
    """Replace a file, whole: a kill leaves the old one or the new one."""
    new = path.with_suffix(f".{os.getpid()}.new")  # several processes may replace it at once
    new.write_text(text)
    new.replace(path)


class RunWriter:
    """Writes to one run's folder as process `process` of the run; safe to call from several threads."""

    def __init__(self, folder: str | Path, *, process: int = 0) -> None:
        self.folder, self.process = Path(folder), process
        self.folder.mkdir(parents=True, exist_ok=True)
        self._index = IndexWriter(self.folder, process)
        self._lock = threading.RLock()
        self.failures = 0
        """Rollouts that the disk refused."""
        self._shared: dict[tuple[str, int], RunPart] = {}

    def describe(self, **known: Any) -> None:
        """Write `run.json`: what the run is."""
        describe_run(self.folder, **known)

    @contextlib.contextmanager
    def part(self, phase: str, step: int) -> Iterator[RunPart]:
        """The rollouts of one step or evaluation, which replace those of an earlier attempt."""
        with contextlib.closing(self.open_part(phase, step)) as part:
            yield part
            part.finish()

    def open_part(self, phase: str, step: int) -> RunPart:
        """The same, to be closed by the caller."""
        kind = "rollouts" if phase in ("train", "rollout") else "evaluations"
        return RunPart(self, phase, step, f"{kind}/{self._name(step)}")

    def shared_part(self, phase: str, step: int) -> RunPart:
        """The same part for every caller, for trainers that never say when a step is over."""
        with self._lock:
            part = self._shared.get((phase, step))
            if part is None:
                part = self._shared[phase, step] = self.open_part(phase, step)
                part.finish()
                for key in [*self._shared][:-_MOST_SHARED]:
                    self._shared.pop(key).close()
            return part

    def _name(self, step: int) -> str:
        return f"step-{step:06d}{f'.process-{self.process}' if self.process else ''}.jsonl"

    def evaluations(self) -> Iterator[tuple[int, list[Rollout]]]:
        """The complete evaluations that this process wrote, by step."""
        for path in sorted((self.folder / "evaluations").glob("step-*.jsonl")):
            step = int(path.name[5:11])
            if path.name == self._name(step):
                yield step, list(read_rollouts(path))

    def index(self, values: Mapping[str, Any], number: int | None = None) -> int:
        """Write a record for a new rollout, or for rollout `number` again; returns its number."""
        with self._lock:
            if number is None:
                number, self._index.next = self._index.next, self._index.next + 1
            self._index.write({**values, "n": number})
            return number

    def begin_file(self, name: str) -> None:
        """Note that a file starts over."""
        with self._lock:
            self._index.write({"kind": FILE, "file": name})

    def close(self) -> None:
        for part in self._shared.values():
            part.close()
        with self._lock:
            self._index.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunPart:
    """The rollouts of one step, or of one evaluation."""

    def __init__(self, run: RunWriter, phase: str, step: int, name: str) -> None:
        self._run, self._phase, self.step, self._name = run, phase, step, name
        self.path = run.folder / name
        self._begun = self.path if phase in ("train", "rollout") else self.path.with_name(UNFINISHED + self.path.name)
        for path in (self.path, self._begun, ratio_file(run.folder, name)):
            path.unlink(missing_ok=True)
        run.begin_file(name)
        self._writer = RolloutWriter(self._begun)
        self._lock = threading.Lock()
        self._refused = 0
        self._written: dict[str, tuple[int, dict[str, Any]]] = {}
        """Number and values of each rollout, by session."""

    def write(self, rollout: Rollout) -> None:
        """Append a rollout. One that the disk refuses is counted and reported, and training continues."""
        try:
            with self._lock:
                offset, length = self._writer.write(rollout)
                values = rollout_values(rollout, self._phase, self.step)
                values |= {"file": self._name, "offset": offset, "length": length}
                number = self._run.index(values)
                if rollout.session_id is not None:
                    self._written[rollout.session_id] = number, values
        except OSError as error:
            self._run.failures += 1
            self._refused += 1
            if self._refused == 1:
                logger.error("a rollout of step %d could not be written to %s: %s", self.step, self._begun, error)

    def key(self, rollout: Rollout) -> str:
        """What finds a rollout in the run's folder; its session if the disk refused it."""
        found = self._written.get(rollout.session_id or "")
        return f"{self._run.process}.{found[0]}" if found is not None else rollout.session_id or ""

    def add_group(self, group: Group) -> None:
        """Note why a group is not trained on, if it isn't."""
        if group.dropped is not None:
            rollouts = (*group.rollouts, *group.others)
            self._change({one.session_id: {"dropped": group.dropped} for one in rollouts if one.session_id})

    def drop(self, why: str) -> None:
        """Note why none of these rollouts is trained on."""
        self._change({session_id: {"dropped": why} for session_id in self._written})

    def add_advantages(self, advantages: Mapping[str, float]) -> None:
        """Note what the trainer made of rewards, by session."""
        self._change({session_id: {"advantage": value} for session_id, value in advantages.items()})

    def add_ratios(self, ratios: LogRatios) -> None:
        """Keep how the trainer's logprobs differ from the sampler's."""
        try:
            write_ratios(ratio_file(self._run.folder, self._name), ratios)
        except OSError as error:
            logger.error("the ratios of step %d could not be written: %s", self.step, error)

    def _change(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the records of some sessions' rollouts again, with other values."""
        try:
            for session_id, values in changes.items():
                found = self._written.get(session_id)
                if found is not None:
                    found[1].update(values)
                    self._run.index(found[1], found[0])
        except OSError as error:
            logger.error("the outcomes of rollouts of step %d could not be written: %s", self.step, error)

    def finish(self) -> None:
        """The step or evaluation is complete."""
        if self._begun != self.path:
            self._begun.replace(self.path)

    def close(self) -> None:
        self._writer.close()
        if self._refused > 1:
            logger.error("%d rollouts of step %d could not be written", self._refused, self.step)
