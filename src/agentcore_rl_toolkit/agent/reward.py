"""Rewards: the base class of users' reward functions, and the rule that turns what they return into floats.

numpy's and torch's values are recognized by their attributes, without importing either.
"""

from __future__ import annotations

import inspect
import itertools
import math
import numbers
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from ..common.object_repr import object_repr
from ..errors import RewardInvalid
from .safe_values.describe import short_repr, type_name

_MOST = 100_000
LARGEST_REWARD = 1e15
"""Trainers square rewards in float32, which ends at 3e38."""


class RewardFunction:
    """Base class of rewards: write `__call__` with the keyword arguments that the reward needs.

    >>> class Length(RewardFunction):
    ...     def __call__(self, *, response_text: str, **kwargs) -> float:
    ...         return min(len(response_text) / 100, 1.0)
    >>> Length()(response_text="short", ground_truth="ignored")
    0.05

    The app reports an exception that comes out of a `RewardFunction` as `reward_error`, not as `agent_error`.
    """

    def __repr__(self) -> str:
        """Its name and numbers; texts may be secrets."""
        shown = {name: value for name, value in vars(self).items() if isinstance(value, numbers.Real)}
        return object_repr(self, **{name.lstrip("_"): value for name, value in shown.items()})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} does not define __call__(self, **kwargs)")


def normalize_rewards(value: Any) -> float | list[float] | None:
    """Turn what a user returns under `rewards` into what is stored and trained on.

    | returned | stored |
    |---|---|
    | `float`, `int`, `Decimal`, numpy or torch scalar | that number as a float |
    | `bool`, `numpy.bool_` | `1.0` or `0.0` |
    | list, tuple or one-dimensional array of those: one per turn, at most 100,000 | a list of floats |
    | `None` | `None`: the rollout has no reward |
    | anything else, an empty list, NaN, infinity, a number beyond ±1e15 | refused with `RewardInvalid` |

    >>> normalize_rewards(True)
    1.0
    >>> normalize_rewards([0, 0.5, 1])
    [0.0, 0.5, 1.0]
    >>> normalize_rewards("1.0")
    Traceback (most recent call last):
        ...
    agentcore_rl_toolkit.errors.RewardInvalid: rewards is a str ('1.0'), not a number
    hint: return a float, or a list with one float per turn
    """
    if value is None:
        return None
    if isinstance(value, (list, tuple)) or _dimensions(value) == 1:
        items: Iterable[Any] = value
        floats = [_to_float(item, f"rewards[{i}]") for i, item in enumerate(itertools.islice(items, _MOST + 1))]
        if len(floats) > _MOST:
            raise RewardInvalid(f"rewards has more than {_MOST:,} entries", hint="return one number per turn")
        if not floats:
            raise RewardInvalid("rewards is an empty list", hint="return one number per turn, or leave rewards out")
        return floats
    return _to_float(value, "rewards")


def _dimensions(value: Any) -> int | None:
    """The number of dimensions of an array or tensor, None for anything else."""
    ndim = getattr(value, "ndim", None)
    return ndim if isinstance(ndim, int) and hasattr(value, "tolist") else None


def _to_float(value: Any, path: str) -> float:
    hint = "return a float, or a list with one float per turn"
    plain = value.tolist() if _dimensions(value) == 0 else value
    if not isinstance(plain, (numbers.Real, Decimal)):
        hint = "await it" if inspect.isawaitable(value) else hint
        raise RewardInvalid(f"{path} is a {type_name(value)} ({short_repr(value, 60)}), not a number", hint=hint)
    try:
        number = float(plain)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RewardInvalid(f"{path} is {number}, not a finite number", hint=hint)
    if abs(number) > LARGEST_REWARD:
        problem = f"{path} is {number:g}: beyond ±{LARGEST_REWARD:g}, a mean of rewards overflows in the trainer"
        raise RewardInvalid(problem, hint="scale rewards to the order of 1")
    return number
