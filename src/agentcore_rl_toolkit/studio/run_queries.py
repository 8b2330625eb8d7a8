"""What a run's index says about its steps, groups and rows, for the page and the terminal. Reads no rollout.

A data row keeps its identity from step to step: without its own id, it is known by the hash of its content.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..client.evaluation import mean_interval
from ..errors import ConfigError
from ..rollout.run_folder import PHASES, Run
from ..rollout.run_folder.run_index import STATUSES
from ..rollout.run_folder.run_reader import are_trained_on
from ..types import UNMEASURED

HELD_OUT = ("before", "at_step", "after", "eval")
"""Phases of rollouts that are not for training."""
_NUMBERED = re.compile(r"\d{6}-([0-9a-f]{8})")
_COMPLETED = STATUSES.index("completed")
_MEANS = ("sampled", "tokens", "turns", "tool_calls", "seconds", "model", "tool", "waiting")
_SUMS = ("tool_calls", "unknown_tools", "parse_failures", "unbridged", "truncated", "sampled", "trained")
CHANGES = ("learned", "forgotten", "always", "sometimes", "never")
"""What became of a row: solved at its last visit and not at its first, the reverse, at both, only between, never."""

Positions = npt.NDArray[np.intp]
Table = npt.NDArray[Any]


def row_of(input_id: str) -> str:
    """The identity of a data row, whichever step it is in.

    >>> row_of("q7"), row_of("000003-bbab304e")
    ('q7', 'bbab304e')
    """
    match = _NUMBERED.fullmatch(input_id)
    return match[1] if match else input_id


def read_steps(run: Run) -> list[dict[str, Any]]:
    """Figures of each step and each evaluation, in the order of the run."""
    steps = [_step_figures(run, places, part) for places, part in _split_steps(run)]
    rewards = run.table["reward"]
    known = rewards[np.isfinite(rewards)]
    if len(known) and known.min() >= 0 and known.max() <= 1:  # no mean is beyond these
        for one in steps:
            one["interval"] = one["interval"] and (max(0.0, one["interval"][0]), min(1.0, one["interval"][1]))
    return sorted(steps, key=lambda one: (one["step"], PHASES.index(one["phase"]) != 0, one["phase"]))


def read_groups(run: Run, phase: str, step: int) -> list[dict[str, Any]]:
    """The groups of a step, each with the entries of its samples."""
    found: dict[Any, list[int]] = defaultdict(list)
    for at in run.select(phase=phase, step=step).tolist():
        group = int(run.table["group"][at])
        found[group if group >= 0 else run.text("input_id", at)].append(at)
    return [_group_figures(run, places) for _, places in sorted(found.items(), key=lambda item: str(item[0]).zfill(12))]


def read_rows(run: Run, phases: tuple[str, ...] = ("train",)) -> list[dict[str, Any]]:
    """Every data row with its mean reward at each visit, and what became of it: one of `CHANGES`."""
    bound = solved_threshold(run)
    places = run.select(phase=phases)
    rows, numbers = _rows_of(run, places)
    visits: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at, row, step in zip(places.tolist(), numbers.tolist(), run.table["step"][places].tolist(), strict=True):
        visits[row][step].append(at)
    return [_row_figures(run, rows[row], by_step, bound) for row, by_step in visits.items()]


def solved_threshold(run: Run) -> float:
    """The mean reward from which a visit solves its row: half of the highest reward."""
    rewards = run.table["reward"]
    known = rewards[np.isfinite(rewards)]
    return float(known.max()) / 2 if len(known) and known.max() > 0 else 0.5


def visits_of_row(run: Run, row: str) -> Positions:
    """The rollouts of a data row, by step and sample."""
    places = np.arange(len(run.table))
    rows, numbers = _rows_of(run, places)
    found = places[numbers == rows.index(row)] if row in rows else places[:0]
    return found[np.lexsort((run.table["sample"][found], run.table["step"][found]))]


def find_pair(run: Run, before: str, after: str, row: str | None = None) -> tuple[int, int]:
    """Two rollouts of one held-out row, each named by a phase, a step's number or a key.

    Without `row`, the row whose reward rose most.
    """
    if "." in before and "." in after:
        return run.find(before), run.find(after)
    sides = [_by_row(run, name) for name in (before, after)]
    shared = [one for one in sides[0] if one in sides[1] and (row is None or one.startswith(row))]
    if not shared:
        which = f"row {row!r}" if row is not None else "no held-out row"
        raise ConfigError(
            f"{which} has rollouts both {before} and {after}", hint="the phases are before, at_step and after"
        )
    rewards = np.nan_to_num(run.table["reward"], nan=0.0)
    best = max(shared, key=lambda one: rewards[sides[1][one]] - rewards[sides[0][one]])
    return sides[0][best], sides[1][best]


def _by_row(run: Run, name: str) -> dict[str, int]:
    """The first held-out rollout of each row, at a step or in a phase; or the one that a key names."""
    if "." in name:
        at = run.find(name)
        return {row_of(run.text("input_id", at) or ""): at}
    step = int(name) if name.isdecimal() else None
    found: dict[str, int] = {}
    for at in run.select(phase=name if step is None else HELD_OUT, step=step).tolist():
        found.setdefault(row_of(run.text("input_id", at) or ""), at)
    return found


def _split_steps(run: Run) -> Iterator[tuple[Positions, Table]]:
    """The rollouts of each step and evaluation: their places in the run's table, and that part of it."""
    table = run.table
    keys = table["phase"].astype(np.int64) << 32 | table["step"].astype(np.int64)
    order = np.argsort(keys, kind="stable")
    elements = np.ascontiguousarray(table).view(f"V{table.itemsize}")  # as bytes, which are copied faster
    ordered, ends = (
        elements[order].view(table.dtype),
        [*(np.flatnonzero(np.diff(keys[order])) + 1).tolist(), len(table)],
    )
    for start, end in zip([0, *ends], ends, strict=False):
        if start < end:
            yield order[start:end], ordered[start:end]


