"""The sequences that wait for a place in the batch, and the passes over their prompts, up to the last id.

Prefills are shared: a sequence starts from the longest prefix that a kept or running one has in common with it, and
waits a round if another waiting sequence is about to prefill that prefix. Long prompts take several rounds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from .decode_batch import Counters, DecodeBatch, DecoderLimits
from .kv_cache import ID_BYTES, KV, BorrowedLayer, KeptPrefix, PrefixCache, common_prefix
from .model_runner import ModelRunner
from .sequence import Sequence

SHARED_PREFIX = 32
"""A sequence waits for another's prefill that covers at least this many more ids than it has cached."""
SMALLEST_PASS = 64
"""The least number of ids to prefill in one pass when memory is short."""
AHEAD = 256
"""How many tokens a sequence should be able to sample before the batch is full again."""
PADDED = 16
"""Chunks up to this length are prefilled together even if their lengths differ."""

PrefixSource = KeptPrefix | Sequence


class PrefillQueue(deque[Sequence]):
    def __init__(
        self,
        runner: ModelRunner,
        batch: DecodeBatch,
        prefixes: PrefixCache,
        limits: DecoderLimits,
        counters: Counters,
    ) -> None:
        super().__init__()
        self._runner, self._batch, self._prefixes = runner, batch, prefixes
        self._limits, self._counters = limits, counters
        self._budget = limits.prefill_tokens

    def next_group(self, epoch: int) -> list[Sequence]:
        """The sequences to prefill next: in order, of similar length, none that should wait for another's prefix."""
        group: list[Sequence] = []
        keys: list[bytes] = []
        longest = 0
        sources = self._sources(epoch) if self else []
        for sequence in list(self)[: 2 * self._limits.max_batch]:
            if not self._fits(len(group), sequence):
                break
            key = sequence.ids.tobytes()
            length, source = (sequence.filled, None) if sequence.filled else _longest_prefix(key, sources)
            place = bisect_left(keys, key)
            shared = max((common_prefix(key, other) for other in keys[max(0, place - 1) : place + 1]), default=0)
            count = min(len(sequence.ids) - 1 - length, self._budget)
            if shared >= length + SHARED_PREFIX or (group and not self._similar(count, longest, len(group))):
                continue
            self._adopt(sequence, length, source, epoch)
            group.append(sequence)
            keys.insert(place, key)
            longest = max(longest, count)
        return group

    def prefill(self, group: list[Sequence]) -> None:
        group = [s for s in group if not s.prefilled]
        if not group:
            return
        chunks = [
            PrefillChunk(s.ids[s.filled : min(len(s.ids) - 1, s.filled + self._budget)], s.kv, s.filled) for s in group
        ]
        for sequence, chunk, kv in zip(group, chunks, prefill(self._runner, chunks), strict=True):
            sequence.kv = kv
            sequence.filled += len(chunk.ids)
            self._counters.prefilled += len(chunk.ids)

    def shrink(self) -> bool:
        """Prefill less per pass from now on; False if that is not possible."""
        if self._budget <= SMALLEST_PASS:
            return False
        self._budget //= 2
        return True

    def _similar(self, count: int, longest: int, rows: int) -> bool:
        """Whether a pass with this sequence is mostly ids rather than padding, and within the budget."""
        if count == 0 or longest == 0:
            return True
        if self._runner.has_sliding_window:  # the gap between a prefix and its next ids would count as distance
            return False
        less, more = sorted((count, longest))
        return (less * 2 >= more or more <= PADDED) and (rows + 1) * more <= self._budget

    def _fits(self, joining: int, sequence: Sequence) -> bool:
        rows = len(self._batch) + joining + 1
        if rows > self._limits.max_batch:
            return False
        length = len(sequence.ids) + min(AHEAD, sequence.limit - len(sequence.ids))
        return rows == 1 or rows * max(self._batch.width, length) <= self._limits.max_batch_tokens

    def _sources(self, epoch: int) -> list[tuple[bytes, PrefixSource]]:
        """Where a prefix can be taken from, sorted: kept prefixes and running sequences."""
        sources: list[tuple[bytes, PrefixSource]] = [(kept.key, kept) for kept in self._prefixes.entries.values()]
        running = [s for s in self._batch.sequences if s.epoch == epoch]
        return sorted(sources + [(self._batch.cached_ids(s), s) for s in running], key=itemgetter(0))

    def _adopt(self, sequence: Sequence, length: int, source: PrefixSource | None, epoch: int) -> None:
        """Let the sequence start from the first `length` tokens of `source`."""
        if sequence.filled == 0:
            sequence.epoch = epoch
        if source is None:
            return
        if isinstance(source, Sequence):
            sequence.kv = self._batch.read_kv(source, length)
        else:
            sequence.kv = source.kv
            self._prefixes.entries.move_to_end(source.key)
        sequence.filled = length
        self._counters.reused += length


