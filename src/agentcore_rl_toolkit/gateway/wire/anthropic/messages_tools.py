"""The tools of a request to Anthropic's Messages: shown at once, deferred until referenced, or left out. Pure.

A deferred tool is not part of the prompt's beginning. A `tool_reference` in a tool's result brings its definition into
that result's text, so that the prompt only grows and the session stays one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....errors import GatewayFault
from ..base import any_tool, chosen_tool, function_tool
from ..fields import flag, short
from ..json_body import dump

_SERVERS = ("container", "mcp_servers")
"""Fields of a request that name something which runs on Anthropic's servers."""


class MessagesTools:
    """What the model may call."""

    def __init__(self, body: dict[str, Any]) -> None:
        tools = body.get("tools")
        if not isinstance(tools, list | None):
            raise GatewayFault.invalid("tools is not a list", param="tools")
        self.shown: list[dict[str, Any]] = []
        self.loaded: list[dict[str, Any]] = []
        """Deferred tools that a message has referenced, in the order of their references."""
        self.omitted = [name for name in _SERVERS if body.get(name)]
        """The types of tools that Anthropic defines or runs."""
        self._all: dict[str, dict[str, Any]] = {}
        for place, tool in enumerate(tools or ()):
            self._take(tool, f"tools[{place}]")

    def _take(self, tool: Any, where: str) -> None:
        if not isinstance(tool, dict):
            raise GatewayFault.invalid(f"{where} is not an object", param=where)
        kind = tool.get("type")
        if kind not in (None, "custom"):
            if not isinstance(kind, str):
                raise GatewayFault.invalid(f"{where} is of type {short(kind)}; expected a text", param=where)
            self.omitted.append(kind[:80])
            return
        read = function_tool(tool.get("name"), tool.get("description"), tool.get("input_schema"), where)
        self._all[tool["name"]] = read
        if not flag(tool, "defer_loading"):
            self.shown.append(read)

    def load(self, name: Any, where: str) -> str:
        """The definition of a tool that a message refers to; the model may call it from there on."""
        if not isinstance(name, str):
            raise GatewayFault.invalid(f"{where} has a tool_reference without a tool_name", param=where)
        tool = self._all.get(name)
        if tool is None:
            return f"{name}\n"
        if tool not in self.shown and tool not in self.loaded:
            self.loaded.append(tool)
        return dump(tool).decode() + "\n"

    def choice(self, choice: Any) -> str:
        """What may be called, in canonical form. One that is left out can't be asked for, and nothing is forced."""
        if choice is None:
            return "auto"
        kind = choice.get("type") if isinstance(choice, dict) else None
        known: Sequence[dict[str, Any]] = [*self.shown, *self.loaded]
        if kind == "any":
            return any_tool(known) if known or not self.omitted else "auto"
        if kind == "tool":
            left_out = self.omitted and choice.get("name") not in self._all
            return "auto" if left_out else chosen_tool(choice.get("name"), known)
        if kind not in ("auto", "none"):
            raise GatewayFault.invalid(
                f"tool_choice is {short(choice)}; its type is auto, any, tool or none", param="tool_choice"
            )
        return str(kind)