def _step_figures(run: Run, places: Positions, part: Table) -> dict[str, Any]:
    phase, step = PHASES[part["phase"][0]], int(part["step"][0])
    statuses = np.bincount(part["status"], minlength=len(STATUSES))
    reward, interval = _mean_reward(run, phase, places, part)
    sampled, kept = int(part["sampled"].sum()), int(part["trained"].sum())
    return {
        "phase": phase,
        "step": step,
        "rollouts": len(part),
        "failed": int((part["cause"] != 0).sum()),
        "trained_on": int(are_trained_on(part).sum()),
        "dropped": int((part["dropped"] != 0).sum()),
        "statuses": {name: int(count) for name, count in zip(STATUSES, statuses, strict=True) if count},
        "groups": len(np.unique(part["group"])),
        "reward": reward,
        "interval": interval,
        "fidelity": kept / sampled if sampled else None,
        "longest": int(part["tokens"].max()),
        "mean": {name: round(float(part[name].mean()), 6) for name in _MEANS},
        "sum": {name: int(part[name].sum()) for name in _SUMS},
        "began": _finite(float((part["at"] - part["seconds"]).min())),
        "ended": _finite(float(part["at"].max())),
    }


def _mean_reward(
    run: Run, phase: str, places: Positions, part: Table
) -> tuple[float | None, tuple[float, float] | None]:
    """The mean over rows and its interval. On held-out rows, the agent's own failures count as 0."""
    completed = part["status"] == _COMPLETED
    known = np.isfinite(part["reward"]) & completed
    if phase in HELD_OUT:
        left_out = [_COMPLETED, *(STATUSES.index(status.value) for status in UNMEASURED)]
        known |= ~np.isin(part["status"], left_out)
    rewards = np.nan_to_num(part["reward"], nan=0.0, posinf=0.0, neginf=0.0)
    if phase in HELD_OUT:
        rewards = np.where(completed, rewards, 0.0)
    rows, numbers = _rows_of(run, places[known])
    means = np.bincount(numbers, rewards[known], len(rows)) / np.bincount(numbers, minlength=len(rows))
    return (float(means.mean()), mean_interval(means.tolist())) if len(rows) else (None, None)


def _rows_of(run: Run, places: Positions) -> tuple[list[str], Positions]:
    """The data rows of some rollouts, and which of them each rollout is of."""
    keys = run.table["writer"][places].astype(np.int64) << 32 | run.table["input_id"][places]
    _, firsts, of_each = np.unique(keys, return_index=True, return_inverse=True)
    rows: dict[str, int] = {}
    numbers = [rows.setdefault(row_of(text or ""), len(rows)) for text in run.texts("input_id", places[firsts])]
    return [*rows], np.array(numbers, np.intp)[of_each]


def _group_figures(run: Run, places: list[int]) -> dict[str, Any]:
    entries = [run.entry(at) for at in places]
    entries.sort(key=lambda entry: entry.sample)
    rewards = [entry.reward for entry in entries if entry.reward is not None]
    mean = math.fsum(rewards) / len(rewards) if rewards else None
    return {
        "group": entries[0].group,
        "input_id": entries[0].input_id,
        "row": row_of(entries[0].input_id),
        "dropped": next((entry.dropped for entry in entries if entry.dropped), None),
        "mean": mean,
        "spread": math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards)) if mean is not None else None,
        "failed": sum(entry.cause is not None for entry in entries),
        "samples": [entry.to_dict() for entry in entries],
    }


def _row_figures(run: Run, row: str, by_step: dict[int, list[int]], bound: float) -> dict[str, Any]:
    visits: list[dict[str, Any]] = []
    for step, places in sorted(by_step.items()):
        rewards = np.nan_to_num(run.table["reward"][places], nan=0.0)
        known = {"step": step, "reward": float(rewards.mean()), "rollouts": len(places)}
        visits.append(known | {"example": run.key(places[0])})
    solved = [visit["reward"] >= bound for visit in visits]
    return {
        "row": row,
        "visits": visits,
        "change": _change(solved),
        "mean": math.fsum(visit["reward"] for visit in visits) / len(visits),
    }


def _change(solved: list[bool]) -> str:
    """
    >>> [_change(one) for one in ([False, True], [True, False], [True, True], [False, True, False], [False])]
    ['learned', 'forgotten', 'always', 'sometimes', 'never']
    """
    if all(solved):
        return "always"
    if not any(solved):
        return "never"
    if solved[-1] != solved[0]:
        return "learned" if solved[-1] else "forgotten"
    return "sometimes"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
