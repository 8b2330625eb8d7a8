"""The tools of a request: which the model is shown, which it may call, and arguments to and from objects. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ...errors import GatewayFault
from ..call.chat import Message, parse_arguments
from .json_body import MAX_DEPTH, depth, dump

_RAW = "__arguments__"


class OfferedTools:
    """The tools that a request offers to the model, in canonical form.

    Tools that only the provider's servers could run are left out. A request that forces one of those forces nothing.
    """

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []
        """Tools that the prompt starts with."""
        self.loaded: list[dict[str, Any]] = []
        """Tools that a later message defines in its text."""
        self.omitted: list[str] = []
        """The kinds of tools that are left out."""

    @property
    def callable(self) -> list[dict[str, Any]]:
        """All tools that the model may call."""
        return [*self.shown, *self.loaded]

    def load(self, tools: Iterable[dict[str, Any]]) -> str:
        """Let the model call `tools` from here on; returns the text that defines them."""
        new = list(tools)
        self.loaded += [tool for tool in new if tool not in self.shown and tool not in self.loaded]
        return "\n".join(dump(tool).decode() for tool in new)

    def fields(self) -> dict[str, Any]:
        return {"tools": self.shown, "loaded": self.loaded, "omitted": tuple(self.omitted)}

    def require_any(self, param: str = "tool_choice") -> str:
        """The canonical choice that forces some call."""
        if self.callable:
            return "required"
        if self.omitted:
            return "auto"
        raise GatewayFault.invalid(f"{param} forces a tool call, but the request has no tools", param=param)

    def require(self, name: Any, param: str = "tool_choice") -> str:
        """The canonical choice that forces a call of one tool."""
        names = [tool["function"]["name"] for tool in self.callable]
        if name in names:
            return f"={name}"
        if self.omitted:
            return "auto"
        why = (
            f"names none of the tools: {', '.join(names)[:200]}"
            if names
            else "names a tool, but the request has no tools"
        )
        raise GatewayFault.invalid(f"{param} {str(name)[:80]!r} {why}", param=param)

    def allow(self, names: list[Any], *, required: bool, param: str = "tool_choice") -> str:
        """The canonical choice that allows some of the tools: all of them, or one that is forced."""
        allowed = {self.require(name, param) for name in names}
        if {f"={tool['function']['name']}" for tool in self.callable} <= allowed:
            return self.require_any(param) if required else "auto"
        if required and len(allowed) == 1:
            return allowed.pop()
        raise GatewayFault.invalid(
            f"{param} allows only some of the tools, which the gateway can't enforce: send just these in tools",
            param=param,
        )


def function_tool(name: str, description: str | None, schema: dict[str, Any] | None) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if description:
        function["description"] = description
    return {"type": "function", "function": function | {"parameters": schema or {}}}


def function_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant_message(content: Message, calls: list[dict[str, Any]], reasoning: str) -> Message:
    """A canonical reply; `content` as `content_fields` returns it."""
    message: Message = {"role": "assistant", **content}
    if calls:
        message["tool_calls"] = calls
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def call_input(arguments: str) -> dict[str, Any]:
    """A call's arguments for wires that carry an object instead of JSON text.

    Arguments that are not an object, or would not survive the round trip, travel as text under a reserved name.
    """
    parsed = parse_arguments(arguments)
    return parsed if isinstance(parsed, dict) and _survives(parsed) else {_RAW: arguments}


def call_arguments(given: dict[str, Any]) -> Any:
    """The arguments from which `call_input` made an object."""
    raw = given.get(_RAW)
    return parse_arguments(raw) if isinstance(raw, str) and len(given) == 1 else given


def _survives(parsed: dict[str, Any]) -> bool:
    if depth(parsed) > MAX_DEPTH - 10:  # the client sends it back within messages
        return False
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True
