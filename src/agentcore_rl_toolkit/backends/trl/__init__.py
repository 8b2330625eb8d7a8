"""TRL: GRPO on agents' rollouts, and fine-tuning on stored ones. Needs the extra `trl`.

In: `TrlSettings`, and groups of rollouts. Out: the batches of TRL's own `GRPOTrainer`, checkpoints, a summary. It
changes TRL in one place only, the batch that `trainer.py` completes.

Imports `backends.loop`, `engine`, `gateway`, `rollout`, `studio`.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from ..base import lazy_attributes

if TYPE_CHECKING:
    from .backend import SftSettings, TrlSettings
    from .sft import fine_tune
    from .trainer import AgentGRPOTrainer
    from .training import train

__all__ = ["AgentGRPOTrainer", "SftSettings", "TrlSettings", "fine_tune", "train"]

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` may change; a test pins what we need of it
# Transformers 5.23 renames it, and TRL keeps using the name.
warnings.filterwarnings("ignore", r"`\w*gradient_checkpointing` is deprecated", FutureWarning)

__getattr__ = lazy_attributes(
    __name__,
    "trl",
    backend=["SftSettings", "TrlSettings"],
    sft=["fine_tune"],
    trainer=["AgentGRPOTrainer"],
    training=["train"],
)
