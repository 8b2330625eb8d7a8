"""`WeightedSum`: several rewards in one number, neither clipped nor rescaled."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import astuple
from typing import Any

from ..agent.reward import RewardFunction, normalize_rewards
from ..errors import ConfigError, RewardInvalid
from .judges.judge_model import JudgeUsage

Component = Callable[..., Any]


class WeightedSum(RewardFunction):
    """The sum of weight × reward over its components, each called with the same keyword arguments.

    Weights are finite numbers, negative ones for penalties; the sum may leave [0, 1]. A component that doesn't return
    one finite number raises `RewardInvalid` with its name.

    >>> from agentcore_rl_toolkit.rewards import ExactMatch, TokenF1
    >>> reward_fn = WeightedSum({ExactMatch(): 0.25, TokenF1(): 0.75})
    >>> answer = {"response_text": "the Paris", "ground_truth": "Paris"}
    >>> reward_fn(**answer)
    0.75

    To log the components without computing them twice:

    >>> parts = reward_fn.components(**answer)
    >>> parts
    {'ExactMatch': 0.0, 'TokenF1': 1.0}
    >>> reward_fn.total(parts)
    0.75
    """

    def __init__(self, components: Mapping[Any, float] | Iterable[tuple[Component, float]]) -> None:
        pairs = list(components.items() if isinstance(components, Mapping) else components)
        if not pairs:
            raise ConfigError("WeightedSum has no components", hint="give it {reward_fn: weight}")
        self._components: dict[str, tuple[Component, float]] = {}
        for reward_fn, weight in pairs:
            name = _unused(_name(reward_fn), self._components)
            if not callable(reward_fn):
                raise ConfigError(f"component {name} is not callable", hint="give an instance of a RewardFunction")
            if not isinstance(weight, numbers.Real) or not math.isfinite(weight):
                raise ConfigError(f"the weight of {name} is {weight!r}, not a finite number")
            self._components[name] = (reward_fn, float(weight))

    @property
    def usage(self) -> JudgeUsage | None:
        """What the judges among its components have cost; None without any."""
        usages = [getattr(fn, "usage", None) for fn, _ in self._components.values()]
        known = [usage for usage in usages if isinstance(usage, JudgeUsage)]
        return JudgeUsage(*map(sum, zip(*map(astuple, known), strict=True))) if known else None

    def __call__(self, **kwargs: Any) -> float:
        return self.total(self.components(**kwargs))

    def components(self, **kwargs: Any) -> dict[str, float]:
        """Each component's own value, before its weight, under its class name (`TokenF1`, `TokenF1_2`, ...)."""
        return {name: _scalar(name, fn(**kwargs)) for name, (fn, _) in self._components.items()}

    def total(self, components: Mapping[str, float]) -> float:
        """The weighted sum of the values that `components` returned."""
        return sum(weight * components[name] for name, (_, weight) in self._components.items())


def _scalar(name: str, value: Any) -> float:
    try:
        number = normalize_rewards(value)
    except RewardInvalid as error:
        raise RewardInvalid(f"component {name}: {error}") from error
    if not isinstance(number, float):
        got = "no reward (None)" if number is None else f"a list of {len(number)} rewards"
        raise RewardInvalid(f"component {name} returned {got}", hint="each component must return one number")
    return number


def _name(reward_fn: Component) -> str:
    return str(getattr(reward_fn, "__name__", type(reward_fn).__name__))


def _unused(name: str, taken: Container[str]) -> str:
    numbered = (f"{name}_{n}" for n in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free not in taken)
