"""The sequences that are decoded together: one pass gives each of them a token."""

from __future__ import annotations

import torch
from torch import Tensor

from .kv import ID_BYTES, KV, Rows
from .runner import Runner, as_bytes
from .sampler import Draw, Sampler
from .sequence import Sequence


class Batch:
    """The running sequences; the i-th one's keys and values are the i-th row's."""

    def __init__(self, runner: Runner) -> None:
        self.sequences: list[Sequence] = []
        self._runner = runner
        self._rows = Rows(runner.layers)
        self._sampler: Sampler | None = None
        self._inputs = self._positions = torch.empty(0)

    def __len__(self) -> int:
        return len(self.sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self.sequences

    @property
    def width(self) -> int:
        """Tokens of the longest, as far as they have been through the model."""
        return self._rows.width

    def join(self, sequence: Sequence) -> None:
        """Add one that is prefilled up to its last id."""
        self._rows.join(sequence.kv, sequence.filled)
        sequence.kv = None
        self.sequences.append(sequence)
        self._sampler = None

    def leave(self, sequence: Sequence, *, poisoned: bool = False) -> None:
        row = self.sequences.index(sequence)
        self._rows.leave(row, poisoned=poisoned)
        self.sequences[row] = self.sequences[-1]
        self.sequences.pop()
        self._sampler = None

    def known(self, sequence: Sequence) -> bytes:
        """The ids that have been through the model, as a key of `Prefixes`."""
        return sequence.ids.tobytes()[: self._rows.lengths[self.sequences.index(sequence)] * ID_BYTES]

    def read(self, sequence: Sequence, length: int) -> KV:
        """Views of the first `length` tokens' keys and values, good until the batch changes."""
        return self._rows.read(self.sequences.index(sequence), length)

    def step(self) -> Draw:
        """One token for each. If it raises, nothing has changed."""
        sampler = self._sampler or self._compose()
        mask = self._mask(self._rows.prepare())
        logits, routes = self._runner.forward(self._inputs, self._positions, mask, self._rows.cache)
        draw = sampler(logits)
        self._rows.advance()
        self._inputs = draw.ids[:, None]
        self._positions = self._positions + 1
        if routes is not None:
            for row, sequence in enumerate(self.sequences):
                sequence.routes += as_bytes(routes[row])
        return draw

    def _compose(self) -> Sampler:
        """Somebody has joined or left."""
        device = self._runner.device
        self._inputs = torch.tensor([[s.ids[-1]] for s in self.sequences], device=device)
        self._positions = torch.tensor([[len(s.ids) - 1] for s in self.sequences], device=device)
        self._sampler = Sampler(list(self.sequences), self._runner.vocab_size, device)
        return self._sampler

    def _mask(self, width: int) -> Tensor | None:
        """None if no row is padded: then the fastest kernels can be used."""
        if min(self._rows.lengths) == width:
            return None
        columns = torch.arange(width + 1, device=self._runner.device)
        mask = columns >= width - self._positions
        return mask[:, None, None, :] if self._runner.whole_mask else mask
