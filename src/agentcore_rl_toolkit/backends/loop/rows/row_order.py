"""Which rows each step trains on: shuffled, mixed from several files, and chosen by what they teach. Pure.

The order depends only on the seed and on the outcomes of earlier steps, so a resumed run has the same one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ....errors import ConfigError


@dataclass
class RowSource:
    """The rows of one file: places `start` to `end` among all rows. Each epoch has them in a new random order."""

    name: str
    start: int
    end: int
    weight: float = 1.0
    """How many of its rows a step takes, relative to the other sources."""
    key: str = ""
    """What its order follows from, besides the epoch."""
    epoch: int = -1
    _left: list[int] = field(default_factory=list)

    def next(self, skipped_until: Mapping[int, int]) -> int:
        """The next row that is not skipped in its epoch."""
        while True:
            while self._left:
                number = self._left.pop()
                if skipped_until.get(number, 0) <= self.epoch:
                    return number
            self.epoch += 1
            count = self.end - self.start
            order = random.Random(self.key.format(self.epoch)).sample(range(count), count)
            self._left = [self.start + place for place in reversed(order)]


class RowOrder:
    """The rows of every step.

    A row whose rollouts all had the same reward has taught nothing: it is always solved, or never. It is then left out
    of the next `skip_epochs` epochs of its source. Step k follows from the outcomes of the steps before k - `ahead`
    alone: the others may not be known when it starts. A resumed run may have another `ahead` than earlier steps had.
    """

    def __init__(
        self, sources: Sequence[RowSource], count: int, seed: int, *, skip_epochs: int = 0, ahead: int = 0
    ) -> None:
        self.sources, self._count, self._seed = list(sources), count, seed
        self._skip_epochs, self._ahead = skip_epochs, ahead
        for number, source in enumerate(self.sources):
            source.key = f"{seed}/{{}}" + (f"/{number}" if number else "")
        self._credit = [0.0] * len(self.sources)
        self._steps: list[list[int]] = []
        self._epochs: list[list[int]] = []
        """The epoch of each source at each step."""
        self._outcomes: dict[int, Mapping[int, bool]] = {}
        self._aheads: dict[int, int] = {}
        self._learned = 0
        """The first step whose outcomes no step follows from yet."""
        self._skipped_until: dict[int, int] = {}

    def add(self, step: int, taught: Mapping[int, bool], ahead: int | None = None) -> None:
        """Note which of a step's rows taught something. It omits rows without a result.

        `ahead` is what it was when the step was made, if that differs.
        """
        self._outcomes[step] = taught
        self._aheads[step] = self._ahead if ahead is None else ahead

    def step(self, step: int) -> list[int]:
        """The rows of a step, by their places among all rows."""
        while len(self._steps) <= step:
            number = len(self._steps)
            for known in range(self._learned, number - self._aheads.get(number, self._ahead)):
                self._learn(known)
                self._learned = known + 1
            self._steps.append([self._next_source().next(self._skipped_until) for _ in range(self._count)])
            self._epochs.append([source.epoch for source in self.sources])
        return self._steps[step]

    def spares(self, step: int, process: int, count: int) -> list[int]:
        """Random rows to replace groups of a step that are dropped. Call it right after `step`."""
        dice = random.Random(f"{self._seed}/{step}/{process}")
        numbers = [range(source.start, source.end) for source in self.sources]
        kept = [[n for n in own if not self._is_skipped(n)] or own for own in numbers]
        weights = [source.weight for source in self.sources]
        return [dice.choice(dice.choices(kept, weights)[0] if len(kept) > 1 else kept[0]) for _ in range(count)]

    def source_of(self, number: int) -> RowSource:
        return next(source for source in self.sources if source.start <= number < source.end)

    @property
    def skipped(self) -> int:
        """How many rows are being left out."""
        return sum(self._is_skipped(number) for number in self._skipped_until)

    def _is_skipped(self, number: int) -> bool:
        return self._skipped_until.get(number, 0) > self.source_of(number).epoch

    def _learn(self, step: int) -> None:
        """Leave rows out that taught nothing at a step."""
        if not self._skip_epochs:
            return
        for number, taught in self._outcomes.get(step, {}).items():
            if taught:
                self._skipped_until.pop(number, None)
            else:
                epoch = self._epochs[step][self.sources.index(self.source_of(number))]
                self._skipped_until[number] = epoch + 1 + self._skip_epochs

    def _next_source(self) -> RowSource:
        """The source that is furthest behind its share."""
        total = sum(source.weight for source in self.sources)
        self._credit = [have + source.weight for have, source in zip(self._credit, self.sources, strict=True)]
        place = max(range(len(self._credit)), key=self._credit.__getitem__)
        self._credit[place] -= total
        return self.sources[place]


def name_sources(files: Sequence[tuple[str, int, float]]) -> list[RowSource]:
    """The sources of files, given with their numbers of rows and their weights; named as the files, without folders.

    >>> [(one.name, one.start, one.end) for one in name_sources([("a/math.jsonl", 2, 1.0), ("b/math.jsonl", 3, 1.0)])]
    [('a_math', 0, 2), ('b_math', 2, 5)]
    """
    stems, sources, start = [Path(path).stem for path, *_ in files], [], 0
    for (path, count, weight), stem in zip(files, stems, strict=True):
        name = stem if stems.count(stem) == 1 else str(Path(path).with_suffix("")).strip("/.").replace("/", "_")
        sources.append(RowSource(name, start, start + count, weight))
        start += count
    if len({source.name for source in sources}) < len(sources):
        raise ConfigError(f"a file of rows is named twice: {', '.join(path for path, *_ in files)}")
    return sources
