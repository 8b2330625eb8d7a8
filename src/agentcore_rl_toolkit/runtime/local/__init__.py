"""AgentCore Runtime on this machine: sandboxed sessions, served on AWS's own wire. Needs the extra `local`."""

from .agent import AgentSource
from .policy import SessionPolicy
from .runtime import LocalRuntime

__all__ = ["AgentSource", "LocalRuntime", "SessionPolicy"]
