"""TRL: GRPO on agents' rollouts.

    convert.py   groups of rollouts → what TRL's `rollout_func` returns
    trainer.py   AgentGRPOTrainer: TRL's GRPOTrainer, fed with rollouts
    config.py    a run's settings as rollouts and TRL take them
    train.py     train(): model, engine, gateway, sessions, trainer; checkpoints, evaluation, resuming
    report.py    what a run shows while it trains, and leaves behind

Needs the extra `trl`.
"""

from __future__ import annotations

import os

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` may change; a test pins what we need of it

try:
    import torch  # noqa: F401
    import trl  # noqa: F401
except ImportError as error:
    raise ImportError(f"{error}\nhint: pip install 'agentcore-rl-toolkit[trl]'", name=error.name) from error

from ..settings import TrainSettings
from .train import train
from .trainer import AgentGRPOTrainer

__all__ = ["AgentGRPOTrainer", "TrainSettings", "train"]
