"""The sequences that are decoded together, how many there may be, and what has been done so far."""

from __future__ import annotations

from dataclasses import dataclass

from .kv_cache import ID_BYTES, KV, BatchCache
from .model_runner import ModelRunner
from .sampler import Draw, Sampler
from .sequence import Sequence


@dataclass(frozen=True)
class DecoderLimits:
    max_batch: int
    max_batch_tokens: int
    """Rows × the longest row: the space that the batch's keys and values may take."""
    prefill_tokens: int
    """In one pass; longer prompts take several, with steps of the batch in between."""
    prefix_bytes: int
    interval: float
    """Seconds between two deliveries of a sequence that continues."""
    at_temperature: bool = False
    """Logprobs are those of the logits divided by the temperature."""


@dataclass
class Counters:
    """Counts of the decoder's work, in tokens unless stated otherwise."""

    steps: int = 0
    """Forward passes of the batch."""
    prefilled: int = 0
    reused: int = 0
    """Tokens that skipped prefill because their keys and values were cached."""
    sampled: int = 0
    preempted: int = 0
    """Sequences sent back to the queue."""
    aborted: int = 0
    """Sequences that the caller gave up."""


class DecodeBatch:
    """The running sequences; row i of the cache belongs to sequence i."""

    def __init__(self, runner: ModelRunner, *, at_temperature: bool = False) -> None:
        self.sequences: list[Sequence] = []
        self._runner, self._cache = runner, BatchCache(runner)
        self._sampler: Sampler | None = None
        self._at_temperature = at_temperature

    def __len__(self) -> int:
        return len(self.sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self.sequences

    @property
    def width(self) -> int:
        """Cached tokens of the longest sequence."""
        return self._cache.width

    def join(self, sequence: Sequence) -> None:
        """Add a sequence that is prefilled up to its last id."""
        self._cache.add_row(sequence.kv, sequence.filled)
        sequence.kv = None
        self.sequences.append(sequence)
        self._sampler = None

    def leave(self, sequence: Sequence, *, poisoned: bool = False) -> None:
        row = self.sequences.index(sequence)
        self._cache.remove_row(row, poisoned=poisoned)
        self.sequences[row] = self.sequences[-1]
        self.sequences.pop()
        self._sampler = None

    def cached_ids(self, sequence: Sequence) -> bytes:
        """The ids whose keys and values are cached, as a key of `PrefixCache`."""
        return sequence.ids.tobytes()[: self._cache.lengths[self.sequences.index(sequence)] * ID_BYTES]

    def read_kv(self, sequence: Sequence, length: int) -> KV:
        """Views of the first `length` tokens' keys and values, valid until the batch changes."""
        return self._cache.read_row(self.sequences.index(sequence), length)

    def step(self) -> Draw:
        """Sample one token for each sequence. A step that raises changes nothing."""
        if self._sampler is None:  # a sequence has joined or left
            self._cache.set_inputs([sequence.ids[-1] for sequence in self.sequences])
            self._sampler = Sampler(
                list(self.sequences), self._runner.vocab_size, self._runner.device, at_temperature=self._at_temperature
            )
        draw = self._sampler(self._cache.step())
        self._cache.advance(draw.ids)
        return draw
