"""`TurnCredit`: rewards of a group's turns → an advantage for each turn, and so for each sampled token. Pure.

A turn's advantage is its return-to-go, less a baseline:

    return-to-go of turn t   reward t + discount · reward t+1 + discount² · reward t+2 + …
    baseline of turn t       the mean return-to-go at turn t of the *other* rollouts of the group that got so far

The baseline never reads the rollout it is for, neither its rewards nor when it stopped, so it doesn't bias the policy
gradient. For the same reason advantages are not divided by the group's standard deviation. If no other rollout got so
far, the baseline is the mean of the others' last returns-to-go.

The last reward is the outcome, as everywhere; those before it are process rewards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError
from ...gateway.record.trajectory import Row
from ..rollout import Group, Rollout

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TurnCredit:
    """Gives each turn credit for the rewards from it on.

    >>> [turns.tolist() for turns in TurnCredit().advantages([[1.0, 0.0, 1.0], [0.0, 1.0]])]
    [[1.0, 0.0, 0.0], [-1.0, 0.0]]
    """

    discount: float = 1.0
    """How much a reward counts one turn earlier."""
    process_weight: float = 1.0
    """How much a reward before the last one counts; the last one counts once."""

    def __post_init__(self) -> None:
        if not 0 <= self.discount <= 1:
            raise ConfigError(f"discount must be from 0 to 1, not {self.discount}")
        if not (math.isfinite(self.process_weight) and self.process_weight >= 0):
            raise ConfigError(f"process_weight must be 0 or more, not {self.process_weight}")

    def advantages(self, rewards: Sequence[Sequence[float]]) -> list[Floats]:
        """The advantage of each turn, from each rollout's rewards by turn. A lone rollout has none."""
        to_go = [self._returns_to_go(turns) for turns in rewards]
        if len(to_go) < 2:
            return [np.zeros_like(own) for own in to_go]
        table = np.full((len(to_go), max(map(len, to_go))), np.nan)
        for place, own in enumerate(to_go):
            table[place, : len(own)] = own
        apart = table - _baselines(table, np.array([own[-1] for own in to_go]))
        return [apart[place, : len(own)] for place, own in enumerate(to_go)]

    def token_advantages(self, group: Group) -> list[list[Floats]]:
        """For each trained rollout of the group its rows' advantages, one per token; 0 where nothing is trained."""
        rollouts = group.trained
        by_turn = self.advantages([rewards_by_turn(rollout) for rollout in rollouts])
        return [
            [_of_tokens(row, dict(zip(trained_turns(rollout), own, strict=True))) for row in rollout.rows]
            for rollout, own in zip(rollouts, by_turn, strict=True)
        ]

    def completion_advantages(self, group: Group) -> dict[int, list[Floats]]:
        """The same without the tokens of rows' prompts, by the identity of the rollout."""
        return {
            id(rollout): [values[row.prompt_length :] for row, values in zip(rollout.rows, by_row, strict=True)]
            for rollout, by_row in zip(group.trained, self.token_advantages(group), strict=True)
        }

    def teaches(self, group: Group) -> bool:
        """Whether any turn of the group has an advantage."""
        return any(own.any() for own in self.advantages([rewards_by_turn(rollout) for rollout in group.trained]))

    def _returns_to_go(self, rewards: Sequence[float]) -> Floats:
        to_go, ahead = np.zeros(len(rewards)), 0.0
        for turn in reversed(range(len(rewards))):
            weight = 1.0 if turn == len(rewards) - 1 else self.process_weight
            ahead = weight * rewards[turn] + self.discount * ahead
            to_go[turn] = ahead
        return to_go


def trained_turns(rollout: Rollout) -> list[int]:
    """The turns of a rollout that are trained on, in order: those that rewards by turn belong to."""
    return sorted({span.turn for row in rollout.rows for span in row.spans if span.trained})


def mismatch(rollout: Rollout) -> str | None:
    """Why the rollout's rewards can't be those of its turns; None if they can."""
    turns = len(trained_turns(rollout))
    if isinstance(rollout.rewards, list) and len(rollout.rewards) != turns:
        return f"{len(rollout.rewards)} rewards for {turns} trained turns"
    return None


def rewards_by_turn(rollout: Rollout) -> list[float]:
    """One reward for each trained turn; a single reward is the last turn's."""
    if problem := mismatch(rollout):
        raise ValueError(problem)
    if isinstance(rollout.rewards, list):
        return rollout.rewards
    return [*[0.0] * (len(trained_turns(rollout)) - 1), 0.0 if rollout.rewards is None else rollout.rewards]


def mean_advantage(rows: Sequence[Row], advantages: Sequence[Floats]) -> float:
    """The mean over a rollout's trained tokens: one number to show for it."""
    return float(sum(values.sum() for values in advantages) / max(1, sum(row.trained for row in rows)))


def _baselines(to_go: Floats, last: Floats) -> Floats:
    """Leave-one-out means down each column, of the rollouts that have a number in it; `last` is for lone ones."""
    count = (~np.isnan(to_go)).sum(axis=0)
    others = (np.nansum(to_go, axis=0) - to_go) / np.maximum(count - 1, 1)
    same = np.nanmax(to_go, axis=0) == np.nanmin(to_go, axis=0)
    others = np.where(same, to_go, others)  # rounding may put the mean of equal floats beside them
    ended = (last.sum() - last) / (len(last) - 1)
    return np.where(count == 1, ended[:, None], others)


def _of_tokens(row: Row, by_turn: dict[int, float]) -> Floats:
    values = np.zeros(len(row.token_ids))
    for span in row.spans:
        if span.trained:
            values[span.start : span.end] = by_turn[span.turn]
    return values * row.loss_mask
