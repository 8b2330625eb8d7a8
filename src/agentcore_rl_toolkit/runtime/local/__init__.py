"""AgentCore Runtime on this machine: sandboxed sessions, served on AWS's own wire. Needs the extra `local`.

The names are imported only when used: templates and probes are modules of this package, and need no HTTP server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent_templates import AgentSource
    from .policy import SessionPolicy
    from .runtime import LocalRuntime

_HOMES = {"AgentSource": ".agent_templates", "LocalRuntime": ".runtime", "SessionPolicy": ".policy"}

__all__ = ["AgentSource", "LocalRuntime", "SessionPolicy"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
