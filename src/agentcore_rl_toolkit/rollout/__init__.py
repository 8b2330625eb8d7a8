"""Rollouts: open a gateway session → invoke → await the result → fold the trajectories → `Rollout`, in groups.

rollout.py   Rollout and Group
policy.py    what each way a rollout can end does to training
judge.py     what becomes of one rollout, and of a group
options.py   how rollouts are run
sample.py    one rollout, from its gateway session to its trajectories
outage.py    when the infrastructure is down
run.py       run_rollouts
metrics.py   a step in figures
causes.py    why rollouts were not trained on
files.py     rollouts on disk
rescore.py   another reward for rollouts that were run already
"""

from .causes import Causes
from .files import RolloutWriter, read_rollouts
from .judge import Judge
from .metrics import merge_metrics, step_metrics
from .options import UNALTERED, RolloutOptions
from .policy import FAILURES, Action, failure_table
from .rollout import Group, Rollout
from .run import RolloutRunner, run_rollouts

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
    "RolloutWriter",
    "failure_table",
    "merge_metrics",
    "read_rollouts",
    "run_rollouts",
    "step_metrics",
]
