"""TRL: GRPO on agents' rollouts.

    backend.py   the settings of a run, and what can be said of it before it starts
    convert.py   groups of rollouts → what TRL's `rollout_func` returns
    trainer.py   AgentGRPOTrainer: TRL's GRPOTrainer, fed with rollouts
    config.py    a run's settings as TRL takes them
    model.py     the policy and its adapter
    colocated.py vLLM in the trainer's process, as an engine
    run.py       train(): model, engine, gateway, sessions and trainer together

Training needs the extra `trl`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..base import lazily

if TYPE_CHECKING:
    from .backend import TrlSettings
    from .trainer import AgentGRPOTrainer
    from .training import train

__all__ = ["AgentGRPOTrainer", "TrlSettings", "train"]

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` may change; a test pins what we need of it

_HOMES = {"AgentGRPOTrainer": ".trainer", "TrlSettings": ".backend", "train": ".training"}
__getattr__ = lazily(__name__, _HOMES, "trl")
