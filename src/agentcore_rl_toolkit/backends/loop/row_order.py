"""Which rows a step trains on, where a trainer leaves that to us. Pure: a resumed run has the same order."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from typing import Any


def rows_of_step(rows: Sequence[dict[str, Any]], step: int, count: int, seed: int) -> list[dict[str, Any]]:
    """A step's rows. Each epoch has all rows in a new random order, which only the seed decides."""
    chosen = []
    for place in range(step * count, (step + 1) * count):
        epoch, at = divmod(place, len(rows))
        chosen.append(rows[_shuffled(seed, epoch, len(rows))[at]])
    return chosen


def with_spares(rows: Sequence[dict[str, Any]], every: Sequence[dict[str, Any]], seed: str) -> Iterator[dict[str, Any]]:
    """A step's rows, then random ones of all rows to replace dropped groups."""
    yield from rows
    dice = random.Random(seed)
    for _ in range(2 * len(rows)):
        yield dice.choice(every)


@functools.lru_cache(maxsize=2)
def _shuffled(seed: int, epoch: int, count: int) -> list[int]:
    return random.Random(f"{seed}/{epoch}").sample(range(count), count)
