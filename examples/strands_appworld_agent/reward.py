"""The agent's reward: did the world's own evaluator find the task done?"""

from typing import Any

from worlds import Evaluation

from agentcore_rl_toolkit import RewardFunction


class WorldReward(RewardFunction):
    """1.0 if every requirement is met, else 0.0; with `partial`, the share of requirements that are.

    >>> half = Evaluation(passed=("paid",), failed=("nothing else changed",))
    >>> WorldReward()(evaluation=half), WorldReward(partial=True)(evaluation=half)
    (0.0, 0.5)
    """

    def __init__(self, *, partial: bool = False) -> None:
        self.partial = partial

    def __call__(self, *, evaluation: Evaluation, **kwargs: Any) -> float:
        return float(evaluation.score if self.partial else evaluation.success)
