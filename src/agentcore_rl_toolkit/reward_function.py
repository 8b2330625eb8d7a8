"""The first toolkit's import path of `RewardFunction`."""

from .agent.reward import RewardFunction

__all__ = ["RewardFunction"]
