"""Ready-made rewards, each a `RewardFunction` that ignores keyword arguments it doesn't know.

    GSM8KReward           the final number of a worked answer
    MathEquivalence       the same mathematics, written differently      (extra `rewards`)
    ExactMatch, TokenF1   a short text answer, whole or in part
    JsonSchemaValidity    JSON of the right shape                        (extra `rewards`)
    UnitTestFraction      code that passes its tests
    WeightedSum           several of these in one number
    LLMJudge              a model's score by a rubric
    RelativeJudge         a model's ranking of a group, for a trainer
    AgentCoreEvaluation   an evaluator of AgentCore

In: the response's text and the ground truth. Out: a float, from 0 to 1 except for `WeightedSum`. A wrong answer earns
0; a wrong *ground truth*, schema or test raises `ConfigError`, because a reward of 0 would look like a policy that
learns nothing. Each name is imported when first used.

Imports `agent`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gsm8k import GSM8KReward as GSM8KReward
    from .json_schema import JsonSchemaValidity as JsonSchemaValidity
    from .judges.agentcore_evaluation import AgentCoreEvaluation as AgentCoreEvaluation
    from .judges.llm_judge import LLMJudge as LLMJudge
    from .judges.relative_judge import RelativeJudge as RelativeJudge
    from .math_equivalence import MathEquivalence as MathEquivalence
    from .text_match import ExactMatch as ExactMatch
    from .text_match import TokenF1 as TokenF1
    from .unit_tests import UnitTestFraction as UnitTestFraction
    from .weighted_sum import WeightedSum as WeightedSum

_MODULES = {
    "AgentCoreEvaluation": "judges.agentcore_evaluation",
    "ExactMatch": "text_match",
    "GSM8KReward": "gsm8k",
    "JsonSchemaValidity": "json_schema",
    "LLMJudge": "judges.llm_judge",
    "MathEquivalence": "math_equivalence",
    "RelativeJudge": "judges.relative_judge",
    "TokenF1": "text_match",
    "UnitTestFraction": "unit_tests",
    "WeightedSum": "weighted_sum",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
