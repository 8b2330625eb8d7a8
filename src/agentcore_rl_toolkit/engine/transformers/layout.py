"""How keys and values lie in memory, and with them how passes are run: plainly, or in fixed shapes that graphs repeat.

Fixed shapes are for GPUs, where a small model's kernels take longer to launch than to run. Whether a model can have
them is tried out once, on a few ids: both ways must give the same.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .fixed import Cell, Scratch, Slots
from .graphs import Graphs
from .kv_cache import KV, Rows
from .model_runner import Runner
from .prefill import Chunk, prefill

logger = logging.getLogger(__name__)

CLOSE = 0.1
"""How far logits of both ways may be apart, as a share of their spread; half precision stays well below."""


class Plain:
    """Passes of just the shape they have."""

    alike = 16
    """Chunks up to this length may be prefilled together whatever their lengths are."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.rows, self.device = runner, Rows(runner), runner.device

    def prefill(self, chunks: list[Chunk]) -> tuple[list[KV], Tensor | None]:
        return prefill(self.runner, chunks)

    def wake(self) -> None:
        """Work begins again; whoever held the model may have done anything to it."""

    def free(self) -> None:
        """Memory is short."""


class Fixed:
    """Passes of fixed shapes."""

    alike = 64

    def __init__(self, runner: Runner, cell: Cell, most: int) -> None:
        self.device, self.graphs = runner.device, Graphs(runner.model, runner.device)
        self.rows = Slots(runner, self.graphs, cell, most)
        self._scratch = Scratch(runner, self.graphs, cell)

    def prefill(self, chunks: list[Chunk]) -> tuple[list[KV], Tensor | None]:
        return self._scratch.prefill(chunks), None

    def wake(self) -> None:
        self.graphs.check()

    def free(self) -> None:
        self.graphs.drop()
        self._scratch.clear()
        if not self.rows.lengths:
            self.rows.clear()


Layout = Plain | Fixed


def choose(runner: Runner, most: int, graphs: bool | None) -> Layout:
    """Fixed shapes if they are wanted (by default, on a GPU) and the model can have them, for up to `most` rows."""
    wanted = runner.device.type == "cuda" if graphs is None else graphs
    if not wanted or not runner.whole_mask or runner.experts is not None or runner.rope_moves:
        return Plain(runner)
    try:
        with _probing(runner):
            fixed = _tried(runner, most)
    except Exception as error:  # whatever a model's own code raises for inputs it doesn't know
        logger.info("fixed shapes don't work with this model, so sampling is slower: %s", error)
        fixed = None
    return fixed or Plain(runner)


@contextmanager
def _probing(runner: Runner) -> Iterator[None]:
    try:
        yield
    finally:
        runner.rest()


def _tried(runner: Runner, most: int) -> Fixed | None:
    ids = array("I", [i % runner.vocab_size for i in range(1, 8)])
    chunks = [Chunk(ids[:3], None, 0), Chunk(ids[:5], None, 0)]
    plain = Plain(runner)
    kv, _ = plain.prefill(chunks)
    cell = _cell(runner, kv[0])
    if cell is None:
        return None
    fixed = Fixed(runner, cell, most)
    expected, found = (_second_step(layout, chunks, ids) for layout in (plain, fixed))
    spread = (expected - expected.mean(dim=-1, keepdim=True)).norm()
    if not (found - expected).norm() <= CLOSE * spread:
        logger.info("fixed shapes give other logits with this model, so sampling is slower")
        return None
    for row in (1, 0):
        fixed.rows.leave(row)
    return fixed


def _second_step(layout: Layout, chunks: list[Chunk], ids: array[int]) -> Tensor:
    """Logits of two sequences in the batch that were prefilled in two parts."""
    first, _ = layout.prefill(chunks)
    again = [Chunk(ids[len(chunk.ids) :][:2], kv, len(chunk.ids)) for chunk, kv in zip(chunks, first, strict=True)]
    second, _ = layout.prefill(again)
    for chunk, kv in zip(again, second, strict=True):
        layout.rows.join(kv, chunk.known + len(chunk.ids))
    layout.rows.compose([ids[0], ids[1]])
    layout.rows.step()
    layout.rows.advance(torch.tensor([ids[2], ids[3]], device=layout.device))
    return layout.rows.step()[0].float().clone()


def _cell(runner: Runner, kv: KV) -> Cell | None:
    """What all layers' keys and values are like, if they are alike."""
    shapes = {(tensor.shape[0], tensor.shape[2]) for tensors in kv for tensor in tensors}
    kinds = {tensor.dtype for tensors in kv for tensor in tensors}
    # Attention casts keys and values anyway.
    kind = runner.autocast or kinds.pop()
    if len(shapes) > 1 or (runner.autocast is None and kinds) or len(kv) != runner.layers:
        return None
    heads, width = shapes.pop()
    return Cell(len(kv), heads, width, kind, runner.device)
