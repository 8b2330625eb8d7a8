"""Where sessions run: on AWS (`agentcore.py`), on this machine (`local/`), or on a Ray cluster (`ray.py`)."""

from .base import CommandEvent, Invocation, Runtime

__all__ = ["CommandEvent", "Invocation", "Runtime"]
