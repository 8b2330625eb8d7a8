"""What rules count and compare: rates with bounds, lengths, pairs, and the parts of rewards. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from .facts import RolloutFacts, RunFacts, StepFacts


def lower_bound(hits: int, count: int, errors: float = 3.0) -> float:
    """The Wilson lower bound of a rate.

    >>> round(lower_bound(8, 8), 2), round(lower_bound(0, 8), 2)
    (0.47, 0.0)
    """
    if not count:
        return 0.0
    rate, square = hits / count, errors**2
    spread = errors * math.sqrt(rate * (1 - rate) / count + square / (4 * count**2))
    return max(0.0, (rate + square / (2 * count) - spread) / (1 + square / count))


def latest_rollouts(run: RunFacts, steps: int) -> list[RolloutFacts]:
    return [one for step in list(run.steps)[-steps:] for one in step.rollouts if one.sampled]


def group_lengths(step: StepFacts) -> list[float]:
    """The mean length of each group."""
    return [statistics.fmean(one.sampled for one in group) for group in step.groups()]


def is_longer(earlier: Sequence[float], current: Sequence[float]) -> bool:
    grown = statistics.fmean(current) - statistics.fmean(earlier)
    error = math.sqrt(statistics.variance(current) / len(current) + statistics.variance(earlier) / len(earlier))
    return statistics.fmean(current) > 3 * statistics.fmean(earlier) and grown > 4 * error and grown > 16


def is_on_policy(step: StepFacts) -> bool:
    """Whether the tokens of a step were sampled with the trainer's own weights, so both sides should agree."""
    return "sampler/kl" in step.metrics and not step.metrics.get("staleness/max")


def example_of(step: StepFacts) -> str | None:
    return next((one.key for one in step.rollouts if one.trained), None)


def scored_groups(step: StepFacts, *, equal: bool = False) -> list[list[RolloutFacts]]:
    """The trained rollouts of each group with two or more; with `equal`, groups dropped for equal rewards too."""
    groups = ([one for one in group if one.trained or (equal and one.equal_rewards)] for group in step.groups())
    scored = ([one for one in group if one.reward is not None] for group in groups)
    return [group for group in scored if len(group) > 1]


def identical_pairs(group: Sequence[RolloutFacts]) -> float:
    """The share of pairs that sampled the same."""
    counts = Counter(one.text for one in group).values()
    return sum(n * (n - 1) for n in counts) / (len(group) * (len(group) - 1))


def known_texts(run: RunFacts) -> list[list[RolloutFacts]]:
    """The rollouts of each group whose sampled tokens are all known, where there are two or more."""
    groups = ([one for one in group if one.text] for step in run.steps for group in step.groups())
    return [group for group in groups if len(group) > 1]


def excess_pairs(groups: Iterable[Sequence[RolloutFacts]]) -> list[float]:
    """How many more pairs of each group are identical than their probabilities explain, as a share."""
    return [identical_pairs(group) - statistics.fmean(one.probability for one in group) for group in groups]


def are_copied(run: RunFacts) -> bool:
    """Whether so many rollouts repeat each other that they can't count as draws of their own."""
    excess = excess_pairs(known_texts(run))
    return bool(excess) and statistics.fmean(excess) > 0.5


def is_binary(groups: Iterable[Sequence[RolloutFacts]], name: str) -> bool:
    """Whether a component is always 0 or 1."""
    return {one.components.get(name) for group in groups for one in group} <= {0.0, 1.0, None}


def differing_components(groups: Sequence[Sequence[RolloutFacts]]) -> list[str]:
    """The components that differ within two groups or more."""
    names = sorted({name for group in groups for one in group for name in one.components})
    return [name for name in names if sum(len({one.components.get(name) for one in g}) > 1 for g in groups) > 1]


def agreement(groups: Sequence[Sequence[RolloutFacts]], name: str, other: str | None = None) -> float:
    """The share of the differences within groups that two components have in common, or a component and the reward."""
    mine = [value for group in groups for value in _centered([one.components.get(name, 0.0) for one in group])]
    theirs = [value for group in groups for value in _centered([_value(one, other) for one in group])]
    squares = sum(value**2 for value in mine) * sum(value**2 for value in theirs)
    return sum(a * b for a, b in zip(mine, theirs, strict=True)) ** 2 / squares if squares else 0.0


def _value(rollout: RolloutFacts, component: str | None) -> float:
    return rollout.reward or 0.0 if component is None else rollout.components.get(component, 0.0)


def _centered(values: Sequence[float]) -> list[float]:
    mean = statistics.fmean(values)
    return [value - mean for value in values]
