"""Ready-made rewards, each a `RewardFunction` called with keyword arguments it may ignore.

    GSM8KReward           the final number of a worked answer
    MathEquivalence       the same mathematics, written differently      (extra `rewards`)
    ExactMatch, TokenF1   a short text answer, all or in part
    JsonSchemaValidity    JSON of the right shape                        (extra `rewards`)
    UnitTestFraction      code that passes its tests
    WeightedSum           several of these in one number

All but `WeightedSum` give a float from 0 to 1. A wrong answer is a 0; a wrong *ground truth*, schema or test is the
caller's mistake and raises `ConfigError`, so that it cannot pass for a policy that learns nothing.

Importing this package imports none of them: each name is loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .exact_match import ExactMatch
    from .gsm8k import GSM8KReward
    from .json_schema import JsonSchemaValidity
    from .math_equivalence import MathEquivalence
    from .token_f1 import TokenF1
    from .unit_tests import UnitTestFraction
    from .weighted_sum import WeightedSum

__all__ = [
    "ExactMatch",
    "GSM8KReward",
    "JsonSchemaValidity",
    "MathEquivalence",
    "TokenF1",
    "UnitTestFraction",
    "WeightedSum",
]

_MODULES = {
    "ExactMatch": "exact_match",
    "GSM8KReward": "gsm8k",
    "JsonSchemaValidity": "json_schema",
    "MathEquivalence": "math_equivalence",
    "TokenF1": "token_f1",
    "UnitTestFraction": "unit_tests",
    "WeightedSum": "weighted_sum",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
