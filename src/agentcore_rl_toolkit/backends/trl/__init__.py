"""TRL: GRPO on agents' rollouts.

    convert.py   groups of rollouts → what TRL's `rollout_func` returns
    trainer.py   AgentGRPOTrainer: TRL's GRPOTrainer, fed with rollouts
    settings.py  TrainSettings: what `agentcore-rl train` is told
    train.py     train(): model, engine, gateway, sessions, trainer; checkpoints, evaluation, resuming
    report.py    what a run shows while it trains, and leaves behind

Needs the extra `trl`.
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
    import trl  # noqa: F401
except ImportError as error:
    raise ImportError(f"{error}\nhint: pip install 'agentcore-rl-toolkit[trl]'", name=error.name) from error

from .settings import TrainSettings
from .train import train
from .trainer import AgentGRPOTrainer

__all__ = ["AgentGRPOTrainer", "TrainSettings", "train"]
