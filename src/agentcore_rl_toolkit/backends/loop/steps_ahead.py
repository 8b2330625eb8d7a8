"""Rollouts of later steps while training runs: when they may start, and which groups each step trains on.

    updates   0         1         2         3          with ahead = 1
    training  │ step 0 ─▶│ step 1 ─▶│ step 2 ─▶│
    rollouts  │ step 1   │ step 2   │ step 3   │

A rollout that runs on keeps its slot, and no update before its own step waits for it.
Staleness is bounded by admission: step k starts when k - ahead updates have been made, so no token of it can be older
than `ahead` updates when it is trained on. Nothing that was sampled is thrown away for its age or its length, and steps
are trained on in the order in which they started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...rollout import Group, RolloutStream
from ...rollout.run_folder import RunPart
from ...rollout.stream import Groups

OpenStep = Callable[[RolloutStream, int], tuple[RunPart, Groups]]
"""Starts the rollouts of a step on a stream; gives where they are written, and their groups to come."""


class StepsAhead:
    """The steps that run before they are trained on."""

    def __init__(self, stream: RolloutStream, open_step: OpenStep, *, ahead: int, start: int, steps: int) -> None:
        self._stream, self._open_step = stream, open_step
        self._ahead, self._next, self._end = ahead, start, steps
        self._open: dict[int, tuple[RunPart, Groups]] = {}
        self._measured_at, self._used = stream.usage()

    def advance(self, version: int) -> None:
        """Start the steps that may be sampled with these weights."""
        while self._next < self._end and self._next - self._ahead <= version:
            self._open[self._next] = self._open_step(self._stream, self._next)
            self._next += 1

    def take(self, step: int) -> tuple[RunPart, list[Group]]:
        """Wait for a step's groups."""
        part, coming = self._open[step]
        groups = coming.result()
        del self._open[step]
        for group in groups:
            part.add_group(group)
        part.close()
        return part, groups

    def run_first(self, rows: Sequence[dict[str, Any]], **options: Any) -> None:
        """Run rows before those of later steps, and wait for them; `options` are those of `RolloutStream.add`."""
        self._stream.add(rows, first=True, **options).result()

    def measure(self) -> tuple[float, float]:
        """Seconds since the last call, and the share of slots that were in use."""
        now, used = self._stream.usage()
        seconds, in_use = now - self._measured_at, used - self._used
        self._measured_at, self._used = now, used
        return seconds, min(1.0, in_use / max(1e-9, self._stream.slots * seconds))

    def close(self) -> list[RunPart]:
        """Cancel what still runs. Returns the steps that were not taken."""
        self._stream.close()
        parts = [part for part, _ in self._open.values()]
        for part in parts:
            part.close()
        return parts
