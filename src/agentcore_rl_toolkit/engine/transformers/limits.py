"""How much the decoder takes on, and how much it has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How much the decoder takes on."""

    max_batch: int
    max_batch_tokens: int
    """Rows × the longest row: what the batch's keys and values may take."""
    prefill_tokens: int
    """In one pass; longer prompts take several, with steps of the batch in between."""
    prefix_bytes: int
    interval: float
    """Seconds between two deliveries of a sequence that goes on."""
    at_temperature: bool = False
    """Logprobs are those of the logits divided by the temperature."""


@dataclass
class Counters:
    """What the decoder has done so far, in tokens unless said otherwise."""

    steps: int = 0
    """Forward passes of the batch."""
    prefilled: int = 0
    reused: int = 0
    """Not prefilled, since their keys and values were known."""
    sampled: int = 0
    preempted: int = 0
    """Sequences sent back to wait."""
    aborted: int = 0
    """Sequences that nobody waited for any more."""
