"""The rows of a run: reads them from its files, hands them to each step, and measures their outcomes.

Their outcomes are kept in the run's folder, a line for each step, because the order of later steps follows from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import ConfigError
from ....rollout import Group, Judge
from ...settings import LoopSettings
from ..report import keep_steps
from .row_order import RowOrder, name_sources

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class RowResult:
    """The outcome of one group."""

    number: int
    """The place of its row among all rows."""
    rewards: tuple[float, ...]
    """Of the rollouts that are trained on."""
    taught: bool | None
    """Whether its rewards differ; None if there were too few to compare."""


class TrainingRows:
    """The rows of all files together, as one of several processes sees them."""

    def __init__(
        self,
        settings: LoopSettings,
        read: Callable[[str], Rows],
        process: int = 0,
        processes: int = 1,
        gather: Callable[[Any], list[Any]] = lambda one: [one],
    ) -> None:
        self._settings, self._gather = settings, gather
        self._process, self._processes = process, processes
        self._path = settings.folder / "row_outcomes.jsonl"
        weights = {settings.data: 1.0} | dict(settings.mix)
        found = [(path, read(path), weight) for path, weight in weights.items()]
        self.all: Rows = [row for _, rows, _ in found for row in rows]
        if len(self.all) < settings.rows_per_step:
            named = ", ".join(weights)
            raise ConfigError(f"{named} has {len(self.all)} rows, and a step takes {settings.rows_per_step}")
        self._numbers = {id(row): number for number, row in enumerate(self.all)}
        self._order = RowOrder(
            name_sources([(path, len(rows), weight) for path, rows, weight in found]),
            settings.rows_per_step,
            settings.seed,
            skip_epochs=settings.skip_epochs,
            ahead=settings.async_steps,
        )

    def resume(self, start: int | None) -> None:
        """Continue at step `start`, with the outcomes of the steps before it; None starts over."""
        if self._settings.skip_epochs:
            last = -1 if start is None else start - 1
            lines = self._gather(keep_steps(self._path, last) if self._process == 0 else None)[0]
            for line in lines:
                taught = dict.fromkeys(line["taught"], True) | dict.fromkeys(line["same"], False)
                self._order.add(line["step"], taught, line.get("ahead"))

    def of_step(self, step: int) -> Rows:
        """This process's rows of a step."""
        return [self.all[number] for number in self._order.step(step)[self._process :: self._processes]]

    def spares(self, step: int) -> Rows:
        """Random rows to replace dropped groups of a step with. Call it right after `of_step`."""
        count = 2 * self._settings.rows_per_step // self._processes
        return [self.all[number] for number in self._order.spares(step, self._process, count)]

    def measure(self, step: int, groups: Sequence[Group], judge: Judge) -> dict[str, float]:
        """Note the outcomes of a step's rows, in all processes; returns the figures of each source."""
        mine = [
            RowResult(
                self._numbers[id(group.payload)],
                tuple(group.rewards) if group.dropped is None else (),
                judge.teaches(group) if len(group.trained) > 1 else None,
            )
            for group in groups
        ]
        results = [one for part in self._gather(mine) for one in part]
        metrics = source_metrics(self._order, results)
        if self._settings.skip_epochs:
            taught = merge_outcomes(results)
            self._order.add(step, taught)
            if self._process == 0:
                kinds = {"taught": True, "same": False}
                line = {name: [n for n, did in taught.items() if did is kind] for name, kind in kinds.items()}
                with self._path.open("a") as file:
                    file.write(json.dumps({"step": step, "ahead": self._settings.async_steps, **line}) + "\n")
            metrics["rows/skipped"] = self._order.skipped
        return metrics

    def totals(self, steps: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """A run's figures for each source, if there are several, from the metrics of its steps."""
        totals = {}
        for source in self._order.sources if len(self._order.sources) > 1 else ():
            name = f"source/{source.name}"
            totals[source.name] = {
                "rows": source.end - source.start,
                "rollouts": int(sum(line.get(f"{name}/rollouts", 0) for line in steps)),
                "reward": [line.get(f"{name}/reward") for line in steps],
            }
        return totals


def merge_outcomes(results: Iterable[RowResult]) -> dict[int, bool]:
    """Which rows taught something; a row that ran twice did if one of its groups did."""
    merged: dict[int, bool] = {}
    for one in results:
        if one.taught is not None:
            merged[one.number] = merged.get(one.number, False) or one.taught
    return merged


def source_metrics(order: RowOrder, results: Sequence[RowResult]) -> dict[str, float]:
    """A step's figures for each source, if there are several."""
    if len(order.sources) < 2:
        return {}
    metrics: dict[str, float] = {}
    for source in order.sources:
        mine = [one for one in results if source.start <= one.number < source.end]
        rewards = [reward for one in mine for reward in one.rewards]
        compared = [one.taught for one in mine if one.taught is not None]
        name = f"source/{source.name}"
        metrics |= {
            f"{name}/groups": len(mine),
            f"{name}/rollouts": len(rewards),
            f"{name}/epoch": max(0, source.epoch),
        }
        metrics |= {f"{name}/reward": sum(rewards) / len(rewards)} if rewards else {}
        metrics |= {f"{name}/teaching": sum(compared) / len(compared)} if compared else {}
    return metrics
