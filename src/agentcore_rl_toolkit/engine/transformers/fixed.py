"""Keys and values in tensors that stay where they are, so that passes over them can be repeated as graphs.

The keys and values of all layers are one tensor, a token of position p is in column p of its row, and the shapes of
passes are rounded up: rows and ids that are not there write to a last column that nobody reads. For launch-bound
devices; elsewhere `kv.py` computes less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from .attention import sharing
from .graphs import Graphs
from .kv_cache import KV, Layer
from .model_runner import Runner, send
from .prefill import Chunk, prefill

ROOM = 256
"""Columns that the batch's rows have ahead, at least."""
KEPT = 1 / 16
"""Of the device's memory: an empty batch's rows are kept up to this."""
SCRATCH = 16_448
"""Tokens of keys and values of a prefill of fixed shape, at most."""
LARGE = 2048
"""Ids of a prefill from which rounding up costs more than launching kernels."""


@dataclass(frozen=True)
class Cell:
    """What a token's keys and values are like: layers × 2 × heads × width of `dtype`."""

    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        return self.layers * 2 * self.heads * self.width * int(self.dtype.itemsize)

    def zeros(self, rows: int, columns: int) -> Tensor:
        shape = (self.layers, 2, rows, self.heads, columns, self.width)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


class _FixedLayer(Layer):
    def __init__(self, buffer: Tensor, places: Tensor, columns: int) -> None:
        super().__init__()
        self.buffer, self.places, self.columns = buffer, places, columns

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        where = self.places[:, None, :, None].expand(keys.shape)
        for buffer, new in zip(self.buffer, (keys, values), strict=True):
            buffer.scatter_(2, where, new.to(buffer.dtype))
        return self.buffer[0, :, :, : self.columns], self.buffer[1, :, :, : self.columns]


def forward(runner: Runner, buffer: Tensor, feed: Tensor, columns: int) -> Tensor:
    """One pass over `feed`: ids, their positions and the columns they are written to, each rows × ids."""
    ids, positions, places = feed
    later = torch.arange(columns, device=feed.device) > positions[:, None, :, None]
    mask = torch.zeros(later.shape, dtype=buffer.dtype, device=feed.device).masked_fill_(later, -math.inf)
    cache = Cache(layers=[_FixedLayer(layer, places, columns) for layer in buffer])
    with sharing(runner.config):
        return runner.forward(ids, positions, mask, cache)[0]


class Slots:
    """The running batch's keys and values, and its steps."""

    def __init__(self, runner: Runner, graphs: Graphs, cell: Cell, most: int) -> None:
        self._runner, self._graphs, self._cell = runner, graphs, cell
        self._most = power(most)
        self.lengths: list[int] = []
        self._rows = 0
        self.clear()

    def clear(self) -> None:
        self._graphs.drop("step")
        self._buffer = self._cell.zeros(0, 1)
        self._logits = torch.empty(0, device=self._cell.device)
        self._feeds: dict[int, Tensor] = {}

    @property
    def width(self) -> int:
        return max(self.lengths, default=0)

    def join(self, kv: KV | None, length: int) -> None:
        """Add a row with the first `length` tokens' keys and values."""
        self._make_room(len(self.lengths) + 1, max(self.width, length) + 1)
        if kv:
            self._buffer[:, :, len(self.lengths), :, :length] = kv[0][0][..., :length, :]
        self.lengths.append(length)

    def leave(self, row: int, *, poisoned: bool = False) -> None:
        """Remove a row; the last one takes its place. A `poisoned` one leaves no NaN behind."""
        last = len(self.lengths) - 1
        if poisoned:
            self._buffer[:, :, row] = 0
        if row != last:
            columns = slice(self.lengths[last])
            self._buffer[:, :, row, :, columns] = self._buffer[:, :, last, :, columns]
        self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        if not self.lengths and self._buffer.nbytes > KEPT * _memory(self._cell.device):
            self.clear()

    def read(self, row: int, length: int) -> KV:
        """A view of the first `length` tokens of a row."""
        return [(self._buffer[:, :, row, :, :length],)]

    def compose(self, ids: list[int]) -> None:
        """Somebody has joined or left; `ids` go through the model next, one of each row."""
        self._rows = power(len(ids))
        away, spare = self._buffer.shape[4] - 1, self._rows - len(ids)
        feed = [ids + [0] * spare, self.lengths + [0] * spare, self.lengths + [away] * spare]
        self._feed.copy_(send(torch.tensor(feed)[:, :, None], self._cell.device))

    def step(self) -> tuple[Tensor, Tensor | None]:
        """The logits after each row's next id. There are no routes."""
        self._make_room(len(self.lengths), self.width + 1)
        rows, columns, feed = self._rows, rounded(self.width + 1), self._feed

        def work() -> None:
            self._logits[:rows] = forward(self._runner, self._buffer[:, :, :rows], feed, columns)

        self._graphs.run(("step", rows, columns), work)
        return self._logits[: len(self.lengths)], None

    def advance(self, ids: Tensor) -> None:
        """The step's keys and values are there; `ids` are next."""
        feed = self._feed[:, : len(ids)]
        feed[0] = ids[:, None]
        feed[1:] += 1
        self.lengths = [length + 1 for length in self.lengths]

    @property
    def _feed(self) -> Tensor:
        if self._rows not in self._feeds:
            self._feeds[self._rows] = torch.zeros(3, self._rows, 1, dtype=torch.int64, device=self._cell.device)
        return self._feeds[self._rows]

    def _make_room(self, rows: int, columns: int) -> None:
        room, known = self._buffer.shape[2], self._buffer.shape[4] - 1
        if rows <= room and columns <= known:
            return
        columns = known if columns <= known else rounded(columns + ROOM)
        affordable = int(KEPT * _memory(self._cell.device) / (self._cell.nbytes * columns))
        room = max(room, power(rows), min(self._most, 1 << affordable.bit_length() >> 1))
        buffer = self._cell.zeros(room, columns + 1)
        logits = torch.empty(room, self._runner.vocab_size, device=self._cell.device)
        taken = (slice(None), slice(None), slice(len(self.lengths)), slice(None), slice(self.width))
        buffer[taken] = self._buffer[taken]
        self._graphs.drop("step")
        self._buffer, self._logits = buffer, logits
        for feed in self._feeds.values():
            feed[2, len(self.lengths) :] = columns


