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

from .failure_causes import Causes
from .failure_table import FAILURES, Action, failure_table
from .judge import Judge
from .options import UNALTERED, RolloutOptions
from .rollout import Group, Rollout
from .rollout_files import RolloutWriter, read_rollouts
from .runner import RolloutRunner, run_rollouts
from .step_metrics import merge_metrics, step_metrics

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
