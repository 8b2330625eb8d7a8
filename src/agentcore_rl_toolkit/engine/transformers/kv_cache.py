"""Keys and values: those of the running batch, and those kept for a session's next turn.

All rows of the batch end at the same column. So one slice takes a step's new keys of every row, padding is on the left,
and the distance between two columns is the distance between two tokens, which sliding windows rely on. Rows join and
leave in place; a row's columns are copied only when the buffers grow.
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
    from .model_runner import ModelRunner

KV = list[tuple[Tensor, Tensor]]
"""A sequence's keys and values, layer by layer: heads × tokens × width."""

ID_BYTES = 4
SPARE_COLUMNS = 256
"""The least number of free columns that new buffers have ahead."""


def attention_layers(config: Any) -> tuple[int, bool]:
    """The number of layers with keys and values, and whether any has a sliding window. Refuses other kinds of state."""
    layers = DynamicCache(config=config).layers or [DynamicLayer() for _ in range(config.num_hidden_layers)]
    other = {type(layer).__name__ for layer in layers} - {DynamicLayer.__name__, DynamicSlidingWindowLayer.__name__}
    if other:
        raise ConfigError(
            f"{type(config).__name__} keeps {', '.join(sorted(other))}, which is not a cache of keys and values",
            hint="serve this model with vLLM or SGLang",
        )
    return len(layers), any(isinstance(layer, DynamicSlidingWindowLayer) for layer in layers)


class BorrowedLayer(DynamicLayer):  # type: ignore[misc]
    """A cache layer over tensors that it doesn't own. Sliding layers keep all columns; the mask hides the old ones."""

    keys: Any
    values: Any
    seen = 0
    """Columns before the new ones."""

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        count = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.seen + count, 0


class _BatchLayer(BorrowedLayer):
    def __init__(self, batch: BatchCache) -> None:
        super().__init__()
        self.batch = batch
        self.end = self.size = 0
        """Where this layer's columns end, and the `size` its buffers have. They lag behind the batch's if memory ran
        out between two layers."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        batch, count = self.batch, keys.shape[0]
        self.allocate(keys, values)
        self.keys[:count, :, batch.end] = keys[:, :, 0]
        self.values[:count, :, batch.end] = values[:, :, 0]
        first = batch.end - self.seen
        return self.keys[:count, :, first : batch.end + 1], self.values[:count, :, first : batch.end + 1]

    def allocate(self, keys: Tensor, values: Tensor) -> None:
        """Make buffers of the batch's size if the layer has none yet."""
        if self.keys is None:
            self.keys, self.values = (_zeros(self.batch.rows, like, self.batch.columns) for like in (keys, values))
            self.end, self.size = self.batch.end, self.batch.size

    def resize(self, count: int, width: int) -> None:
        """Copy the last `width` columns of `count` rows into buffers of the batch's new size."""
        if self.keys is None:
            return
        batch, moved = self.batch, []
        for old in (self.keys, self.values):
            new = _zeros(batch.rows, old, batch.columns)
            new[:count, :, batch.end - width : batch.end] = old[:count, :, self.end - width : self.end]
            moved.append(new)
        (self.keys, self.values), self.end, self.size = moved, batch.end, batch.size


def _zeros(rows: int, like: Tensor, columns: int) -> Tensor:
    # Zeros rather than uninitialized memory: a NaN under a mask is still a NaN.
    return torch.zeros(rows, like.shape[1], columns, like.shape[3], dtype=like.dtype, device=like.device)


