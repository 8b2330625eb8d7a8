"""rLLM: its own trainers (verl or Tinker) and its own gateway; its adapter runs sessions through this package's client.

In: `RllmSettings`. Out: the program that starts rLLM's trainer, with overrides and a dataset, and a count of failed
sessions. It never converts rollouts: rLLM's adapter calls `RolloutClient` and trains on what rLLM's gateway recorded.
Needs the extra `rllm`, and rLLM from its repository: it is not on PyPI.

Imports `engine`, `runtime`, `store`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import lazy_attributes

if TYPE_CHECKING:
    from .backend import RllmSettings
    from .data import register

__all__ = ["RllmSettings", "register"]

__getattr__ = lazy_attributes(__name__, "rllm", backend=["RllmSettings"], data=["register"])
