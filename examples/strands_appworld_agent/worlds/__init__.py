"""The worlds that the agent's code acts on: AppWorld, and a small one of our own behind the same interface."""

from __future__ import annotations

from .base import Evaluation, World
from .payload import WorldRequest

__all__ = ["Evaluation", "World", "WorldRequest", "open_world"]


def open_world(request: WorldRequest) -> World:
    """The world of a request's task; close it, or use it in a `with` block."""
    if request.world == "appworld":
        from .appworld import AppWorldWorld

        return AppWorldWorld(request.task_id)
    from .builtin import BuiltinWorld

    return BuiltinWorld(request.task_id)
