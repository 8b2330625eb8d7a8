"""The way of prompts into keys and values: one pass over the next ids of a few sequences, padded on the left."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from .kv_cache import KV, Layer
from .model_runner import Runner


@dataclass(frozen=True)
class Chunk:
    """The next ids of a sequence, and what is known of those before."""

    ids: array[int]
    kv: KV | None
    known: int
    """How many ids `kv` is of."""


def prefill(runner: Runner, chunks: list[Chunk]) -> tuple[list[KV], Tensor | None]:
    """Keys and values of each sequence with those of its new ids, and the routes of these, aligned on the right."""
    counts, known = [len(chunk.ids) for chunk in chunks], [chunk.known for chunk in chunks]
    width, device = max(counts), runner.device
    cache = _Prefill(chunks, runner.layers)
    ids = torch.tensor([[0] * (width - len(chunk.ids)) + chunk.ids.tolist() for chunk in chunks])
    first = torch.tensor([[chunk.known - (width - len(chunk.ids))] for chunk in chunks])
    positions = (first + torch.arange(width)).clamp(min=0)
    mask = None
    if len(chunks) > 1:
        mask = torch.cat([_right_aligned(known, cache.width), _right_aligned(counts, width)], dim=1).to(device)
    _, routes = runner.forward(ids.to(device), positions.to(device), mask, cache.cache)
    return [cache.result(row) for row in range(len(chunks))], routes


class _PrefillLayer(Layer):
    def __init__(self, prefix: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        self.prefix = prefix
        self.seen = 0 if prefix is None else prefix[0].shape[2]

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = keys, values
        if self.prefix is None:
            return keys, values
        return torch.cat([self.prefix[0], keys], dim=2), torch.cat([self.prefix[1], values], dim=2)


class _Prefill:
    """The cache of such a pass: what is known of each sequence, and what its ids add."""

    def __init__(self, chunks: list[Chunk], layers: int) -> None:
        self.chunks = chunks
        self.width = max(chunk.known for chunk in chunks)
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
            if chunk.kv and chunk.known:
                padded[row, :, self.width - chunk.known :] = chunk.kv[layer][which][:, : chunk.known]
        return padded

    def result(self, row: int) -> KV:
        """A sequence's keys and values with those of its new ids."""
        chunk, kv = self.chunks[row], []
        for i, layer in enumerate(self.layers):
            new = [tensor[row, :, tensor.shape[2] - len(chunk.ids) :] for tensor in (layer.keys, layer.values)]
            if chunk.kv and chunk.known:
                old = [tensor[:, : chunk.known] for tensor in chunk.kv[i]]
                new = [torch.cat(pair, dim=1) for pair in zip(old, new, strict=True)]
            kv.append((new[0], new[1]))
        return kv


def _right_aligned(lengths: list[int], width: int) -> Tensor:
    return torch.arange(width) >= width - torch.tensor(lengths)[:, None]
