"""Groups of rollouts → what TRL's `rollout_func` returns, one entry a slot, and the rows that have no slot. Pure.

TRL has a slot for each sample of each prompt, and one row in each. A rollout that folds into several rows has its first
in the slot, and the others beside it with the same advantage. A slot with nothing to train on holds two padding tokens
whose mask is 0, and a reward of None: TRL counts it in no mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...gateway.record.trajectory import Row
from ...rollout import Group, Rollout


@dataclass
class Batch:
    """A step's rows, as TRL takes them."""

    prompt_ids: list[list[int]] = field(default_factory=list)
    completion_ids: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    env_mask: list[list[int]] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """What each slot's row counts among the rows of its rollout."""
    more: list[tuple[int, Row]] = field(default_factory=list)
    """Rows without a slot, with the slot of their rollout."""
    trained: int = 0
    """Slots that hold a rollout; the others hold padding."""

    def fields(self) -> dict[str, Any]:
        """What `rollout_func` returns."""
        return {
            "prompt_ids": self.prompt_ids,
            "completion_ids": self.completion_ids,
            "logprobs": self.logprobs,
            "env_mask": self.env_mask,
            "agent_reward": self.rewards,
        }


def to_batch(groups: Sequence[Group], n: int, padding: int, count: int | None = None) -> Batch:
    """`n` slots for each group, in order; empty ones for as many groups as there are fewer than `count`."""
    batch = Batch()
    for group in groups:
        rollouts: list[Rollout | None] = [*group.rollouts[:n]]
        for rollout in [*rollouts, *([None] * (n - len(rollouts)))]:
            if rollout is None or group.dropped is not None or not rollout.trained:
                _add_nothing(batch, padding)
            else:
                _add(batch, rollout)
    while count is not None and len(batch.prompt_ids) < count * n:
        _add_nothing(batch, padding)
    return batch


def split(row: Row) -> tuple[list[int], list[int], list[float], list[int]]:
    """A row as prompt, completion, and the completion's logprobs and mask. Tokens that are not trained have 0.0."""
    cut = row.prompt_length
    ids = row.token_ids.tolist()
    mask = [int(bit) for bit in row.loss_mask[cut:]]
    logprobs = [float(value) if bit else 0.0 for value, bit in zip(row.logprobs[cut:], mask, strict=True)]
    return ids[:cut], ids[cut:], logprobs, mask


def _add(batch: Batch, rollout: Rollout) -> None:
    first, *others = rollout.rows
    prompt, completion, logprobs, mask = split(first)
    batch.more.extend((len(batch.prompt_ids), row) for row in others)
    batch.prompt_ids.append(prompt)
    batch.completion_ids.append(completion)
    batch.logprobs.append(logprobs)
    batch.env_mask.append(mask)
    batch.rewards.append(rollout.reward)
    batch.trained += 1
    batch.weights.append(first.weight)


def _add_nothing(batch: Batch, padding: int) -> None:
    batch.prompt_ids.append([padding])
    batch.completion_ids.append([padding])
    batch.logprobs.append([0.0])
    batch.env_mask.append([0])
    batch.rewards.append(None)
    batch.weights.append(1.0)
