"""Requests to Bedrock's Converse: content blocks, tools and settings as canonical calls. Pure.

The structs are as much of botocore's service model as the gateway serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ....engine.base import Sampling
from ....errors import GatewayFault
from ...call.chat import ChatCall, Message
from ..content import Omitted, Part, content_fields, with_user_turn, without_prefill
from ..fields import Name, PositiveCount, Probability, StopStrings, Temperature, parse, short
from ..json_body import dump, read_json
from ..openai.sampling import SAMPLING, SamplingSettings, json_format, to_sampling
from ..tools import OfferedTools, assistant_message, call_arguments, function_call, function_tool

_ALLOWED: dict[str, set[str]] = {
    "user": {"toolResult"},
    "assistant": {"toolUse", "reasoningContent"},
    "system": set(),
    "toolResult": {"json"},
}
"""The blocks that a message of each role, or a tool's result, may hold besides text and media."""
_MEDIA = {"image", "document", "video", "audio"}
_ALIASES = {"topK": "top_k", "stop_sequences": "stop"}
_ONE = Meta(extra_json_schema={"minProperties": 1, "maxProperties": 1})


class Union(Struct, rename="camel"):
    """An object with exactly one of its fields."""

    def member(self, where: str) -> tuple[str, Any]:
        """The field that is set, by its name on the wire, and its value."""
        names = dict(zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True))
        given = [(name, value) for name in names if (value := getattr(self, names[name])) is not None]
        if len(given) != 1:
            raise GatewayFault.invalid(f"{where} must be an object with one of: {', '.join(names)}", param=where)
        return given[0]


class ConverseText(Struct):
    text: str


class ConverseToolUse(Struct, rename="camel"):
    tool_use_id: Name
    name: Name
    input: dict[str, Any] | None = None
    type: Any = None


class ConverseToolResult(Struct, rename="camel"):
    tool_use_id: Name
    content: list[Annotated[ConverseBlock, _ONE]]


class ConverseReasoning(Union):
    reasoning_text: ConverseText | None = None
    redacted_content: Any = None


class GuardContent(Union):
    text: ConverseText | None = None
    image: Any = None


class ConverseBlock(Union):
    text: str | None = None
    guard_content: Annotated[GuardContent, _ONE] | None = None
    cache_point: Any = None
    tool_use: ConverseToolUse | None = None
    tool_result: ConverseToolResult | None = None
    reasoning_content: Annotated[ConverseReasoning, _ONE] | None = None
    json: Any = None
    image: Any = None
    document: Any = None
    video: Any = None
    audio: Any = None


class ConverseMessage(Struct):
    role: Annotated[str, Meta(pattern="^(user|assistant|system)$")]
    content: list[Annotated[ConverseBlock, _ONE]]


class ConverseSampling(Struct, rename="camel"):
    max_tokens: PositiveCount | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    stop_sequences: StopStrings | None = None


class ToolSpec(Struct, rename="camel"):
    name: Name
    description: str | None = None
    input_schema: dict[str, dict[str, Any] | None] | None = None


class ConverseTool(Union):
    tool_spec: ToolSpec | None = None
    system_tool: dict[str, Any] | None = None
    cache_point: Any = None


class ConverseToolChoice(Union):
    auto: Any = None
    any: Any = None
    tool: dict[str, Any] | None = None


class ToolConfig(Struct, rename="camel"):
    tools: list[Annotated[ConverseTool, _ONE]] | None = None
    tool_choice: Annotated[ConverseToolChoice, _ONE] | None = None


class ConverseRequest(Struct, rename="camel", kw_only=True):
    """A request to `converse` or `converse-stream`."""

    messages: Annotated[list[ConverseMessage], Meta(min_length=1)]
    system: list[Annotated[ConverseBlock, _ONE]] | None = None
    inference_config: ConverseSampling | None = None
    tool_config: ToolConfig | None = None
    additional_model_request_fields: dict[str, Any] | None = None
    additional_model_response_field_paths: list[str] | None = None
    output_config: dict[str, Any] | None = None
    guardrail_config: Any = None


def read_converse(request: ConverseRequest, model: str | None) -> ChatCall:
    if request.guardrail_config:
        raise GatewayFault.invalid(
            "guardrailConfig is not supported: the gateway applies no guardrails", param="guardrailConfig"
        )
    tools = _read_tools(request.tool_config or ToolConfig())
    return ChatCall(
        messages=read_messages(request.messages, request.system),
        **tools.fields(),
        tool_choice=_read_tool_choice(request.tool_config, tools),
        sampling=_read_sampling(request),
        model=model,
        template=_read_template(request.additional_model_request_fields or {}),
    )


def read_messages(messages: list[ConverseMessage], system: list[ConverseBlock] | None = None) -> list[Message]:
    """Messages in canonical form: each tool result is one, before the text that came with it."""
    read: list[Message] = []
    parts = [part for _, part in _read_blocks(system or [], "system", "system")]
    if parts:
        read.append({"role": "system", **content_fields(parts)})
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        read += _read_message(
            message.role, list(_read_blocks(message.content, f"{where}.content", message.role)), where
        )
    return without_prefill(with_user_turn(read))


