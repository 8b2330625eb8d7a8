"""The verbs of the command line, in the order of its help. Importing them is most of what a command does to start."""

from __future__ import annotations

from . import gateway, runtime
from .deploy import build, deploy, destroy, doctor, init
from .rollouts import eval, rescore, results, rollout, train

VERBS = (init, train, rollout, eval, rescore, runtime, gateway, results, build, deploy, destroy, doctor)
