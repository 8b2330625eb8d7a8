"""The first toolkit's module for `RewardFunction`; it is `reward.py`'s."""

from .reward import RewardFunction

__all__ = ["RewardFunction"]
