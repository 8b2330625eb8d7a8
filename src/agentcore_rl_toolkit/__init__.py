"""AgentCore RL Toolkit: the agent you train is the agent you deploy.

The public names, imported only when used: `import agentcore_rl_toolkit` costs an agent's container next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent.app import AgentCoreRLApp
    from .agent.result import Result
    from .agent.reward import RewardFunction
    from .agent.strands import StrandsAgentCoreRLApp, StrandsRolloutCollector
    from .client import AsyncBatchResult, BatchItem, BatchResult, RolloutClient, RolloutFuture
    from .config import AgentCoreConfig
    from .errors import AgentCoreRLError
    from .gateway.gateway import Gateway
    from .store import Store, open_store
    from .types import Status

__version__ = "0.3.0"

_HOMES = {
    "AgentCoreConfig": ".config",
    "AgentCoreRLApp": ".agent.app",
    "AgentCoreRLError": ".errors",
    "AsyncBatchResult": ".client",
    "BatchItem": ".client",
    "BatchResult": ".client",
    "Gateway": ".gateway.gateway",
    "Result": ".agent.result",
    "RewardFunction": ".agent.reward",
    "RolloutClient": ".client",
    "RolloutFuture": ".client",
    "Status": ".types",
    "Store": ".store",
    "StrandsAgentCoreRLApp": ".agent.strands",
    "StrandsRolloutCollector": ".agent.strands",
    "open_store": ".store",
}

__all__ = [
    "AgentCoreConfig",
    "AgentCoreRLApp",
    "AgentCoreRLError",
    "AsyncBatchResult",
    "BatchItem",
    "BatchResult",
    "Gateway",
    "Result",
    "RewardFunction",
    "RolloutClient",
    "RolloutFuture",
    "Status",
    "Store",
    "StrandsAgentCoreRLApp",
    "StrandsRolloutCollector",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