class Scratch:
    """Prefills a few sequences' next ids, in memory that is only used meanwhile."""

    def __init__(self, runner: Runner, graphs: Graphs, cell: Cell) -> None:
        self._runner, self._graphs, self._cell = runner, graphs, cell
        memory = _memory(cell.device)
        self._room = min(SCRATCH, int(memory * KEPT / 4 / cell.nbytes)) if memory else SCRATCH
        self.clear()

    def clear(self) -> None:
        self._graphs.drop("prefill")
        self._memory = torch.empty(0, dtype=self._cell.dtype, device=self._cell.device)
        self._feeds: dict[tuple[int, int], Tensor] = {}

    def prefill(self, chunks: list[Chunk]) -> list[KV]:
        """Keys and values of each sequence with those of its new ids."""
        shape = rows, count, columns = _shape(chunks)
        if rows * count > LARGE or rows * (columns + 1) > self._room:
            half = len(chunks) // 2
            return self.prefill(chunks[:half]) + self.prefill(chunks[half:]) if half else self._plainly(chunks)
        buffer, feed = self._buffer(rows, columns), self._feed(rows, count)
        buffer.zero_()
        for row, chunk in enumerate(chunks):
            if chunk.kv and chunk.known:
                buffer[:, :, row, :, : chunk.known] = chunk.kv[0][0][..., : chunk.known, :]
        feed.copy_(send(_padded(chunks, rows, count, away=columns), self._cell.device))

        def work() -> None:
            forward(self._runner, buffer, feed, columns)

        self._graphs.run(("prefill", *shape), work)
        ends = [chunk.known + len(chunk.ids) for chunk in chunks]
        return [[(buffer[:, :, row, :, :end].clone(),)] for row, end in enumerate(ends)]

    def _plainly(self, chunks: list[Chunk]) -> list[KV]:
        """As a pass of just the shape it has."""
        apart = [Chunk(c.ids, [(kv[0], kv[1]) for kv in c.kv[0][0]] if c.kv else None, c.known) for c in chunks]
        found, _ = prefill(self._runner, apart)
        return [[(torch.stack([torch.stack(pair) for pair in cast(kv, self._cell.dtype)]),)] for kv in found]

    def _buffer(self, rows: int, columns: int) -> Tensor:
        each = self._cell.nbytes // self._cell.dtype.itemsize
        if not len(self._memory):
            self._memory = torch.empty(self._room * each, dtype=self._cell.dtype, device=self._cell.device)
        cell, tokens = self._cell, rows * (columns + 1)
        return self._memory[: tokens * each].view(cell.layers, 2, rows, cell.heads, columns + 1, cell.width)

    def _feed(self, rows: int, count: int) -> Tensor:
        if (rows, count) not in self._feeds:
            self._feeds[rows, count] = torch.zeros(3, rows, count, dtype=torch.int64, device=self._cell.device)
        return self._feeds[rows, count]


def _shape(chunks: list[Chunk]) -> tuple[int, int, int]:
    """Rows, ids and columns of a pass over them."""
    counts, ends = [len(chunk.ids) for chunk in chunks], [chunk.known + len(chunk.ids) for chunk in chunks]
    return power(len(chunks)), power(max(16, *counts)), power(max(256, *ends))


def _padded(chunks: list[Chunk], rows: int, count: int, *, away: int) -> Tensor:
    """Ids, positions and columns, padded on the right."""
    feed = torch.zeros(3, rows, count, dtype=torch.int64)
    feed[2] = away
    for row, chunk in enumerate(chunks):
        feed[0, row, : len(chunk.ids)] = torch.tensor(chunk.ids)
        feed[1:, row, : len(chunk.ids)] = torch.arange(chunk.known, chunk.known + len(chunk.ids))
    return feed


def cast(kv: KV, dtype: torch.dtype) -> KV:
    return [tuple(tensor.to(dtype) for tensor in tensors) for tensors in kv]


def power(count: int) -> int:
    """The next power of two.

    >>> [power(n) for n in (1, 2, 3, 100)]
    [1, 2, 4, 128]
    """
    return 1 << (count - 1).bit_length()


def rounded(columns: int) -> int:
    """A quarter more at most, in steps of at least 128.

    >>> [rounded(n) for n in (5, 129, 1000, 1025)]
    [128, 256, 1024, 1280]
    """
    step = max(128, power(columns) // 8)
    return -(-columns // step) * step


def _memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
