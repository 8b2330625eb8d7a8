"""Every backend's conversion behind one function, for the contract suite. One file for each backend, with

PASSES_ON                what of a rollout the trainer takes: several rows, logprobs, routes, versions, step rewards
seen(groups, n, credit)  groups of n rollouts, through the backend, as the trainer's loss sees them
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType
from typing import Any

TRAINERS = {"trl": "trl", "slime": None, "tinker": "tinker", "sagemaker-session": None, "verl": "verl"}
"""Adapters, and the module that has to be there. slime's types are stood in for where it is not."""

ELSEWHERE = frozenset({"verl"})
"""Those with an environment of their own, where this suite is run again."""


@dataclass(frozen=True)
class Seen:
    """A row as a trainer's loss sees it, padding left out."""

    ids: tuple[int, ...]
    trained: tuple[int, ...]
    """Places of the tokens that are trained on."""
    logprobs: tuple[float, ...]
    """The sampler's, of those tokens."""
    advantage: float
    """Of its rollout, before rows are weighted."""
    advantages: tuple[float, ...] = ()
    """With turn credit: of the trained tokens."""
    routes: Any = None
    """Expert routes of all tokens, one list a token, where they are passed on."""
    versions: tuple[str, ...] = ()
    """Weight versions, where they are passed on."""


def adapters() -> list[str]:
    """The backends whose trainers are in this environment."""
    found = []
    for name, module in TRAINERS.items():
        there = importlib.util.find_spec(f"support.backends.{name.replace('-', '_')}") is not None
        if there and (module is None or importlib.util.find_spec(module) is not None):
            found.append(name)
    return found


def adapter(name: str) -> ModuleType:
    return importlib.import_module(f"support.backends.{name.replace('-', '_')}")
