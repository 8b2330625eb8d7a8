"""Tinker: GRPO on agents' rollouts, with sampling and training on a Tinker service.

    backend.py   the settings of a run, and what can be said of it before it starts
    convert.py   groups of rollouts → Datums for the importance-sampling loss
    weights.py   the weights of a run: training, sampling, checkpoints
    run.py       train(): the loop, from rows to metrics

The engine is `gateway/engine/tinker.py`. Training needs the extra `tinker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import lazily

if TYPE_CHECKING:
    from .backend import TinkerSettings
    from .convert import Example, to_examples
    from .training import train

__all__ = ["Example", "TinkerSettings", "to_examples", "train"]

_HOMES = {"Example": ".convert", "TinkerSettings": ".backend", "to_examples": ".convert", "train": ".training"}
__getattr__ = lazily(__name__, _HOMES, "tinker")
