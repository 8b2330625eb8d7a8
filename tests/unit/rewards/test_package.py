"""The package as a whole: what it exports, what importing it costs, and the examples in its docstrings."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

from agentcore_rl_toolkit import rewards
from agentcore_rl_toolkit.agent.reward import RewardFunction

MODULES = [module.name for module in pkgutil.walk_packages(rewards.__path__, f"{rewards.__name__}.")]


def test_exports_are_sorted_and_listed() -> None:
    assert rewards.__all__ == sorted(rewards.__all__)
    assert set(rewards.__all__) <= set(dir(rewards))
    assert len(rewards.__all__) == 10


@pytest.mark.parametrize("name", rewards.__all__)
def test_each_is_a_reward_function_that_ignores_what_it_does_not_know(name: str) -> None:
    reward = getattr(rewards, name)
    _, *parameters, last = inspect.signature(reward.__call__).parameters.values()
    assert issubclass(reward, RewardFunction)
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters)
    assert last.kind is inspect.Parameter.VAR_KEYWORD
    assert ">>> " in reward.__doc__


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Accuracy'"):
        rewards.Accuracy  # noqa: B018


def test_importing_loads_nothing_heavy() -> None:
    script = f"""
import sys
sys.path[:] = {sys.path!r}
import agentcore_rl_toolkit.rewards as rewards
assert not [name for name in sys.modules if name.startswith(rewards.__name__ + ".")]
for name in rewards.__all__:
    getattr(rewards, name)
heavy = {{"math_verify", "sympy", "jsonschema", "numpy"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
