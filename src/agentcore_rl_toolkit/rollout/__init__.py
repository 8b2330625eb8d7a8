"""Rollouts in groups: open a gateway session, invoke, await the result, fold the trajectories, judge.

In: data rows, a `RolloutClient`, a `Gateway`. Out: `Group`s of judged `Rollout`s, their metrics, and files of them. Its
judge is the only place that decides what is trained on. It refuses to know any trainer.

Imports `agent`, `client`, `gateway`.
"""

from ..gateway.record.trajectory import Row
from .failure_causes import Causes
from .judge import FAILURES, Judge, failure_table
from .options import UNALTERED, RolloutOptions
from .rollout import Action, Group, Rollout
from .run_folder.rollout_files import RolloutWriter, read_rollouts
from .runner import RolloutRunner, run_rollouts
from .step_metrics import merge_metrics, step_metrics
from .stream import RolloutStream

__all__ = [
    "FAILURES",
    "UNALTERED",
    "Action",
    "Causes",
    "Group",
    "Judge",
    "Rollout",
    "RolloutOptions",
    "RolloutRunner",
    "RolloutStream",
    "RolloutWriter",
    "Row",
    "failure_table",
    "merge_metrics",
    "read_rollouts",
    "run_rollouts",
    "step_metrics",
]
