"""The agent's reward: do all checks on the files pass?"""

from typing import Any

from agentcore_rl_toolkit import RewardFunction


class OfficeReward(RewardFunction):
    """1.0 if every check passed, else 0.0, as OfficeBench counts.

    >>> reward_fn = OfficeReward()
    >>> reward_fn(outcomes=[{"check": "contain", "passed": True}, {"check": "file_exist", "passed": False}])
    0.0
    """

    def __call__(self, *, outcomes: list[dict[str, Any]], **kwargs: Any) -> float:
        return float(bool(outcomes) and all(outcome["passed"] for outcome in outcomes))
