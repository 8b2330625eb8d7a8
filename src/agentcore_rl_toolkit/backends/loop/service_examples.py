"""Groups of rollouts → examples for a training service's importance-sampling loss, and how well sampler and trainer
agree on them. No I/O.

That loss is the sum, over tokens, of ratio × advantage. Every trained token therefore counts once, in whichever row of
its rollout it is, and a long rollout counts more than a short one. `per="rollout"` divides the advantage by the trained
tokens of all rows of the rollout, so each rollout counts once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...rollout import Group, Rollout
from ...rollout.signal.credit import TurnCredit, mean_advantage
from .mismatch import Mismatch, Truncation

_LEAST_SPREAD = 1e-4  # keeps the quotient finite, as in TRL


Floats = npt.NDArray[np.float32]


@dataclass(eq=False)
class Example:
    """One row as a service trains on it: token i of the input predicts target i, the next token of the row.

    Untrained targets have mask, logprob and advantage 0.
    """

    tokens: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    mask: Floats
    """1 for targets that are trained on."""
    logprobs: Floats
    """The sampler's, of the targets."""
    advantages: Floats
    advantage: float
    """The rollout's advantage, or the mean of those of its tokens; `advantages` has them, weighted."""
    group: int
    rollout: Rollout
    row: int
    """The number of the row in its rollout."""
    log_ratios: npt.NDArray[np.float64] | None = None
    """log(trainer ÷ sampler) of the trained targets; None until the trainer says."""

    @property
    def has_advantage(self) -> bool:
        """Whether it changes the weights."""
        return bool(self.advantages.any())


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
                for number, values in enumerate(by_row):
                    examples.append(_example(rollout, number, values / size, advantage, group.index))
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


def measure_example_logprobs(
    examples: Sequence[Example], trainer: Sequence[npt.NDArray[np.float64]], truncation: Truncation | None
) -> dict[str, float]:
    """How far the trainer's logprobs of the examples' targets are from the sampler's; the examples keep it by token.

    With the loss's `truncation`, they include the mean ratio and the share of truncated tokens.
    """
    mismatch, ratios, truncated = Mismatch(), [np.zeros(0)], 0
    for example, ours in zip(examples, trainer, strict=True):
        example.log_ratios = (ours - example.logprobs)[example.mask != 0]
        trained = example.advantages != 0
        mismatch.add(example.logprobs[trained], ours[trained])
        ratios.append(np.exp(ours[trained] - example.logprobs[trained]))
        if truncation is not None:
            truncated += int(truncation.applies(ratios[-1], example.advantages[trained]).sum())
    every = np.concatenate(ratios)
    if truncation is None or not every.size:
        return mismatch.metrics()
    off_policy = {"off_policy/ratio": float(every.mean()), "off_policy/truncated": truncated / every.size}
    return off_policy | mismatch.metrics()


def log_ratios_by_row(examples: Iterable[Example]) -> dict[tuple[str, int], npt.NDArray[np.float64]]:
    """The ratios that the trainer said, by session and row."""
    known = ((one, one.log_ratios) for one in examples)
    return {(one.rollout.session_id or "", one.row): ratios for one, ratios in known if ratios is not None}


def _example(rollout: Rollout, number: int, values: npt.NDArray[np.float64], advantage: float, group: int) -> Example:
    row = rollout.rows[number]
    ids = np.frombuffer(row.token_ids, np.uint32).astype(np.int64)
    mask = row.loss_mask[1:].astype(bool)
    return Example(
        tokens=ids[:-1],
        targets=ids[1:],
        mask=mask.astype(np.float32),
        logprobs=np.where(mask, row.logprobs[1:], 0.0).astype(np.float32),
        advantages=np.where(mask, values[1:], 0.0).astype(np.float32),
        advantage=advantage,
        group=group,
        rollout=rollout,
        row=number,
    )
