"""AgentCore RL Toolkit: the agent you train is the agent you deploy.

Each public name is imported when first used, so that importing the package costs an agent's container almost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent.app import AgentCoreRLApp as AgentCoreRLApp
    from .agent.result import Result as Result
    from .agent.reward import RewardFunction as RewardFunction
    from .agent.strands import StrandsAgentCoreRLApp as StrandsAgentCoreRLApp
    from .agent.strands import StrandsRolloutCollector as StrandsRolloutCollector
    from .client import AsyncBatchResult as AsyncBatchResult
    from .client import BatchItem as BatchItem
    from .client import BatchResult as BatchResult
    from .client import RolloutClient as RolloutClient
    from .client import RolloutFuture as RolloutFuture
    from .config import AgentCoreConfig as AgentCoreConfig
    from .errors import AgentCoreRLError as AgentCoreRLError
    from .gateway.gateway import Gateway as Gateway
    from .store import Store as Store
    from .store import open_store as open_store
    from .types import Status as Status

__version__ = "0.3.0"

_MODULES = {
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
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
