"""The first toolkit's module for `RewardFunction`; it is `reward.py`'s."""

from .agent.reward import RewardFunction

__all__ = ["RewardFunction"]
