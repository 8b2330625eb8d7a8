"""The facts of a step from the run's folder, for trainers that run as a program of their own. Only reads."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Set
from pathlib import Path

from ...errors import ConfigError
from ...rollout import Group, Rollout
from ...rollout.run_folder import Run, open_run
from ...types import Status
from ..run_queries import HELD_OUT
from .facts import RolloutFacts, observe, row_identity

Observe = Callable[[list[Group], Callable[[Rollout], str]], list[RolloutFacts]]
_MOST_READ = 1_000
"""Held-out rollouts that are searched for an example."""


class RecordedFacts:
    """Reads what guards need to know about the steps of a run that is being written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: Run | None = None

    def of_step(self, step: int, observe: Observe = observe) -> list[RolloutFacts]:
        """The facts of the training rollouts after `step` updates; none if nothing has been written."""
        run = self._open()
        if run is None:
            return []
        groups: dict[tuple[int, str], list[tuple[str, str | None, Rollout]]] = {}
        for at in run.select(phase="train", step=step).tolist():
            try:
                rollout = run.rollout(at)
            except (ConfigError, OSError):
                continue  # its file is gone, or broken
            place = int(run.table["writer"][at]), rollout.input_id
            groups.setdefault(place, []).append((run.key(at), run.text("dropped", at), rollout))
        keys = {id(rollout): key for group in groups.values() for key, _, rollout in group}
        return observe(
            [_group(number, group) for number, group in enumerate(groups.values())], lambda one: keys[id(one)]
        )

    def rewards(self, step: int) -> list[float]:
        """The rewards of the training rollouts that completed in the first `step` steps."""
        run = self._open()
        if run is None:
            return []
        table = run.table[run.select(phase="train", status=Status.COMPLETED.value)]
        return [one for one in table["reward"][table["step"] < step].tolist() if not math.isnan(one)]

    def held_out_example(self, rows: Set[str]) -> str | None:
        """The key of a held-out rollout of one of these rows, which are given by their identities."""
        run = self._open()
        if run is None:
            return None
        for at in run.select(phase=HELD_OUT, limit=_MOST_READ).tolist():
            with contextlib.suppress(ConfigError, OSError):
                if row_identity(run.rollout(at).payload) in rows:
                    return run.key(at)
        return None

    def _open(self) -> Run | None:
        if self._run is None:
            try:
                self._run = open_run(self._folder)
            except ConfigError:
                return None
        self._run.refresh()
        return self._run


def _group(number: int, found: list[tuple[str, str | None, Rollout]]) -> Group:
    rollouts = tuple(rollout for _, _, rollout in found)
    dropped = next((dropped for _, dropped, _ in found if dropped), None)
    return Group(number, rollouts[0].input_id, rollouts[0].payload, rollouts, dropped=dropped)