def _longest_prefix(key: bytes, sources: list[tuple[bytes, PrefixSource]]) -> tuple[int, PrefixSource | None]:
    """The longest common prefix, at most all but the last id, and its source. `sources` are sorted."""
    place = bisect_left(sources, key, key=itemgetter(0))
    best: tuple[int, PrefixSource | None] = (0, None)
    for other, source in sources[max(0, place - 1) : place + 1]:  # in a sorted list, a neighbour shares the most
        length = min(common_prefix(key, other), len(key) // ID_BYTES - 1)
        if length > best[0]:
            best = (length, source)
    return best


@dataclass(frozen=True)
class PrefillChunk:
    """The next ids of a sequence, and the keys and values before them."""

    ids: array[int]
    kv: KV | None
    cached: int
    """How many ids `kv` covers."""


def prefill(runner: ModelRunner, chunks: list[PrefillChunk]) -> list[KV]:
    """Keys and values of each sequence including its new ids, by one pass that is padded on the left."""
    counts, cached = [len(chunk.ids) for chunk in chunks], [chunk.cached for chunk in chunks]
    width, device = max(counts), runner.device
    cache = _PrefillCache(chunks, runner.layers)
    ids = torch.tensor([[0] * (width - len(chunk.ids)) + chunk.ids.tolist() for chunk in chunks])
    first = torch.tensor([[chunk.cached - (width - len(chunk.ids))] for chunk in chunks])
    positions = (first + torch.arange(width)).clamp(min=0)
    mask = None
    if len(chunks) > 1:
        mask = torch.cat([_right_aligned(cached, cache.width), _right_aligned(counts, width)], dim=1).to(device)
    runner.forward(ids.to(device), positions.to(device), mask, cache.cache)
    return [cache.read_row(row) for row in range(len(chunks))]


class _PrefillLayer(BorrowedLayer):
    def __init__(self, prefix: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        self.prefix = prefix
        self.seen = 0 if prefix is None else prefix[0].shape[2]

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = keys, values
        if self.prefix is None:
            return keys, values
        return torch.cat([self.prefix[0], keys], dim=2), torch.cat([self.prefix[1], values], dim=2)


class _PrefillCache:
    """The cache of one pass: each sequence's prefix, and the keys and values that its new ids add."""

    def __init__(self, chunks: list[PrefillChunk], layers: int) -> None:
        self.chunks = chunks
        self.width = max(chunk.cached for chunk in chunks)
        self.layers = [_PrefillLayer(self._prefix(i)) for i in range(layers)]
        self.cache = Cache(layers=self.layers)

    def _prefix(self, layer: int) -> tuple[Tensor, Tensor] | None:
        if not self.width:
            return None
        if len(self.chunks) == 1 and self.chunks[0].kv is not None:
            keys, values = self.chunks[0].kv[layer]
            return keys[None, :, : self.width], values[None, :, : self.width]
        return self._padded(layer, 0), self._padded(layer, 1)

    def _padded(self, layer: int, which: int) -> Tensor:
        like = next(chunk.kv for chunk in self.chunks if chunk.kv)[layer][which]
        padded = like.new_zeros(len(self.chunks), like.shape[0], self.width, like.shape[2])
        for row, chunk in enumerate(self.chunks):
            if chunk.kv and chunk.cached:
                padded[row, :, self.width - chunk.cached :] = chunk.kv[layer][which][:, : chunk.cached]
        return padded

    def read_row(self, row: int) -> KV:
        """A sequence's keys and values including those of its new ids."""
        chunk, kv = self.chunks[row], []
        for i, layer in enumerate(self.layers):
            new = [tensor[row, :, tensor.shape[2] - len(chunk.ids) :] for tensor in (layer.keys, layer.values)]
            if chunk.kv and chunk.cached:
                old = [tensor[:, : chunk.cached] for tensor in chunk.kv[i]]
                new = [torch.cat(pair, dim=1) for pair in zip(old, new, strict=True)]
            kv.append((new[0], new[1]))
        return kv


def _right_aligned(lengths: list[int], width: int) -> Tensor:
    return torch.arange(width) >= width - torch.tensor(lengths)[:, None]
