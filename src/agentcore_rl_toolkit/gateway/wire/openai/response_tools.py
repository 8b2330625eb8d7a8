"""The tools of a request to OpenAI's Responses: how the model sees each, and which item its call comes back as. Pure.

A chat template knows functions only. A namespace is flattened into `namespace__name`, a custom tool becomes a function
with one text, `input`, and a tool search that the client runs becomes a function of that name. Tools that OpenAI's
servers would run are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ....errors import GatewayFault
from ...call.chat import ToolCall, parse_arguments
from ..base import call_input, function_tool
from ..fields import flag, short
from ..json_body import dump

SEARCH = "tool_search"
_ROOT = "functions"  # the namespace that OpenAI's models have functions without one in
_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a function of the model's is to the client."""

    kind: str
    """`function`, `custom` or `tool_search`."""
    name: str
    namespace: str | None = None


def flat_name(name: str, namespace: Any) -> str:
    """The name that the model knows a tool by."""
    if not isinstance(namespace, str) or namespace in ("", _ROOT):
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


class ResponseTools:
    """What the model may call."""

    def __init__(self, tools: Any) -> None:
        self.shown: list[dict[str, Any]] = []
        self.loaded: list[dict[str, Any]] = []
        """Tools that a message brought in."""
        self.omitted: list[str] = []
        """The types of tools that OpenAI's servers would run."""
        self._origins: dict[str, Origin] = {}
        for tool, deferred in self._read(tools, "tools"):
            if not deferred:
                self.shown.append(tool)

    def lead(self, tools: Any, where: str) -> None:
        """Take in tools that come with the input, before the model's first turn."""
        self.shown += [tool for tool, _ in self._read(tools, where) if tool not in self.shown]

    def load(self, tools: Any, where: str) -> str:
        """The definitions of tools that come later; the model may call them from there on."""
        new = [tool for tool, _ in self._read(tools, where)]
        self.loaded += [tool for tool in new if tool not in self.shown and tool not in self.loaded]
        return "\n".join(dump(tool).decode() for tool in new)

    @property
    def known(self) -> list[dict[str, Any]]:
        return [*self.shown, *self.loaded]

    def item(self, call: ToolCall) -> tuple[str, dict[str, Any], str]:
        """A call as an item for the client: the prefix of its id, its fields, and which of them is streamed."""
        origin = self._origins.get(call.name) or Origin("function", call.name)
        if origin.kind == SEARCH:
            searched = {"type": "tool_search_call", "execution": "client", "call_id": call.id}
            return "tsc", searched | {"arguments": call_input(call.arguments)}, ""
        fields: dict[str, Any] = {"type": "function_call", "call_id": call.id, "name": origin.name}
        if origin.namespace is not None:
            fields["namespace"] = origin.namespace
        if origin.kind == "custom":
            return "ctc", fields | {"type": "custom_tool_call", "input": custom_input(call.arguments)}, "input"
        return "fc", fields | {"arguments": call.arguments}, "arguments"

    def choice(self, choice: Any) -> Any:
        """A `tool_choice` by the names that the model knows; one of a tool that is left out asks for nothing."""
        if isinstance(choice, dict) and isinstance(choice.get("tools"), list):
            return choice | {"tools": [self._chosen(tool) for tool in choice["tools"]]}
        if choice == "required" and not self.known and self.omitted:
            return "auto"
        return self._chosen(choice)

    def _chosen(self, choice: Any) -> Any:
        if not isinstance(choice, dict):
            return choice
        if choice.get("type") in self.omitted:
            return "auto"
        name = choice.get("name")
        if choice.get("type") in ("function", "custom") and isinstance(name, str):
            return {"type": "function", "name": flat_name(name, choice.get("namespace"))}
        return choice

    def _read(self, tools: Any, where: str, namespace: str | None = None) -> Iterator[tuple[dict[str, Any], bool]]:
        """Each tool in canonical form, and whether it is deferred."""
        if not isinstance(tools, list | None):
            raise GatewayFault.invalid(f"{where} is not a list", param=where)
        for place, tool in enumerate(tools or ()):
            here = f"{where}[{place}]"
            kind = tool.get("type") if isinstance(tool, dict) else None
            if not isinstance(kind, str):
                raise GatewayFault.invalid(f"{here} is of type {short(kind)}; expected a tool with a type", param=here)
            if kind == "namespace" and namespace is None:
                yield from self._read(tool.get("tools"), f"{here}.tools", _named(tool, here))
            elif kind in ("function", "custom") or (kind == SEARCH and tool.get("execution") == "client"):
                yield self._canonical(tool, kind, namespace, here), flag(tool, "defer_loading")
            else:
                self.omitted.append(kind[:80])

    def _canonical(self, tool: dict[str, Any], kind: str, namespace: str | None, where: str) -> dict[str, Any]:
        name = SEARCH if kind == SEARCH else _named(tool, where)
        described, parameters = tool.get("description"), tool.get("parameters")
        if kind == "custom":
            described, parameters = _custom(tool), _INPUT
        flat = flat_name(name, namespace)
        self._origins[flat] = Origin(kind, name, namespace)
        return function_tool(flat, described, parameters, where)


def custom_input(arguments: str) -> str:
    """The text that a custom tool is called with. Arguments that are not one `input` are passed on as they are."""
    parsed = parse_arguments(arguments)
    return parsed["input"] if _is_input(parsed) else arguments


def custom_arguments(text: str) -> Any:
    """The arguments that `custom_input` made a text of."""
    parsed = parse_arguments(text)
    return parsed if isinstance(parsed, dict) and not _is_input(parsed) else {"input": text}


def _is_input(parsed: Any) -> bool:
    return isinstance(parsed, dict) and parsed.keys() == {"input"} and isinstance(parsed["input"], str)


def _named(tool: dict[str, Any], where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise GatewayFault.invalid(f"{where} has no name", param=where)
    return name


def _custom(tool: dict[str, Any]) -> str | None:
    """A custom tool's description, with the grammar that its input has to follow."""
    described, form = tool.get("description"), tool.get("format")
    grammar = form.get("definition") if isinstance(form, dict) else None
    if not isinstance(grammar, str):
        return described
    syntax = json.dumps(form.get("syntax")) if isinstance(form, dict) else ""
    return f"{described or ''}\n\n`input` follows this grammar ({syntax}):\n{grammar}".strip()
