"""The least seconds that training takes if no token may be older than K updates, whatever runs it.

A step is trained on when all of its rollouts have ended, and in its turn; they may start when the step's age allows it.
So with any number of slots and cores, and nothing else to do, update k + 1 comes no earlier than

    max(update k, update k - K + longest rollout of step k) + training on step k
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def tool_seconds(dice: random.Random) -> float:
    """Log-normal: a mean of 2 s, and 20 s at the 99th percentile."""
    return dice.lognormvariate(-0.328, 1.429)


def possible_ratios() -> dict[str, dict[str, float]]:
    """How much sooner steps can end at K = 1 and 3 than at K = 0, by rollouts a step, if each only calls such a tool.

    Training takes as long as a mean tool call.
    """
    found = {}
    for rollouts in (16, 64, 256):
        dice = random.Random(0)
        longest = [max(tool_seconds(dice) for _ in range(rollouts)) for _ in range(10_000)]
        seconds = [least_seconds(longest, [2.0] * len(longest), ahead) for ahead in (0, 1, 3)]
        found[str(rollouts)] = {ahead: seconds[0] / each for ahead, each in zip("13", seconds[1:], strict=True)}
    return found


def least_seconds(longest: Sequence[float], training: Sequence[float], ahead: int) -> float:
    """Of all steps, from those of each step's longest rollout and of training on it.

    >>> [least_seconds([5, 5, 5, 5], [1, 1, 1, 1], ahead) for ahead in (0, 1, 3)]
    [24.0, 13.0, 9.0]
    """
    updates = [0.0]
    for step, (rollout, train) in enumerate(zip(longest, training, strict=True)):
        updates.append(max(updates[step], updates[max(0, step - ahead)] + rollout) + train)
    return updates[-1]
