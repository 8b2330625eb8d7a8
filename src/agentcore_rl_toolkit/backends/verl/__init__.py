"""verl: stock `verl.trainer.main_ppo`, with rollouts of agents. Needs the extra `verl`.

In: `VerlSettings`, and in verl's own processes its configuration and its prompts. Out: the overrides that start verl,
and agent loop outputs for its trainer. It never patches verl: verl loads the manager, the dataset and a plugin for its
command line by their names.

Imports `backends.loop`, `client`, `deploy`, `engine`, `gateway`, `rollout`, `studio`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import lazy_attributes

if TYPE_CHECKING:
    from .backend import VerlSettings
    from .data import JsonlRows
    from .manager import AgentCoreManager, AgentCoreWorker
    from .verl_engine import VerlEngine

__all__ = ["AgentCoreManager", "AgentCoreWorker", "JsonlRows", "VerlEngine", "VerlSettings"]

__getattr__ = lazy_attributes(
    __name__,
    "verl",
    backend=["VerlSettings"],
    data=["JsonlRows"],
    manager=["AgentCoreManager", "AgentCoreWorker"],
    verl_engine=["VerlEngine"],
)
