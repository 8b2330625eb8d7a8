"""AgentCore Runtime on this machine: sandboxed sessions, served on AWS's own wire. Needs the extra `local`.

In: an agent's path, requests from Python or over HTTP. Out: the app's answers, and a `session_lost` result for every
rollout that a session leaves behind. An agent's code is hostile: it runs in sessions only, and every byte that it sends
is bounded. The names are imported on use, because templates and probes are modules of this package and start without an
HTTP server.

Imports `runtime.hosting`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent_source import AgentSource, SessionPolicy
    from .runtime import LocalRuntime

_MODULES = {"AgentSource": ".agent_source", "LocalRuntime": ".runtime", "SessionPolicy": ".agent_source"}

__all__ = ["AgentSource", "LocalRuntime", "SessionPolicy"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __name__), name)
