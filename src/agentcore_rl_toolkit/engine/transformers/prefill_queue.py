"""The sequences that wait for a place in the batch, and their way there: prefilling all but their last id.

Prefills are shared: a sequence starts from the longest prefix that a kept or running one has in common with it, and
waits a round if another one of the queue is about to prefill that prefix. Long prompts take several rounds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from operator import itemgetter

from .decode_batch import Batch
from .kv_cache import ID_BYTES, Kept, Prefixes, common
from .layout import Layout
from .limits import Counters, Limits
from .model_runner import Runner, as_bytes
from .prefill import Chunk
from .sequence import Sequence

WORTH = 32
"""How many ids another one must be about to prefill for us before we wait for it."""
SMALLEST = 64
"""Ids to prefill in one pass, when memory is short."""
AHEAD = 256
"""How many tokens a sequence should be able to sample before there is no room again."""

Source = Kept | Sequence


class Queue(deque[Sequence]):
    """Who waits, in order."""

    def __init__(
        self, runner: Runner, layout: Layout, batch: Batch, prefixes: Prefixes, limits: Limits, counters: Counters
    ) -> None:
        super().__init__()
        self._runner, self._layout, self._batch, self._prefixes = runner, layout, batch, prefixes
        self._limits, self._counters = limits, counters
        self._budget = limits.prefill_tokens

    def group(self, epoch: int) -> list[Sequence]:
        """Who is next: in order, alike in length, and nobody who had better wait for another's prefix."""
        group: list[Sequence] = []
        keys: list[bytes] = []
        longest = 0
        sources = self._sources(epoch) if self else []
        for sequence in list(self)[: 2 * self._limits.max_batch]:
            if not self._fits(len(group), sequence):
                break
            key = sequence.ids.tobytes()
            length, source = (sequence.filled, None) if sequence.filled else _longest(key, sources)
            place = bisect_left(keys, key)
            if max((common(key, other) for other in keys[max(0, place - 1) : place + 1]), default=0) >= length + WORTH:
                continue
            count = min(len(sequence.ids) - 1 - length, self._budget)
            if group and not self._alike(count, longest, len(group)):
                continue
            self._adopt(sequence, length, source, epoch)
            group.append(sequence)
            keys.insert(place, key)
            longest = max(longest, count)
        return group

    def prefill(self, group: list[Sequence]) -> None:
        """One pass over the next ids of each."""
        group = [s for s in group if not s.prefilled]
        if not group:
            return
        chunks = [Chunk(s.ids[s.filled : min(len(s.ids) - 1, s.filled + self._budget)], s.kv, s.filled) for s in group]
        found, routes = self._layout.prefill(chunks)
        for row, (sequence, chunk) in enumerate(zip(group, chunks, strict=True)):
            sequence.kv = found[row]
            sequence.filled += len(chunk.ids)
            self._counters.prefilled += len(chunk.ids)
            if routes is not None:
                sequence.routes += as_bytes(routes[row, routes.shape[1] - len(chunk.ids) :])

    def shrink(self) -> bool:
        """Prefill less at a time from now on; False if that is not possible."""
        if self._budget <= SMALLEST:
            return False
        self._budget //= 2
        return True

    def _alike(self, count: int, longest: int, rows: int) -> bool:
        """Whether prefilling it with the others is not mostly padding, and not too much."""
        if count == 0 or longest == 0:
            return True
        if self._runner.slides:  # the gap between a prefix and what follows would count as distance
            return False
        less, more = sorted((count, longest))
        return (less * 2 >= more or more <= self._layout.alike) and (rows + 1) * more <= self._budget

    def _fits(self, joining: int, sequence: Sequence) -> bool:
        rows = len(self._batch) + joining + 1
        if rows > self._limits.max_batch:
            return False
        length = len(sequence.ids) + min(AHEAD, sequence.limit - len(sequence.ids))
        return rows == 1 or rows * max(self._batch.width, length) <= self._limits.max_batch_tokens

    def _sources(self, epoch: int) -> list[tuple[bytes, Source]]:
        """What a prefix can be taken from, sorted: what is kept, and who is running."""
        sources: list[tuple[bytes, Source]] = [(kept.key, kept) for kept in self._prefixes.entries.values()]
        running = [s for s in self._batch.sequences if s.epoch == epoch]
        return sorted(sources + [(self._batch.known(s), s) for s in running], key=itemgetter(0))

    def _adopt(self, sequence: Sequence, length: int, source: Source | None, epoch: int) -> None:
        if sequence.filled == 0:
            sequence.epoch = epoch
        if source is None:
            return
        if isinstance(source, Sequence):
            sequence.kv = self._batch.read(source, length)
        else:
            sequence.kv = source.kv
            self._prefixes.used(source)
        sequence.filled = length
        sequence.routes[:] = source.routes[: length * self._runner.route_bytes]
        self._counters.reused += length


def _longest(key: bytes, sources: list[tuple[bytes, Source]]) -> tuple[int, Source | None]:
    """The source with the longest common prefix, at most all but the last id. `sources` are sorted."""
    place = bisect_left(sources, key, key=itemgetter(0))
    best: tuple[int, Source | None] = (0, None)
    for other, source in sources[max(0, place - 1) : place + 1]:  # of a sorted list, a neighbour has most in common
        length = min(common(key, other), len(key) // ID_BYTES - 1)
        if length > best[0]:
            best = (length, source)
    return best
