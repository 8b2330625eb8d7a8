"""verl: stock `verl.trainer.main_ppo`, with rollouts of agents.

    backend.py    the settings of a run, what can be said of it before it starts, and launching it
    overrides.py  verl's own overrides for them, and for the spelling `rollout.name=agentcore`
    cpus.py       and for machines with few cores
    plugin.py     lets stock verl understand that spelling
    compose.py    verl's own configuration, composed and checked
    agent.py      the agent's ARN, from a container image if need be
    manager.py    AgentCoreManager: verl's agent loop manager
    worker.py     AgentCoreWorker: a gateway and a runner of rollouts in verl's agent loop worker
    engine.py     VerlEngine: sampling through verl's server client
    convert.py    groups of rollouts → verl's agent loop outputs
    data.py       JsonlRows: plain JSONL as verl's data set

Training needs the extra `verl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import lazily

if TYPE_CHECKING:
    from .backend import VerlSettings
    from .data import JsonlRows
    from .manager import AgentCoreManager
    from .verl_engine import VerlEngine
    from .worker import AgentCoreWorker

__all__ = ["AgentCoreManager", "AgentCoreWorker", "JsonlRows", "VerlEngine", "VerlSettings"]

_HOMES = {
    "AgentCoreManager": ".manager",
    "AgentCoreWorker": ".worker",
    "JsonlRows": ".data",
    "VerlEngine": ".verl_engine",
    "VerlSettings": ".backend",
}
__getattr__ = lazily(__name__, _HOMES, "verl")
