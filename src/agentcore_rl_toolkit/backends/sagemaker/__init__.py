"""SageMaker: multi-turn RL jobs, which AWS runs on a deployed agent; and, in `session/`, training sessions.

In: `SagemakerSettings`, the ARN of a deployed runtime, rows. Out: rows in S3, an AgentRFT job, its progress, a model
package, a summary. A job makes its own rollouts and its own weights: none of them pass through this process.

Imports `deploy`, `rollout`, `runtime`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import lazy_attributes

if TYPE_CHECKING:
    from .backend import SagemakerSettings
    from .job_run import train

__all__ = ["SagemakerSettings", "train"]

__getattr__ = lazy_attributes(__name__, "sagemaker", backend=["SagemakerSettings"], job_run=["train"])
