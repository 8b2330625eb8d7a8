"""Where sessions run: on AWS (`agentcore.py`), or on this machine (`local/`)."""

from .base import CommandEvent, Invocation, Runtime

__all__ = ["CommandEvent", "Invocation", "Runtime"]
