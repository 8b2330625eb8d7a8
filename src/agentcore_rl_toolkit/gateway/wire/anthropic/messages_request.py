"""Requests to Anthropic's Messages, as canonical calls. Pure.

A tool's result becomes a separate message, before the user's text beside it. A deferred tool is not part of the
prompt's start: a `tool_reference` in a tool's result brings the definition into that result's text, so that the prompt
only grows and the session stays one row. Tools that run on Anthropic's servers are left out.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from ....errors import GatewayFault
from ...call.chat import ChatCall, Message
from ..content import Omitted, Part, content_fields, with_user_turn, without_prefill
from ..fields import Name, PositiveCount, StopStrings, parse, short
from ..openai.sampling import SamplingSettings, json_format, to_sampling
from ..tools import OfferedTools, assistant_message, call_arguments, function_call, function_tool

_MEDIA = ("image", "document", "search_result", "container_upload")
_BLOCKS = ["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "tool_reference", *_MEDIA]


class MessagesBlock(Struct):
    type: Annotated[str, Meta(extra_json_schema={"enum": _BLOCKS})]
    text: str | None = None
    thinking: str | None = None
    id: Any = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: Any = None
    source: Any = None


class ResultContent(Struct):
    content: str | list[MessagesBlock]


class MessagesMessage(Struct):
    role: Annotated[str, Meta(pattern="^(user|assistant|system)$")]
    content: str | list[MessagesBlock]


class MessagesTool(Struct):
    type: str | None = None
    name: Name | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool | None = None


class MessagesToolChoice(Struct):
    type: Annotated[str, Meta(pattern="^(auto|any|tool|none)$")]
    name: Any = None


class MessagesThinking(Struct):
    type: Annotated[str, Meta(pattern="^(enabled|disabled|adaptive|between_tools)$")]


class MessagesFormat(Struct):
    type: Annotated[str, Meta(pattern="^json_schema$")]
    schema: dict[str, Any]


class OutputConfig(Struct):
    format: MessagesFormat | None = None


class CountTokensRequest(SamplingSettings, kw_only=True):
    """A request to `/messages/count_tokens`."""

    messages: Annotated[list[MessagesMessage], Meta(min_length=1)]
    model: str | None = None
    system: str | list[MessagesBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: MessagesThinking | None = None
    container: Any = None
    mcp_servers: Any = None
    stop_sequences: StopStrings | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A request to `/messages`."""

    max_tokens: PositiveCount
    stream: bool | None = None


def read_call(request: MessagesRequest) -> ChatCall:
    call = read_prompt(request)
    without_prefill(list(call.messages))
    return call


def read_prompt(request: CountTokensRequest) -> ChatCall:
    """The call of a request, which may still end with the assistant's messages."""
    tools = MessagesTools(request)
    messages = _read_system(request.system, "system")
    for place, message in enumerate(request.messages):
        messages += _read_message(message, f"messages[{place}]", tools)
    wanted = request.output_config.format if request.output_config is not None else None
    request.response_format = json_format(wanted.schema if wanted is not None else None)
    request.stop, request.max_completion_tokens = request.stop_sequences, None
    thinking = request.thinking
    return ChatCall(
        messages=with_user_turn(messages),
        **tools.fields(),
        tool_choice=tools.choose(request.tool_choice),
        sampling=to_sampling(request),
        model=request.model or None,
        template={"enable_thinking": thinking.type != "disabled"} if thinking is not None else {},
    )


