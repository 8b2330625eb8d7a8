"""The sequences that are decoded together: one pass gives each of them a token."""

from __future__ import annotations

from .kv_cache import ID_BYTES, KV
from .layout import Layout
from .model_runner import Runner, as_bytes
from .sampler import Draw, Sampler
from .sequence import Sequence


class Batch:
    """The running sequences; the i-th one's keys and values are the i-th row's."""

    def __init__(self, runner: Runner, layout: Layout, *, at_temperature: bool = False) -> None:
        self.sequences: list[Sequence] = []
        self._runner, self._rows = runner, layout.rows
        self._sampler: Sampler | None = None
        self._at_temperature = at_temperature

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
        logits, routes = self._rows.step()
        draw = sampler(logits)
        self._rows.advance(draw.ids)
        if routes is not None:
            for row, sequence in enumerate(self.sequences):
                sequence.routes += as_bytes(routes[row])
        return draw

    def _compose(self) -> Sampler:
        """Somebody has joined or left."""
        self._rows.compose([sequence.ids[-1] for sequence in self.sequences])
        self._sampler = Sampler(
            list(self.sequences), self._runner.vocab_size, self._runner.device, at_temperature=self._at_temperature
        )
        return self._sampler