def _read_message(role: str, blocks: list[tuple[str, Any]], where: str) -> list[Message]:
    content = content_fields(value for kind, value in blocks if kind == "text")
    if role == "assistant":
        calls = [_read_call(value, where) for kind, value in blocks if kind == "toolUse"]
        thoughts = [value.member(where) for kind, value in blocks if kind == "reasoningContent"]
        reasoning = "".join(value.text for kind, value in thoughts if kind == "reasoningText")
        return [assistant_message(content, calls, reasoning)]
    results = [_read_result(value, where) for kind, value in blocks if kind == "toolResult"]
    return [*results, {"role": role, **content}] if content["content"] or not results else results


def _read_blocks(content: list[ConverseBlock], where: str, holder: str) -> Iterator[tuple[str, Any]]:
    """The kind and value of each block; a text in any form, and the placeholder of an image, is `text`."""
    for place, block in enumerate(content):
        here = f"{where}[{place}]"
        kind, value = block.member(here)
        if kind == "guardContent":
            kind, value = value.member(here)
            value = value.text if kind == "text" else value
        if kind == "cachePoint":
            continue
        if kind in _MEDIA:
            yield "text", Omitted(kind, _image_bytes(value))
        elif kind == "text" or kind in _ALLOWED[holder]:
            yield kind, value
        else:
            raise GatewayFault.invalid(f"{here} has a {kind}, which is not allowed there", param=here)


def _image_bytes(value: Any) -> Any:
    source = value.get("source") if isinstance(value, dict) else None
    return source.get("bytes") if isinstance(source, dict) else None


def _read_result(result: ConverseToolResult, where: str) -> Message:
    blocks = _read_blocks(result.content, f"{where}.toolResult.content", "toolResult")
    parts: list[Part] = [value if kind == "text" else dump(value).decode() for kind, value in blocks]
    return {"role": "tool", **content_fields(parts), "tool_call_id": result.tool_use_id}


def _read_call(call: ConverseToolUse, where: str) -> dict[str, Any]:
    if call.type is not None:
        raise GatewayFault.invalid(
            f"{where}.toolUse.type is set: the gateway can't run tools of AWS's servers", param=where
        )
    return function_call(call.tool_use_id, call.name, call_arguments(call.input or {}))


def _read_tools(config: ToolConfig) -> OfferedTools:
    tools = OfferedTools()
    for place, tool in enumerate(config.tools or ()):
        kind, value = tool.member(f"toolConfig.tools[{place}]")
        if kind == "toolSpec":
            schema = (value.input_schema or {}).get("json")
            tools.shown.append(function_tool(value.name, value.description, schema))
        elif kind == "systemTool":
            tools.omitted.append(str(value.get("name") or kind)[:80])
    return tools


def _read_tool_choice(config: ToolConfig | None, tools: OfferedTools) -> str:
    if config is None or config.tool_choice is None:
        return "auto"
    where = "toolConfig.toolChoice"
    kind, value = config.tool_choice.member(where)
    if kind == "any":
        return tools.require_any(where)
    return tools.require(value.get("name"), where) if kind == "tool" else "auto"


def _read_sampling(request: ConverseRequest) -> Sampling:
    """The settings of inferenceConfig, and others of `SamplingSettings` from additionalModelRequestFields."""
    given: dict[str, Any] = {}
    additional = request.additional_model_request_fields or {}
    for fields in (additional, additional.get("inferenceConfig")):  # Nova has its topK in the inner one
        named = {_ALIASES.get(name, name): value for name, value in fields.items()} if isinstance(fields, dict) else {}
        given |= {name: value for name, value in named.items() if name in SAMPLING and value is not None}
    settings = parse(given, SamplingSettings, "additionalModelRequestFields")
    for name, value in msgspec.structs.asdict(request.inference_config or ConverseSampling()).items():
        if value is not None:
            setattr(settings, _ALIASES.get(name, name), value)
    schema = _read_schema(request.output_config or {})
    if schema is not None:
        settings.response_format = json_format(schema)
    return to_sampling(settings)


def _read_schema(output: dict[str, Any]) -> dict[str, Any] | None:
    """The JSON schema of the reply, which comes as text."""
    wanted: Any = output.get("textFormat")
    if wanted is None:
        return None
    for name in ("structure", "jsonSchema", "schema"):
        wanted = wanted.get(name) if isinstance(wanted, dict) else None
    where = "outputConfig.textFormat.structure.jsonSchema.schema"
    if not isinstance(wanted, str):
        raise GatewayFault.invalid(f"{where} is {short(wanted)}; expected a JSON schema as text", param=where)
    try:
        return read_json(wanted.encode("utf-8", "surrogatepass"))
    except GatewayFault as fault:
        raise GatewayFault.invalid(f"{where} is not valid: {fault.message}", param=where) from None


def _read_template(additional: dict[str, Any]) -> dict[str, Any]:
    for name in ("thinking", "reasoning_config", "reasoningConfig"):
        config = additional.get(name)
        kind = config.get("type") if isinstance(config, dict) else None
        if kind in ("enabled", "adaptive", "disabled"):
            return {"enable_thinking": kind != "disabled"}
    return {}
