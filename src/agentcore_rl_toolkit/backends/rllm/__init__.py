"""rLLM: its own trainers (verl or Tinker), its own gateway; sessions of the agent through this package's client.

    backend.py     the settings of a run, what is checked before it starts, and the command that it is
    overrides.py   a run's settings as rLLM's overrides
    sessions.py    how the sessions went, once it has ended
    check.py       those overrides against rLLM's own configuration, where rLLM is installed
    data.py        rows → a data set that rLLM knows
    main.py        what is launched: local runtime, data set, rLLM's trainer

rLLM's adapter calls `RolloutClient` and folds what its gateway saw, so nothing here converts rollouts. Needs the extra
`rllm`, and rLLM from its repository: it is not on PyPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import lazily

if TYPE_CHECKING:
    from .backend import RllmSettings
    from .data import register

__all__ = ["RllmSettings", "register"]

_HOMES = {"RllmSettings": ".backend", "register": ".data"}
__getattr__ = lazily(__name__, _HOMES, "rllm")
