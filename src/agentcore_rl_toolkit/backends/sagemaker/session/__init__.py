"""SageMaker's training sessions: GRPO on agents' rollouts, sampled and trained in one. Needs the extra `sagemaker`.

In: `TrainingSessionSettings`, and groups of rollouts. Out: passes and optimizer steps of the session, model packages, a
summary. The engine is `engine/services/session_engine.py`, the loop is `backends/loop/service_run.py`.

Imports `backends.loop`, `deploy`, `engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base import lazy_attributes

if TYPE_CHECKING:
    from .backend import TrainingSessionSettings
    from .session_weights import train

__all__ = ["TrainingSessionSettings", "train"]

__getattr__ = lazy_attributes(__name__, "sagemaker", backend=["TrainingSessionSettings"], session_weights=["train"])
