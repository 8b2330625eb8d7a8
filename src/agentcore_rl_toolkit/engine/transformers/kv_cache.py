"""Keys and values: the running batch's, and those kept for a session's next turn.

In the batch all rows end at the same column, so that one slice takes a step's new keys of every row, padding is on the
left, and the distance between two columns is the distance between two tokens (which sliding windows rely on). Rows join
and leave in place; a row's columns are copied only when the buffers grow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ...errors import ConfigError

if TYPE_CHECKING:
    from .model_runner import Runner

KV = list[tuple[Tensor, ...]]
"""A sequence's keys and values, layer by layer: heads × tokens × width. Of fixed passes, one tensor for all of them."""

ID_BYTES = 4
ROOM = 256
"""Columns that the batch's buffers have ahead, at least."""


def attention_layers(config: Any) -> tuple[int, bool]:
    """How many layers of keys and values the model has, and whether any slides. Refuses other kinds of state."""
    layers = DynamicCache(config=config).layers or [DynamicLayer() for _ in range(config.num_hidden_layers)]
    other = {type(layer).__name__ for layer in layers} - {DynamicLayer.__name__, DynamicSlidingWindowLayer.__name__}
    if other:
        raise ConfigError(
            f"{type(config).__name__} keeps {', '.join(sorted(other))}, which is not a cache of keys and values",
            hint="serve this model with vLLM or SGLang",
        )
    return len(layers), any(isinstance(layer, DynamicSlidingWindowLayer) for layer in layers)


class Layer(DynamicLayer):  # type: ignore[misc]
    """A layer of a cache whose tensors somebody else owns. Sliding layers are kept whole, the mask does the rest."""

    keys: Any
    values: Any
    seen = 0
    """Columns before the new ones."""

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        count = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.seen + count, 0


class _RowLayer(Layer):
    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows = rows
        self.end = self.size = 0
        """Where this layer's columns end and which `size` its buffers have: not the rows' if memory ran out between."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        rows, count = self.rows, keys.shape[0]
        self.allocate(keys, values)
        self.keys[:count, :, rows.end] = keys[:, :, 0]
        self.values[:count, :, rows.end] = values[:, :, 0]
        first = rows.end - self.seen
        return self.keys[:count, :, first : rows.end + 1], self.values[:count, :, first : rows.end + 1]

    def allocate(self, keys: Tensor, values: Tensor) -> None:
        """Buffers of the rows' size, if there are none yet."""
        if self.keys is None:
            self.keys, self.values = (_zeros(self.rows.room, like, self.rows.columns) for like in (keys, values))
            self.end, self.size = self.rows.end, self.rows.size

    def move(self, count: int, width: int) -> None:
        """Into buffers of the rows' present size, `width` columns of `count` rows."""
        if self.keys is None:
            return
        rows, moved = self.rows, []
        for old in (self.keys, self.values):
            new = _zeros(rows.room, old, rows.columns)
            new[:count, :, rows.end - width : rows.end] = old[:count, :, self.end - width : self.end]
            moved.append(new)
        (self.keys, self.values), self.end, self.size = moved, rows.end, rows.size


def _zeros(rows: int, like: Tensor, columns: int) -> Tensor:
    # Zeros, not whatever memory holds: a NaN under a mask is still a NaN.
    return torch.zeros(rows, like.shape[1], columns, like.shape[3], dtype=like.dtype, device=like.device)


