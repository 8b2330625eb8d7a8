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

    slots: list[SplitRow] = field(default_factory=list)
    """The row in each slot."""
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

    def fill_slot(
        self, row: SplitRow, reward: float | None = None, weight: float = 1.0, advantages: Sequence[Floats] = ()
    ) -> None:
        self.slots.append(row)
        self.rewards.append(reward)
        self.weights.append(weight)
        self.advantages.append(advantages)

    def row_advantages(self) -> list[Floats]:
        """With turn credit: those of every row, the rows in slots first."""
        first = [rows[0] if rows else np.zeros(1) for rows in self.advantages]
        return [*first, *(values for rows in self.advantages for values in rows[1:])]

    def row_names(self) -> list[tuple[str, int] | None]:
        """Session and number of every row, the rows in slots first; None for padding."""
        names: list[tuple[str, int] | None] = [None] * len(self.slots)
        for slot, session in self.sessions.items():
            names[slot] = session, 0
        numbers = dict.fromkeys(self.sessions, 0)
        for slot, _ in self.more:
            numbers[slot] += 1
            names.append((self.sessions[slot], numbers[slot]))
        return names

    def rows(self) -> list[SplitRow]:
        """Every row, the rows in slots first."""
        return [*self.slots, *(split_row(row) for _, row in self.more)]

    def spread(self, advantages: Sequence[float]) -> list[Floats]:
        """One advantage for each row, as those of its tokens."""
        return [one * np.array(mask, np.float64) for (*_, mask), one in zip(self.rows(), advantages, strict=True)]

    def mean_over_tokens(self, by_row: Sequence[Floats]) -> dict[str, float]:
        """The mean of the advantages over each rollout's trained tokens, by session: one number to show for it."""
        count = len(self.slots)
        slots = [*range(count), *(slot for slot, _ in self.more)]
        sums, tokens = np.zeros(count), np.zeros(count)
        for slot, values, (*_, mask) in zip(slots, by_row, self.rows(), strict=True):
            sums[slot] += values.sum()
            tokens[slot] += sum(mask)
        return {session: float(sums[slot] / max(1.0, tokens[slot])) for slot, session in self.sessions.items()}

    def fields(self) -> dict[str, Any]:
        """The return value of `rollout_func`."""
        names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
        return {name: [row[i] for row in self.slots] for i, name in enumerate(names)} | {"agent_reward": self.rewards}


def to_batch(
    groups: Sequence[Group], n: int, padding: int, count: int | None = None, credit: TurnCredit | None = None
) -> TrlBatch:
    """Fill `n` slots for each group, in order, and pad the slots of missing groups up to `count`."""
    batch, nothing = TrlBatch(), ([padding], [padding], [0.0], [0])
    for group in groups:
        credited = credit.completion_advantages(group) if credit is not None and group.dropped is None else {}
        rollouts: list[Rollout | None] = [*group.rollouts[:n]]
        for rollout in [*rollouts, *([None] * (n - len(rollouts)))]:
            if rollout is None or group.dropped is not None or not rollout.trained:
                batch.fill_slot(nothing)
                continue
            first, *others = rollout.rows
            batch.more.extend((len(batch.slots), row) for row in others)
            batch.sessions[len(batch.slots)] = rollout.session_id or ""
            batch.fill_slot(split_row(first), rollout.reward, first.weight, credited.get(id(rollout), ()))
            batch.trained += 1
    while count is not None and len(batch.slots) < count * n:
        batch.fill_slot(nothing)
    return batch
