"""Tinker: GRPO on agents' rollouts, sampled and trained on a Tinker service. Needs the extra `tinker`.

In: `TinkerSettings`, and groups of rollouts. Out: Datums for the service's loss, optimizer steps, checkpoints that name
what the service keeps, a summary. The engine is `engine/services/tinker.py`, the loop `backends/loop/service_run.py`.

Imports `backends.loop`, `engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import lazy_attributes

if TYPE_CHECKING:
    from .backend import TinkerSettings
    from .convert import Example, to_datum, to_examples
    from .weights import train

__all__ = ["Example", "TinkerSettings", "to_datum", "to_examples", "train"]

_CONVERT = ["Example", "to_datum", "to_examples"]
__getattr__ = lazy_attributes(__name__, "tinker", backend=["TinkerSettings"], convert=_CONVERT, weights=["train"])