class BatchCache:
    """The running batch's keys and values, and its forward passes."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.lengths: list[int] = []
        self._inputs = self._positions = torch.empty(0)
        self._clear()

    def _clear(self) -> None:
        self.rows = self.columns = self.end = self.size = 0
        self.layers = [_BatchLayer(self) for _ in range(self._runner.layers)]
        self.cache = Cache(layers=self.layers)

    @property
    def width(self) -> int:
        return max(self.lengths, default=0)

    def add_row(self, kv: KV | None, length: int) -> None:
        """Add a row with the keys and values of its first `length` tokens."""
        row = len(self.lengths)
        if row >= self.rows or length > self.end or not self._has_space:
            self._grow(row + 1, max(self.width, length))
        for layer, (keys, values) in zip(self.layers, kv or (), strict=False):
            layer.allocate(keys[None], values[None])
            layer.keys[row, :, self.end - length : self.end] = keys[:, :length]
            layer.values[row, :, self.end - length : self.end] = values[:, :length]
        self.lengths.append(length)

    def remove_row(self, row: int, *, poisoned: bool = False) -> None:
        """Remove a row; the last row takes its place. A `poisoned` row is zeroed, so that no NaN stays behind."""
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

    def read_row(self, row: int, length: int) -> KV:
        """Views of the first `length` tokens of a row."""
        kv = []
        for layer in [layer for layer in self.layers if layer.keys is not None]:
            first = layer.end - self.lengths[row]
            kv.append((layer.keys[row, :, first : first + length], layer.values[row, :, first : first + length]))
        return kv

    def set_inputs(self, ids: list[int]) -> None:
        """After rows joined or left: the id of each row that goes through the model next."""
        self._inputs = torch.tensor(ids, device=self._runner.device)[:, None]
        self._positions = torch.tensor(self.lengths, device=self._runner.device)[:, None]

    def step(self) -> Tensor:
        """The logits after each row's next id."""
        if not self._has_space:
            self._grow(len(self.lengths), self.width)
        for layer in self.layers:
            layer.seen = self.width
        return self._runner.forward(self._inputs, self._positions, self._mask(self.width), self.cache)

    def advance(self, ids: Tensor) -> None:
        """Count the step's keys and values as cached; `ids` go through the model next."""
        self.end += 1
        for layer in self.layers:
            layer.end = self.end
        self.lengths = [length + 1 for length in self.lengths]
        self._inputs, self._positions = ids[:, None], self._positions + 1

    def _mask(self, width: int) -> Tensor | None:
        """None if no row is padded: attention then uses its fastest kernels."""
        if min(self.lengths) == width:
            return None
        columns = torch.arange(width + 1, device=self._runner.device)
        mask = columns >= width - self._positions
        return mask[:, None, None, :] if self._runner.takes_4d_mask else mask

    @property
    def _has_space(self) -> bool:
        resized = all(layer.keys is None or layer.size == self.size for layer in self.layers)
        return resized and self.end < self.columns

    def _grow(self, rows: int, longest: int) -> None:
        # A quarter on the left too, for a longer row that may join.
        self.rows, self.end = 1 << (rows - 1).bit_length(), longest + longest // 4
        self.columns = self.end + max(SPARE_COLUMNS, longest // 4)
        self.size += 1
        for layer in self.layers:
            layer.resize(len(self.lengths), self.width)


@dataclass(frozen=True)
class KeptPrefix:
    """The keys and values of a sequence that ended, for the session's next turn."""

    key: bytes
    """Its ids."""
    kv: KV
    nbytes: int


class PrefixCache:
    """Prefixes of sequences that ended; beyond `limit` bytes the least recently used go first."""

    MAX_ENTRIES = 256

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes = limit, 0
        self.entries: OrderedDict[bytes, KeptPrefix] = OrderedDict()

    def put(self, key: bytes, kv: KV) -> None:
        """Keep a copy, in place of any entry that it extends."""
        nbytes = sum(tensor.nbytes for tensors in kv for tensor in tensors)
        if nbytes > self.limit or not kv:
            return
        for old in [old for old in self.entries if key.startswith(old)]:
            self._drop(old)
        while self.entries and (self.nbytes + nbytes > self.limit or len(self.entries) >= self.MAX_ENTRIES):
            self._drop(next(iter(self.entries)))
        self.entries[key] = KeptPrefix(key, [(keys.clone(), values.clone()) for keys, values in kv], nbytes)
        self.nbytes += nbytes

    def clear(self) -> None:
        self.entries.clear()
        self.nbytes = 0

    def _drop(self, key: bytes) -> None:
        self.nbytes -= self.entries.pop(key).nbytes


def common_prefix(a: bytes, b: bytes) -> int:
    """How many leading ids two sequences share.

    >>> from array import array
    >>> common_prefix(array("I", [1, 2, 3]).tobytes(), array("I", [1, 2, 4, 5]).tobytes())
    2
    """
    most = min(len(a), len(b)) // ID_BYTES
    if a[: most * ID_BYTES] == b[: most * ID_BYTES]:
        return most
    differs = range(most + 1)
    return bisect_left(differs, True, key=lambda n: a[: n * ID_BYTES] != b[: n * ID_BYTES]) - 1
