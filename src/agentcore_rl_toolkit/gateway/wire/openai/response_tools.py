"""The tools of a request to OpenAI's Responses: how the model sees each, and which item its call becomes. Pure.

A chat template knows functions only. So a namespace is flattened into `namespace__name`, a custom tool becomes a
function with one text, `input`, and a tool search that the client runs becomes a function of that name. Tools that
run on OpenAI's servers are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from ....errors import GatewayFault
from ...call.chat import ToolCall, parse_arguments
from ..fields import Name, parse
from ..json_body import dump
from ..tools import OfferedTools, call_input, function_tool

SEARCH = "tool_search"
_ROOT = "functions"  # the namespace in which OpenAI's models have functions without one
_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class CustomFormat(Struct):
    """The grammar that a custom tool's input follows."""

    definition: str | None = None
    syntax: Any = None


class ResponseTool(Struct):
    """A tool of a request to `/responses`."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["function", "custom", "namespace", SEARCH, "web_search"]})]
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    format: CustomFormat | None = None
    tools: list[Any] | None = None
    execution: Any = None
    defer_loading: bool | None = None

    def required_name(self, where: str) -> str:
        if self.name is None:
            raise GatewayFault.invalid(f"{where}.name is missing", param=where)
        return self.name


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """The client's tool behind one of the model's functions."""

    kind: str
    """`function`, `custom` or `tool_search`."""
    name: str
    namespace: str | None = None


def flat_name(name: str, namespace: Any) -> str:
    """The name by which the model knows a tool."""
    if not isinstance(namespace, str) or namespace in ("", _ROOT):
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


class ResponseTools(OfferedTools):
    """The tools of one request."""

    def __init__(self, tools: list[Any] | None = None) -> None:
        super().__init__()
        self._origins: dict[str, ToolOrigin] = {}
        self.shown += [tool for tool, deferred in self._read(tools, "tools") if not deferred]

    def show(self, tools: list[Any] | None, where: str) -> None:
        """Add tools that come with the input, before the model's first turn."""
        self.shown += [tool for tool, _ in self._read(tools, where) if tool not in self.shown]

    def load_definitions(self, tools: list[Any] | None, where: str) -> str:
        """Load tools that come later in the input; returns the text that defines them."""
        return self.load(tool for tool, _ in self._read(tools, where))

    def item(self, call: ToolCall) -> tuple[str, dict[str, Any], str]:
        """A call as an item for the client: the prefix of its id, its fields, and the name of the streamed one."""
        origin = self._origins.get(call.name) or ToolOrigin("function", call.name)
        if origin.kind == SEARCH:
            fields = {"type": "tool_search_call", "execution": "client", "call_id": call.id}
            return "tsc", fields | {"arguments": call_input(call.arguments)}, ""
        fields = {"type": "function_call", "call_id": call.id, "name": origin.name}
        if origin.namespace is not None:
            fields["namespace"] = origin.namespace
        if origin.kind == "custom":
            return "ctc", fields | {"type": "custom_tool_call", "input": custom_input(call.arguments)}, "input"
        return "fc", fields | {"arguments": call.arguments}, "arguments"

    def flatten_choice(self, choice: Any) -> Any:
        """A `tool_choice` by the names that the model knows."""
        if not isinstance(choice, dict):
            return choice
        if isinstance(choice.get("tools"), list):
            return choice | {"tools": [self.flatten_choice(tool) for tool in choice["tools"]]}
        name = choice.get("name")
        if choice.get("type") in ("function", "custom") and isinstance(name, str):
            return {"type": "function", "name": flat_name(name, choice.get("namespace"))}
        return choice

    def _read(
        self, tools: list[Any] | None, where: str, namespace: str | None = None
    ) -> Iterator[tuple[dict[str, Any], bool]]:
        """Each tool in canonical form, and whether it is deferred."""
        for place, given in enumerate(tools or ()):
            here = f"{where}[{place}]"
            tool = parse(given, ResponseTool, here)
            if tool.type == "namespace" and namespace is None:
                yield from self._read(tool.tools, f"{here}.tools", tool.required_name(here))
            elif tool.type in ("function", "custom") or (tool.type == SEARCH and tool.execution == "client"):
                yield self._canonical(tool, namespace, here), bool(tool.defer_loading)
            else:
                self.omitted.append(tool.type[:80])

    def _canonical(self, tool: ResponseTool, namespace: str | None, where: str) -> dict[str, Any]:
        name = SEARCH if tool.type == SEARCH else tool.required_name(where)
        flat = flat_name(name, namespace)
        self._origins[flat] = ToolOrigin(tool.type, name, namespace)
        if tool.type == "custom":
            return function_tool(flat, _describe_custom(tool), _INPUT)
        return function_tool(flat, tool.description, tool.parameters)


def custom_input(arguments: str) -> str:
    """The text that a custom tool is called with. Arguments other than one `input` are passed on unchanged."""
    parsed = parse_arguments(arguments)
    return parsed["input"] if _is_input(parsed) else arguments


def custom_arguments(text: str) -> Any:
    """The arguments from which `custom_input` made a text."""
    parsed = parse_arguments(text)
    return parsed if isinstance(parsed, dict) and not _is_input(parsed) else {"input": text}


def _is_input(parsed: Any) -> bool:
    return isinstance(parsed, dict) and parsed.keys() == {"input"} and isinstance(parsed["input"], str)


def _describe_custom(tool: ResponseTool) -> str | None:
    """A custom tool's description, with the grammar of its input."""
    if tool.format is None or tool.format.definition is None:
        return tool.description
    syntax = dump(tool.format.syntax).decode()
    return f"{tool.description or ''}\n\n`input` follows this grammar ({syntax}):\n{tool.format.definition}".strip()
