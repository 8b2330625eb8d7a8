"""How much longer a synchronous step takes than the least possible: the scheduler on a fake clock.

Groups of eight rollouts, whose lengths are drawn, start in the order of their rows. The least possible is the longest
rollout, or the time of all of them spread over the slots, whichever is longer. With 32 slots and 64 rollouts for each,
or 128 slots and 16, a step has 256 groups.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from async_floor import tool_seconds

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from agentcore_rl_toolkit.client.scheduler import JobGroup, RolloutLoop  # noqa: E402
from agentcore_rl_toolkit.types import Status  # noqa: E402
from support.virtual_time import run_virtual  # noqa: E402

N = 8
TIMES = (8, 16, 64)
"""Rollouts for each slot."""
ROLLOUTS = {32: 100_000, 128: 160_000, 1024: 200_000}
"""In all steps of a case together, by the number of slots."""
BAR = 1.15
"""`within` is the share of steps that take at most so many times the least possible."""
LENGTHS = {"exponential": lambda dice: dice.expovariate(0.5), "log-normal": tool_seconds}
"""Both with a mean of 2 s."""


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


def step_ratios() -> dict[str, Any]:
    """The seconds of a step against the least possible, by lengths, slots, and rollouts for each slot."""
    found: dict[str, Any] = {}
    for kind, draw in LENGTHS.items():
        for slots, rollouts in ROLLOUTS.items():
            for times in TIMES:
                ratios = []
                for seed in range(rollouts // (times * slots)):
                    dice = random.Random(seed)
                    lengths = [draw(dice) for _ in range(times * slots)]
                    ratios.append(step_seconds(lengths, slots) / max(sum(lengths) / slots, *lengths))
                found.setdefault(f"{kind}, {slots} slots", {})[str(times)] = spread(ratios)
            print(f"{kind}, {slots} slots", found[f"{kind}, {slots} slots"], flush=True)
    return found


def spread(ratios: Sequence[float]) -> dict[str, float]:
    known = {"mean": statistics.fmean(ratios), "least": min(ratios), "most": max(ratios)}
    known["within"] = sum(ratio <= BAR for ratio in ratios) / len(ratios)
    return {"steps": len(ratios)} | {name: round(value, 3) for name, value in known.items()}


def step_seconds(lengths: Sequence[float], slots: int) -> float:
    """The seconds of a step whose rollouts start in this order."""
    coming: Iterator[Sleeps] = (Sleeps(lengths[at : at + N]) for at in range(0, len(lengths), N))

    async def use() -> None:
        loop = RolloutLoop[Sleep, None](slots, lambda: next(coming, None))
        await loop.next()  # nothing is handed out, so it returns when all have ended

    seconds: float = run_virtual(use())[1]
    return seconds