class Rows:
    """The running batch's keys and values, and its steps."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.lengths: list[int] = []
        self._inputs = self._positions = torch.empty(0)
        self._clear()

    def _clear(self) -> None:
        self.room = self.columns = self.end = self.size = 0
        self.layers = [_RowLayer(self) for _ in range(self._runner.layers)]
        self.cache = Cache(layers=self.layers)

    @property
    def width(self) -> int:
        return max(self.lengths, default=0)

    def join(self, kv: KV | None, length: int) -> None:
        """Add a row with the first `length` tokens' keys and values."""
        row = len(self.lengths)
        if row >= self.room or length > self.end or not self._ready:
            self._make_room(row + 1, max(self.width, length))
        for layer, (keys, values) in zip(self.layers, kv or (), strict=False):
            layer.allocate(keys[None], values[None])
            layer.keys[row, :, self.end - length : self.end] = keys[:, :length]
            layer.values[row, :, self.end - length : self.end] = values[:, :length]
        self.lengths.append(length)

    def leave(self, row: int, *, poisoned: bool = False) -> None:
        """Remove a row; the last one takes its place. A `poisoned` one leaves no NaN behind."""
        last = len(self.lengths) - 1
        for layer in self.layers:
            columns = slice(layer.end - self.lengths[last], layer.end)
            for buffer in (layer.keys, layer.values):
                if buffer is not None:
                    if poisoned:
                        buffer[row] = 0
                    if row != last:
                        buffer[row, :, columns] = buffer[last, :, columns]
        self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        if not self.lengths:
            self._clear()

    def read(self, row: int, length: int) -> KV:
        """Views of the first `length` tokens of a row."""
        kv = []
        for layer in [layer for layer in self.layers if layer.keys is not None]:
            first = layer.end - self.lengths[row]
            kv.append((layer.keys[row, :, first : first + length], layer.values[row, :, first : first + length]))
        return kv

    def compose(self, ids: list[int]) -> None:
        """Somebody has joined or left; `ids` go through the model next, one of each row."""
        self._inputs = torch.tensor(ids, device=self._runner.device)[:, None]
        self._positions = torch.tensor(self.lengths, device=self._runner.device)[:, None]

    def step(self) -> tuple[Tensor, Tensor | None]:
        """The logits after each row's next id, and the routes."""
        if not self._ready:
            self._make_room(len(self.lengths), self.width)
        for layer in self.layers:
            layer.seen = self.width
        return self._runner.forward(self._inputs, self._positions, self._mask(self.width), self.cache)

    def advance(self, ids: Tensor) -> None:
        """The step's keys and values are there; `ids` are next."""
        self.end += 1
        for layer in self.layers:
            layer.end = self.end
        self.lengths = [length + 1 for length in self.lengths]
        self._inputs, self._positions = ids[:, None], self._positions + 1

    def _mask(self, width: int) -> Tensor | None:
        """None if no row is padded: then the fastest kernels can be used."""
        if min(self.lengths) == width:
            return None
        columns = torch.arange(width + 1, device=self._runner.device)
        mask = columns >= width - self._positions
        return mask[:, None, None, :] if self._runner.whole_mask else mask

    @property
    def _ready(self) -> bool:
        moved = all(layer.keys is None or layer.size == self.size for layer in self.layers)
        return moved and self.end < self.columns

    def _make_room(self, rows: int, longest: int) -> None:
        # A quarter on the left too: a longer row may join.
        self.room, self.end = 1 << (rows - 1).bit_length(), longest + longest // 4
        self.columns = self.end + max(ROOM, longest // 4)
        self.size += 1
        for layer in self.layers:
            layer.move(len(self.lengths), self.width)


@dataclass(frozen=True)
class Kept:
    """A prefix somebody may go on from."""

    key: bytes
    """Its ids."""
    kv: KV
    routes: bytes
    size: int
    """Bytes of memory."""


class Prefixes:
    """Keys and values of sequences that ended, the least recently used ones dropped beyond `limit` bytes."""

    MOST = 256

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self.entries: OrderedDict[bytes, Kept] = OrderedDict()

    def put(self, key: bytes, kv: KV, routes: bytes) -> None:
        """Keep a copy. An entry that the new one extends is of no use any more."""
        size = sum(tensor.nbytes for tensors in kv for tensor in tensors) + len(routes)
        if size > self.limit or not kv:
            return
        for old in [old for old in self.entries if key.startswith(old)]:
            self._drop(old)
        while self.entries and (self.size + size > self.limit or len(self.entries) >= self.MOST):
            self._drop(next(iter(self.entries)))
        copy = [tuple(tensor.clone() for tensor in tensors) for tensors in kv]
        self.entries[key] = Kept(key, copy, routes, size)
        self.size += size

    def used(self, entry: Kept) -> None:
        self.entries.move_to_end(entry.key)

    def clear(self) -> None:
        self.entries.clear()
        self.size = 0

    def _drop(self, key: bytes) -> None:
        self.size -= self.entries.pop(key).size


def common(a: bytes, b: bytes) -> int:
    """How many ids two sequences start with together.

    >>> from array import array
    >>> common(array("I", [1, 2, 3]).tobytes(), array("I", [1, 2, 4, 5]).tobytes())
    2
    """
    most = min(len(a), len(b)) // ID_BYTES
    if a[: most * ID_BYTES] == b[: most * ID_BYTES]:
        return most
    differs = range(most + 1)
    return bisect_left(differs, True, key=lambda n: a[: n * ID_BYTES] != b[: n * ID_BYTES]) - 1
