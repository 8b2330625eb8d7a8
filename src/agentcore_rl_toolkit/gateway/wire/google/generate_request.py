"""Requests to Google's generateContent and countTokens: tools and settings as canonical calls. Pure.

Google's servers read the names of fields in camel case and in snake case, and so does this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....engine.base import Sampling
from ....errors import GatewayFault
from ...call.chat import ChatCall
from ..base import any_tool, function_tool, without_prefill
from ..fields import flag, short, whole
from ..openai.chat_completions import MOST_CHOICES, allowed_tools
from ..openai.sampling import read_sampling
from .contents import read_contents
from .google_types import json_schema, members, names_in_camel_case

_SETTINGS = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
"""Google's sampling settings, and the names that `read_sampling` knows them by."""


def read_generate(body: dict[str, Any], model: str | None) -> ChatCall:
    """A request to `generateContent` or `streamGenerateContent`."""
    call = read_counted(body, model)
    without_prefill(list(call.messages))
    return call


def read_counted(body: dict[str, Any], model: str | None) -> ChatCall:
    """A request to `countTokens`, which has contents alone or all of a request to `generateContent`."""
    body = names_in_camel_case(body)
    if body.get("generateContentRequest") is not None:
        body = members(body, "generateContentRequest")
    if body.get("cachedContent"):
        raise GatewayFault.invalid(
            "cachedContent names a cache, and none is kept here: send its contents", param="cachedContent"
        )
    config = members(body, "generationConfig")
    tools, omitted = _tools(body.get("tools"))
    logprobs = flag(config, "responseLogprobs")
    return ChatCall(
        messages=read_contents(body.get("contents"), body.get("systemInstruction")),
        tools=tools,
        omitted=tuple(omitted),
        tool_choice=_tool_choice(members(members(body, "toolConfig"), "functionCallingConfig"), tools, omitted),
        sampling=_sampling(config, whole(config, "logprobs", 0, 0, 20) if logprobs else 0),
        n=whole(config, "candidateCount", 1, 1, MOST_CHOICES),
        model=model,
        logprobs=logprobs,
        template=_template(members(config, "thinkingConfig")),
    )


# Tools


def _tools(tools: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The functions, and the names of tools that Google's servers run."""
    if tools is None:
        return [], []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise GatewayFault.invalid("tools is not a list of objects", param="tools")
    read: list[dict[str, Any]] = []
    omitted: list[str] = []
    for place, tool in enumerate(map(names_in_camel_case, tools)):
        declared = tool.pop("functionDeclarations", [])
        where = f"tools[{place}].functionDeclarations"
        if not isinstance(declared, list) or not all(isinstance(function, dict) for function in declared):
            raise GatewayFault.invalid(f"{where} is not a list of objects", param=where)
        read += [_function(names_in_camel_case(function), where) for function in declared]
        omitted += [name[:80] for name in tool]
    return read, omitted


def _function(declared: dict[str, Any], where: str) -> dict[str, Any]:
    schema = declared.get("parametersJsonSchema")
    if schema is None:
        schema = json_schema(declared.get("parameters"))
    return function_tool(declared.get("name"), declared.get("description"), schema, where)


def _tool_choice(config: dict[str, Any], tools: Sequence[dict[str, Any]], omitted: Sequence[str]) -> str:
    where = "toolConfig.functionCallingConfig"
    mode, names = config.get("mode") or "AUTO", config.get("allowedFunctionNames") or []
    if not isinstance(mode, str) or not isinstance(names, list):
        raise GatewayFault.invalid(f"{where} is {short(config)}; it has a mode and allowedFunctionNames", param=where)
    mode = mode.upper()
    if mode == "NONE":
        return "none"
    if mode not in ("AUTO", "ANY", "VALIDATED", "MODE_UNSPECIFIED"):
        raise GatewayFault.invalid(f"{where}.mode is {short(mode)}; expected AUTO, ANY, NONE or VALIDATED", param=where)
    if omitted and not tools:
        return "auto"
    if names:
        return allowed_tools(names, tools, required=mode == "ANY", param=where)
    return any_tool(tools, param=where) if mode == "ANY" else "auto"


# Settings


def _sampling(config: dict[str, Any], top_logprobs: int) -> Sampling:
    """The settings under the names that `read_sampling` knows, and its refusals under Google's."""
    given = {name: config[own] for own, name in _SETTINGS.items() if config.get(own) is not None}
    wanted = _format(config)
    if wanted is not None:
        given["response_format"] = wanted
    try:
        return read_sampling(given, top_logprobs=top_logprobs)
    except GatewayFault as fault:
        name = fault.param or ""
        own = next((own for own, known in _SETTINGS.items() if known == name), name)
        raise GatewayFault.invalid(fault.message.replace(name, own, 1), param=f"generationConfig.{own}") from None


def _format(config: dict[str, Any]) -> dict[str, Any] | None:
    """The wanted form of the reply, as OpenAI's `response_format`."""
    where = "generationConfig.responseMimeType"
    kind = config.get("responseMimeType") or "text/plain"
    if kind not in ("text/plain", "application/json", "text/x.enum"):
        raise GatewayFault.invalid(f"{where} is {short(kind)}; expected text/plain or application/json", param=where)
    schema = config.get("responseJsonSchema") or config.get("_responseJsonSchema")
    if schema is None:
        schema = json_schema(config.get("responseSchema"))
    if schema is None:
        return {"type": "json_object"} if kind == "application/json" else None
    if not isinstance(schema, dict):
        raise GatewayFault.invalid(
            f"the schema of the response is {short(schema)}, not an object", param="generationConfig"
        )
    if kind == "text/x.enum":
        raise GatewayFault.invalid(f"{where} is {kind!r}: ask for application/json with the same schema", param=where)
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _template(thinking: dict[str, Any]) -> dict[str, Any]:
    """Whether to think: not with a budget of 0, or at the lowest level. The template decides where neither is given."""
    budget, level = thinking.get("thinkingBudget"), thinking.get("thinkingLevel")
    if budget is not None:
        return {"enable_thinking": whole(thinking, "thinkingBudget", 0, -1, 2**31 - 1) != 0}
    if isinstance(level, str) and level:
        return {"enable_thinking": level.upper() != "MINIMAL"}
    return {}
