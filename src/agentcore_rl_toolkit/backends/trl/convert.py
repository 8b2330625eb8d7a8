"""Groups of rollouts → what TRL's `rollout_func` returns, one entry per slot, and the rows that have no slot. Pure.

TRL has a slot for each sample of each prompt, and one row per slot. The first row of a rollout takes the slot; its
other rows are kept beside it and get the same advantage. A slot with nothing to train on holds two padding tokens with
mask 0 and a reward of None, which TRL leaves out of every mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...gateway.record.trajectory import Row
from ...rollout import Group, Rollout
from ...rollout.rollout import SplitRow, split_row
from ...rollout.signal.credit import Floats, TurnCredit


@dataclass
class TrlBatch:
    """A step's rows, as TRL takes them."""

    prompt_ids: list[list[int]] = field(default_factory=list)
    completion_ids: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    env_mask: list[list[int]] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """The weight of each slot's row among the rows of its rollout."""
    more: list[tuple[int, Row]] = field(default_factory=list)
    """Rows without a slot, with the slot of their rollout."""
    advantages: list[Sequence[Floats]] = field(default_factory=list)
    """With turn credit: for each slot, those of its rollout's rows, one per token after the prompt."""
    trained: int = 0
    """Slots that hold a rollout; the others hold padding."""
    sessions: dict[int, str] = field(default_factory=dict)
    """The session of the rollout in each slot that holds one."""

    def row_advantages(self) -> list[Floats]:
        """With turn credit: those of every row, the rows in slots first."""
        first = [rows[0] if rows else np.zeros(1) for rows in self.advantages]
        return [*first, *(values for rows in self.advantages for values in rows[1:])]

    def row_names(self) -> list[tuple[str, int] | None]:
        """Session and number of every row, the rows in slots first; None for padding."""
        names: list[tuple[str, int] | None] = [None] * len(self.prompt_ids)
        for slot, session in self.sessions.items():
            names[slot] = session, 0
        numbers = dict.fromkeys(self.sessions, 0)
        for slot, _ in self.more:
            numbers[slot] += 1
            names.append((self.sessions[slot], numbers[slot]))
        return names

    def rows(self) -> list[SplitRow]:
        """Every row, the rows in slots first."""
        slots = zip(self.prompt_ids, self.completion_ids, self.logprobs, self.env_mask, strict=True)
        return [*slots, *(split_row(row) for _, row in self.more)]

    def spread(self, advantages: Sequence[float]) -> list[Floats]:
        """One advantage for each row, as those of its tokens."""
        return [one * np.array(mask, np.float64) for (*_, mask), one in zip(self.rows(), advantages, strict=True)]

    def mean_over_tokens(self, by_row: Sequence[Floats]) -> dict[str, float]:
        """The mean of the advantages over each rollout's trained tokens, by session: one number to show for it."""
        slots = [*range(len(self.prompt_ids)), *(slot for slot, _ in self.more)]
        sums, tokens = np.zeros(len(self.prompt_ids)), np.zeros(len(self.prompt_ids))
        for slot, values, (*_, mask) in zip(slots, by_row, self.rows(), strict=True):
            sums[slot] += values.sum()
            tokens[slot] += sum(mask)
        return {session: float(sums[slot] / max(1.0, tokens[slot])) for slot, session in self.sessions.items()}

    def fields(self) -> dict[str, Any]:
        """The return value of `rollout_func`."""
        return {
            "prompt_ids": self.prompt_ids,
            "completion_ids": self.completion_ids,
            "logprobs": self.logprobs,
            "env_mask": self.env_mask,
            "agent_reward": self.rewards,
        }


def to_batch(
    groups: Sequence[Group], n: int, padding: int, count: int | None = None, credit: TurnCredit | None = None
) -> TrlBatch:
    """Fill `n` slots for each group, in order, and pad the slots of missing groups up to `count`."""
    batch = TrlBatch()
    for group in groups:
        credited = credit.completion_advantages(group) if credit is not None and group.dropped is None else {}
        rollouts: list[Rollout | None] = [*group.rollouts[:n]]
        for rollout in [*rollouts, *([None] * (n - len(rollouts)))]:
            if rollout is None or group.dropped is not None or not rollout.trained:
                _fill_slot(batch, ([padding], [padding], [0.0], [0]), None, 1.0)
                continue
            first, *others = rollout.rows
            batch.more.extend((len(batch.prompt_ids), row) for row in others)
            batch.sessions[len(batch.prompt_ids)] = rollout.session_id or ""
            _fill_slot(batch, split_row(first), rollout.reward, first.weight, credited.get(id(rollout), ()))
            batch.trained += 1
    while count is not None and len(batch.prompt_ids) < count * n:
        _fill_slot(batch, ([padding], [padding], [0.0], [0]), None, 1.0)
    return batch


def _fill_slot(
    batch: TrlBatch, row: SplitRow, reward: float | None, weight: float, advantages: Sequence[Floats] = ()
) -> None:
    prompt, completion, logprobs, mask = row
    batch.prompt_ids.append(prompt)
    batch.completion_ids.append(completion)
    batch.logprobs.append(logprobs)
    batch.env_mask.append(mask)
    batch.rewards.append(reward)
    batch.weights.append(weight)
    batch.advantages.append(advantages)
