"""Whether a synchronous step ends sooner if rows that were long before start first: the scheduler on a fake clock.

A step has as many rows as fill its slots eight times, eight rollouts each. Half of the variance of a rollout's length
belongs to its row, or none of it; what is known of a row are the lengths of eight other rollouts of it.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

import asyncio  # noqa: E402

from agentcore_rl_toolkit.client.scheduler import JobGroup, RolloutLoop  # noqa: E402
from agentcore_rl_toolkit.types import Status  # noqa: E402
from support.virtual_time import run_virtual  # noqa: E402

N, TIMES = 8, 8
REPEATS = {32: 100, 128: 30, 1024: 4}


@dataclass(eq=False)
class Sleep:
    seconds: float
    status: Status = Status.COMPLETED

    async def run(self) -> Sleep:
        await asyncio.sleep(self.seconds)
        return self


class Sleeps(JobGroup[Sleep, Sleep]):
    def __init__(self, lengths: Sequence[float]) -> None:
        super().__init__("row")
        self.pending.extend(map(Sleep, lengths))

    def ended(self, job: Sleep, outcome: Sleep, *, counts: bool) -> None:
        pass


def orders() -> dict[str, Any]:
    """The seconds of a step against the least possible, in the rows' own order and with the longest first."""
    found: dict[str, Any] = {}
    for kind in ("exponential", "log-normal"):
        for share in (0.0, 0.5):
            for slots, repeats in REPEATS.items():
                given, first = [], []
                for seed in range(repeats):
                    rows = list(draw(random.Random(seed), kind, share, TIMES * slots // N))
                    lengths = [lengths for lengths, _ in rows]
                    every = [each for row in lengths for each in row]
                    least = max(sum(every) / slots, *every)
                    given.append(step_seconds(lengths, slots) / least)
                    rows.sort(key=lambda row: -statistics.fmean(row[1]))
                    first.append(step_seconds([lengths for lengths, _ in rows], slots) / least)
                name = f"{kind}, {slots} slots, " + ("rows differ" if share else "rows alike")
                found[name] = {
                    "steps": repeats, "given": spread(given), "longest_first": spread(first)
                }  # fmt: skip
                print(name, found[name], flush=True)
    return found


def spread(ratios: Sequence[float]) -> dict[str, float]:
    return {"mean": round(statistics.fmean(ratios), 3), "least": round(min(ratios), 3), "most": round(max(ratios), 3)}


def draw(dice: random.Random, kind: str, share: float, rows: int) -> Iterator[tuple[list[float], list[float]]]:
    """The lengths of a row's rollouts, and those of eight others; `share` of the logs' variance is the row's."""
    deviation = 1.429 if kind == "log-normal" else 1.0
    for _ in range(rows):
        usual = math.exp(dice.gauss(0.0, deviation * math.sqrt(share)))

        def length(usual: float = usual) -> float:
            if kind == "exponential":
                return dice.expovariate(1 / usual)
            return usual * math.exp(dice.gauss(0.0, deviation * math.sqrt(1 - share)))

        yield [length() for _ in range(N)], [length() for _ in range(N)]


def step_seconds(rows: Sequence[Sequence[float]], slots: int) -> float:
    """The seconds of a step whose rows start in this order."""
    coming = iter(rows)

    async def use() -> None:
        loop = RolloutLoop[Sleep, None](
            slots, lambda: Sleeps(lengths) if (lengths := next(coming, None)) is not None else None
        )
        await loop.next()  # nothing is handed out, so it returns when all have ended

    seconds: float = run_virtual(use())[1]
    return seconds
