"""The agent's reward: is the last number it says the right one?"""

import re
from decimal import Decimal
from typing import Any

from agentcore_rl_toolkit import RewardFunction

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class MathReward(RewardFunction):
    """1.0 if the last number of the response equals the ground truth, else 0.0.

    >>> reward_fn = MathReward()
    >>> reward_fn(response_text="6 boxes of 7: the answer is 42.", ground_truth="42")
    1.0
    >>> reward_fn(response_text="I don't know.", ground_truth="42")
    0.0
    """

    def __call__(self, *, response_text: str, ground_truth: Any, **kwargs: Any) -> float:
        numbers = _NUMBER.findall(response_text.replace(",", ""))
        return float(bool(numbers) and Decimal(numbers[-1]) == Decimal(str(ground_truth)))
