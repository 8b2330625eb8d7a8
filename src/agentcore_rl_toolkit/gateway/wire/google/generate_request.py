"""Requests to Google's generateContent and countTokens: tools and settings as canonical calls. Pure."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from ....errors import GatewayFault
from ...call.chat import ChatCall
from ..content import without_prefill
from ..fields import (
    INT32_MAX,
    Choices,
    Name,
    Penalty,
    PositiveCount,
    Probability,
    Seed,
    StopStrings,
    Temperature,
    TopK,
    TopLogprobs,
    parse,
)
from ..openai.sampling import ResponseFormat, SamplingSettings, json_format, to_sampling
from ..tools import OfferedTools, function_tool
from .contents import GoogleContent, read_contents
from .google_types import in_camel_case, json_schema


class FunctionDeclaration(Struct, rename="camel"):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class GoogleTool(Struct, rename="camel"):
    function_declarations: list[FunctionDeclaration] | None = None


_MODES = "^(AUTO|ANY|NONE|VALIDATED|MODE_UNSPECIFIED|auto|any|none|validated|)$"


class CallingConfig(Struct, rename="camel"):
    mode: Annotated[str, Meta(pattern=_MODES)] | None = None
    allowed_function_names: list[Any] | None = None


class GoogleToolConfig(Struct, rename="camel"):
    function_calling_config: CallingConfig | None = None


class ThinkingConfig(Struct, rename="camel"):
    include_thoughts: Any = None
    thinking_budget: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    thinking_level: str | None = None


class GenerationConfig(Struct, rename="camel"):
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    max_output_tokens: PositiveCount | None = None
    stop_sequences: StopStrings | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    candidate_count: Choices | None = None
    response_mime_type: Annotated[str, Meta(pattern="^(text/plain|application/json|text/x.enum|)$")] | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    response_logprobs: bool | None = None
    logprobs: TopLogprobs | None = None
    thinking_config: ThinkingConfig | None = None


class GenerateRequest(Struct, rename="camel"):
    """A request to `generateContent` or `streamGenerateContent`."""

    contents: Annotated[list[GoogleContent], Meta(min_length=1)]
    system_instruction: str | GoogleContent | None = None
    tools: list[dict[str, Any]] | None = None
    tool_config: GoogleToolConfig | None = None
    generation_config: GenerationConfig | None = None
    cached_content: Any = None


class GoogleCountRequest(Struct, rename="camel"):
    """A request to `countTokens`: contents alone, or a whole request to `generateContent`."""

    contents: list[GoogleContent] | None = None
    generate_content_request: dict[str, Any] | None = None


def parse_generate(body: dict[str, Any]) -> GenerateRequest:
    """A request's body, with names in either case."""
    body = in_camel_case(body)
    config = body.get("generationConfig")
    if isinstance(config, dict) and "_responseJsonSchema" in config:
        config.setdefault("responseJsonSchema", config["_responseJsonSchema"])
    return parse(body, GenerateRequest)


def read_generate(request: GenerateRequest, model: str | None) -> ChatCall:
    call = read_prompt(request, model)
    without_prefill(list(call.messages))
    return call


def read_count(body: dict[str, Any], model: str | None) -> ChatCall:
    request = parse(in_camel_case(body), GoogleCountRequest)
    return read_prompt(parse_generate(request.generate_content_request or body), model)


def read_prompt(request: GenerateRequest, model: str | None) -> ChatCall:
    """The call of a request, which may still end with the model's contents."""
    if request.cached_content:
        raise GatewayFault.invalid(
            "cachedContent is not supported: the gateway stores no caches; send the contents", param="cachedContent"
        )
    config = request.generation_config or GenerationConfig()
    tools = _read_tools(request.tools or [])
    calling = request.tool_config.function_calling_config if request.tool_config is not None else None
    return ChatCall(
        messages=read_contents(request.contents, request.system_instruction),
        **tools.fields(),
        tool_choice=_read_tool_choice(calling or CallingConfig(), tools),
        sampling=to_sampling(_read_settings(config), (config.logprobs or 0) if config.response_logprobs else 0),
        n=config.candidate_count or 1,
        model=model,
        logprobs=bool(config.response_logprobs),
        template=_read_template(config.thinking_config or ThinkingConfig()),
    )


def _read_tools(given: list[dict[str, Any]]) -> OfferedTools:
    """The functions; tools under other names run on Google's servers and are left out."""
    tools = OfferedTools()
    for place, tool in enumerate(given):
        for declared in parse(tool, GoogleTool, f"tools[{place}]").function_declarations or ():
            schema = declared.parameters_json_schema
            if schema is None:
                schema = json_schema(declared.parameters)
            tools.shown.append(function_tool(declared.name, declared.description, schema))
        tools.omitted += [name[:80] for name in tool if name != "functionDeclarations"]
    return tools


def _read_tool_choice(config: CallingConfig, tools: OfferedTools) -> str:
    where, mode = "toolConfig.functionCallingConfig", (config.mode or "AUTO").upper()
    if mode == "NONE":
        return "none"
    if config.allowed_function_names:
        return tools.allow(config.allowed_function_names, required=mode == "ANY", param=where)
    return tools.require_any(where) if mode == "ANY" else "auto"


def _read_settings(config: GenerationConfig) -> SamplingSettings:
    return SamplingSettings(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_tokens=config.max_output_tokens,
        stop=config.stop_sequences,
        seed=config.seed,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        response_format=_read_format(config),
    )


def _read_format(config: GenerationConfig) -> ResponseFormat | None:
    schema = config.response_json_schema or json_schema(config.response_schema)
    if schema is None:
        return ResponseFormat("json_object") if config.response_mime_type == "application/json" else None
    if config.response_mime_type == "text/x.enum":
        where = "generationConfig.responseMimeType"
        raise GatewayFault.invalid(
            f"{where} is 'text/x.enum', which is not supported; send application/json with the same schema", param=where
        )
    return json_format(schema)


def _read_template(thinking: ThinkingConfig) -> dict[str, Any]:
    """Whether to think: not with a budget of 0 or at the lowest level. Without either, the template decides."""
    if thinking.thinking_budget is not None:
        return {"enable_thinking": thinking.thinking_budget != 0}
    if thinking.thinking_level:
        return {"enable_thinking": thinking.thinking_level.upper() != "MINIMAL"}
    return {}