class MessagesTools(OfferedTools):
    """The tools of one request: shown at once, deferred until a message refers to them, or left out."""

    def __init__(self, request: CountTokensRequest) -> None:
        super().__init__()
        self.omitted += [name for name in ("container", "mcp_servers") if getattr(request, name)]
        self._all: dict[str, dict[str, Any]] = {}
        for place, tool in enumerate(request.tools or ()):
            if tool.type not in (None, "custom"):
                self.omitted.append(str(tool.type)[:80])
                continue
            if tool.name is None:
                raise GatewayFault.invalid(f"tools[{place}].name is missing", param=f"tools[{place}]")
            self._all[tool.name] = function_tool(tool.name, tool.description, tool.input_schema)
            if not tool.defer_loading:
                self.shown.append(self._all[tool.name])

    def load_referenced(self, name: str | None, where: str) -> str:
        """Load the tool that a message refers to; returns the text that defines it."""
        if name is None:
            raise GatewayFault.invalid(f"{where} has a tool_reference without a tool_name", param=where)
        return (self.load([self._all[name]]) if name in self._all else name) + "\n"

    def choose(self, choice: MessagesToolChoice | None) -> str:
        if choice is None:
            return "auto"
        if choice.type == "any":
            return self.require_any()
        return self.require(choice.name) if choice.type == "tool" else choice.type


def _read_message(message: MessagesMessage, where: str, tools: MessagesTools) -> list[Message]:
    if message.role == "system":
        return _read_system(message.content, where)
    blocks = _blocks(message.content)
    if message.role == "assistant":
        return [_read_assistant(blocks, where)]
    results = [_read_result(block, where, tools) for block in blocks if block.type == "tool_result"]
    parts = [_read_part(block, where) for block in blocks if block.type != "tool_result"]
    return [*results, {"role": "user", **content_fields(parts)}] if parts or not results else results


def _read_result(block: MessagesBlock, where: str, tools: MessagesTools) -> Message:
    if block.tool_use_id is None:
        raise GatewayFault.invalid(f"{where} has a tool_result without a tool_use_id", param=where)
    parts = [
        tools.load_referenced(inner.tool_name, where) if inner.type == "tool_reference" else _read_part(inner, where)
        for inner in _blocks(parse({"content": block.content or ""}, ResultContent, where).content)
    ]
    return {"role": "tool", **content_fields(parts), "tool_call_id": block.tool_use_id}


def _read_assistant(blocks: list[MessagesBlock], where: str) -> Message:
    parts: list[Part] = []
    calls, reasoning = [], ""
    for block in blocks:
        if block.type == "thinking":
            reasoning += _text(block, where)
        elif block.type == "tool_use":
            if block.name is None:
                raise GatewayFault.invalid(f"{where} has a tool_use without a name", param=where)
            calls.append(function_call(str(block.id or ""), block.name, call_arguments(block.input or {})))
        elif block.type != "redacted_thinking":
            parts.append(_read_part(block, where))
    return assistant_message(content_fields(parts), calls, reasoning)


def _blocks(content: str | list[MessagesBlock]) -> list[MessagesBlock]:
    return [MessagesBlock("text", content)] if isinstance(content, str) else content


def _read_part(block: MessagesBlock, where: str) -> Part:
    """A block as the model reads it: its text, or a placeholder."""
    source = block.source
    if block.type == "document" and isinstance(source, dict) and source.get("type") == "text":
        return str(source.get("data") or "")
    if block.type in _MEDIA or block.type.endswith(("_tool_use", "_tool_result")):  # of tools on Anthropic's servers
        given = source if isinstance(source, dict) else {}
        return Omitted(block.type[:80], given.get("data") or given.get("url"))
    if block.type != "text":
        raise GatewayFault.invalid(f"{where} can't hold a block of type {short(block.type)}", param=where)
    return _text(block, where)


def _text(block: MessagesBlock, where: str) -> str:
    text = block.text if block.type == "text" else block.thinking
    if text is None:
        raise GatewayFault.invalid(f"{where} has a {block.type} block without its text", param=where)
    return text


def _read_system(system: str | list[MessagesBlock] | None, where: str) -> list[Message]:
    read = content_fields(_read_part(block, where) for block in _blocks(system or ""))
    return [{"role": "system", **read}] if read["content"] else []
