"""Guards: rules over the figures and rollouts of a run's latest steps, which name what is wrong with it.

In: the groups of each step and its metrics. Out: findings, in words. They refuse to change what is trained on. May
import `rollout` and what that imports.

Imports `client`, `rollout`.
"""

from .facts import RolloutFacts, RunFacts, StepFacts, observe
from .guards import Guards, Warned
from .rules import RULES, Finding

__all__ = ["RULES", "Finding", "Guards", "RolloutFacts", "RunFacts", "StepFacts", "Warned", "observe"]
