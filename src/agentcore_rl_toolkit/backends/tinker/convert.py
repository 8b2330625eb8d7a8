"""Groups of rollouts → Datums for Tinker's importance-sampling loss. Pure.

That loss is the sum, over tokens, of ratio × advantage. Every trained token therefore counts once, in whichever row of
its rollout it is, and a long rollout counts more than a short one. `per="rollout"` divides the advantage by the trained
tokens of all rows of the rollout, so each rollout counts once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tinker

from ...gateway.record.trajectory import Row
from ...rollout import Group, Rollout
from ...rollout.signal.credit import TurnCredit, mean_advantage

_LEAST_SPREAD = 1e-4  # keeps the quotient finite, as in TRL


@dataclass(frozen=True, eq=False)
class Example:
    """One row, as Tinker takes it, and the rollout it comes from."""

    datum: tinker.Datum
    advantage: float
    """The rollout's advantage, or the mean of those of its tokens; the datum has them, weighted."""
    group: int
    rollout: Rollout


def to_examples(
    groups: Iterable[Group], *, scale: bool = True, per: str = "token", credit: TurnCredit | None = None
) -> list[Example]:
    """One example per row of each trained rollout. `scale` divides advantages by the group's standard deviation; with
    `credit` each turn has its own, which are not divided."""
    examples = []
    for group in groups:
        if group.dropped is None:
            for rollout, advantage, by_row in _credited(group, scale, credit):
                size = sum(row.trained for row in rollout.rows) if per == "rollout" else 1
                for row, values in zip(rollout.rows, by_row, strict=True):
                    examples.append(Example(to_datum(row, values / size), advantage, group.index, rollout))
    return examples


def _credited(
    group: Group, scale: bool, credit: TurnCredit | None
) -> Iterator[tuple[Rollout, float, list[npt.NDArray[np.float64]]]]:
    """Each trained rollout with its advantage, and those of each row's tokens."""
    if credit is not None:
        for rollout, by_row in zip(group.trained, credit.token_advantages(group), strict=True):
            yield rollout, mean_advantage(rollout.rows, by_row), by_row
        return
    for rollout, advantage in zip(group.trained, advantages(group.rewards, scale=scale), strict=True):
        yield rollout, advantage, [np.full(len(row.token_ids), advantage) for row in rollout.rows]


def advantages(rewards: list[float], *, scale: bool = True) -> list[float]:
    """Each reward's distance from the mean of its group.

    >>> advantages([1.0, 0.0], scale=False)
    [0.5, -0.5]
    """
    if len(set(rewards)) < 2:  # rounding may put the mean of equal floats beside them
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    spread = statistics.stdev(rewards) + _LEAST_SPREAD if scale else 1.0
    return [(reward - mean) / spread for reward in rewards]


def to_datum(row: Row, advantages: npt.NDArray[np.float64]) -> tinker.Datum:
    """Each token but the last predicts the next. Untrained targets have logprob and advantage 0."""
    ids = np.frombuffer(row.token_ids, np.uint32).astype(np.int64)
    mask = row.loss_mask[1:].astype(bool)
    inputs = {
        "target_tokens": ids[1:],
        "logprobs": np.where(mask, row.logprobs[1:], 0.0).astype(np.float32),
        "advantages": np.where(mask, advantages[1:], 0.0).astype(np.float32),
    }
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(ids[:-1].tolist()),
        loss_fn_inputs={name: tinker.TensorData.from_numpy(values) for name, values in inputs.items()},
    )
