"""Tool calls as the model made them, for echoes in which a client has filled in what the model left out.

Agents validate a call against the tool's schema and send it back with the defaults of optional arguments. By the id
that the gateway gave the call it is known again, and if nothing the model said is changed, what the model said counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .chat import Message, ToolCall, parse_arguments


class MadeCalls:
    """The calls of one session, by their ids."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, Any]] = {}

    def add(self, calls: Iterable[ToolCall]) -> None:
        """Take in the calls of a reply."""
        for call in calls:
            self._made[call.id] = (call.name, parse_arguments(call.arguments))

    def restore(self, messages: Iterable[Message]) -> None:
        """Give echoed calls the arguments they were made with, where an echo has only more of them."""
        for message in messages:
            for call in message.get("tool_calls") or ():
                name, arguments = self._made.get(call.get("id", ""), ("", None))
                function = call["function"]
                if arguments is not None and name == function["name"] and _covers(function["arguments"], arguments):
                    function["arguments"] = arguments


def _covers(echoed: Any, made: Any) -> bool:
    """Whether `echoed` is what was made, but for members that were added to objects."""
    if isinstance(made, dict):
        return isinstance(echoed, dict) and all(key in echoed and _covers(echoed[key], made[key]) for key in made)
    if isinstance(made, list):
        return isinstance(echoed, list) and len(echoed) == len(made) and all(map(_covers, echoed, made))
    return type(echoed) is type(made) and bool(echoed == made)
