"""Requests to Bedrock's Converse: content blocks, tools and settings as canonical calls. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....engine.base import Sampling
from ....errors import GatewayFault
from ...call.chat import ChatCall, Message
from ..base import any_tool, call_arguments, chosen_tool, function_tool, with_user_turn, without_prefill
from ..fields import short
from ..json_body import dump, read_json
from ..omitted import Omitted, content_fields
from ..openai.sampling import SAMPLING, read_sampling

_INFERENCE = {"maxTokens": "max_tokens", "temperature": "temperature", "topP": "top_p", "stopSequences": "stop"}
_ADDITIONAL = {"topK": "top_k", "stop_sequences": "stop", **{name: name for name in SAMPLING}}
_THINKING = {"enabled": True, "adaptive": True, "disabled": False}

_BLOCKS = {"user": {"toolResult"}, "assistant": {"toolUse", "reasoningContent"}, "system": set[str]()}
"""What a message of each role may hold besides text."""
_MEDIA = {"image", "document", "video", "audio"}


def read_converse(body: dict[str, Any], model: str | None) -> ChatCall:
    """A request to either operation."""
    if body.get("guardrailConfig"):
        raise GatewayFault.invalid(
            "guardrailConfig names a guardrail, and none is applied here", param="guardrailConfig"
        )
    additional = _object(body, "additionalModelRequestFields")
    tools, omitted, choice = _tool_config(_object(body, "toolConfig"))
    return ChatCall(
        messages=read_messages(body.get("messages"), body.get("system")),
        tools=tools,
        omitted=tuple(omitted),
        tool_choice=choice,
        sampling=_sampling(_object(body, "inferenceConfig"), additional, _object(body, "outputConfig")),
        model=model,
        template=_template(additional),
    )


def read_messages(messages: Any, system: Any = None) -> list[Message]:
    """Messages in canonical form: tool results come one by one, before the text that they were sent with."""
    if not isinstance(messages, list) or not messages:
        raise GatewayFault.invalid("messages is not a list with at least one message", param="messages")
    read: list[Message] = []
    if system is not None:
        parts = [part for _, part in _blocks(system, "system", set())]
        read += [{"role": "system", **content_fields(parts)}] if parts else []
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in _BLOCKS:
            raise GatewayFault.invalid(
                f"{where}.role is {short(role)}; expected one of {', '.join(_BLOCKS)}", param=where
            )
        read += _message(role, list(_blocks(message.get("content"), f"{where}.content", _BLOCKS[role])), where)
    return without_prefill(with_user_turn(read))


def _message(role: str, blocks: list[tuple[str, Any]], where: str) -> list[Message]:
    results = [_result(value, where) for kind, value in blocks if kind == "toolResult"]
    read: Message = {"role": role, **content_fields(value for kind, value in blocks if kind == "text")}
    if results and not read["content"]:
        return results
    calls = [_call(value, where) for kind, value in blocks if kind == "toolUse"]
    reasoning = "".join(_reasoning(value, where) for kind, value in blocks if kind == "reasoningContent")
    if calls:
        read["tool_calls"] = calls
    if reasoning:
        read["reasoning_content"] = reasoning
    return [*results, read]


def _blocks(content: Any, where: str, allowed: set[str]) -> Iterator[tuple[str, Any]]:
    """The kind and value of each block; what is text in any form is `text`, and so is the placeholder of an image."""
    if not isinstance(content, list):
        raise GatewayFault.invalid(f"{where} is not a list of blocks", param=where)
    for place, block in enumerate(content):
        here = f"{where}[{place}]"
        kind, value = _member(block, here)
        if kind == "guardContent":
            kind, value = _member(value, here)
            value = value.get("text") if kind == "text" and isinstance(value, dict) else value
        if kind == "cachePoint":
            continue
        if kind in _MEDIA:
            yield "text", Omitted(kind)
            continue
        if kind != "text" and kind not in allowed:
            raise GatewayFault.invalid(f"{here} is of type {kind[:80]!r}, which has no place there", param=here)
        if kind == "text" and not isinstance(value, str):
            raise GatewayFault.invalid(f"{here}.text is {short(value)}, not a text", param=here)
        yield kind, value


def _member(union: Any, where: str) -> tuple[str, Any]:
    """The one member that is set."""
    given = [(kind, value) for kind, value in union.items() if value is not None] if isinstance(union, dict) else []
    if len(given) != 1:
        raise GatewayFault.invalid(f"{where} is {short(union)}, not an object with one member", param=where)
    return given[0]


def _result(result: Any, where: str) -> Message:
    where = f"{where}.toolResult"
    known = _struct(result, where)
    blocks = _blocks(known.get("content"), f"{where}.content", {"json"})
    parts = [value if kind == "text" else dump(value).decode() for kind, value in blocks]
    return {"role": "tool", **content_fields(parts), "tool_call_id": _name(known, "toolUseId", where)}


def _call(call: Any, where: str) -> dict[str, Any]:
    where = f"{where}.toolUse"
    known = _struct(call, where)
    if known.get("type") is not None:
        raise GatewayFault.invalid(
            f"{where}.type is {short(known['type'])}: tools run by the server are not served", param=where
        )
    given = known.get("input")
    if given is not None and not isinstance(given, dict):
        raise GatewayFault.invalid(f"{where}.input is {short(given)}, not an object", param=where)
    function = {"name": _name(known, "name", where), "arguments": call_arguments(given or {})}
    return {"id": _name(known, "toolUseId", where), "type": "function", "function": function}


def _reasoning(block: Any, where: str) -> str:
    where = f"{where}.reasoningContent"
    kind, value = _member(block, where)
    if kind != "reasoningText":  # encrypted by another model: nothing to read
        return ""
    text = _struct(value, where).get("text")
    if not isinstance(text, str):
        raise GatewayFault.invalid(f"{where}.reasoningText.text is {short(text)}, not a text", param=where)
    return text


def _tool_config(config: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str], str]:
    """The tools, the kinds of those that AWS's servers run, and which may be called."""
    given = config.get("tools")
    if not isinstance(given or [], list):
        raise GatewayFault.invalid("toolConfig.tools is not a list", param="toolConfig.tools")
    tools, omitted = [], []
    for place, tool in enumerate(given or []):
        where = f"toolConfig.tools[{place}]"
        kind, value = _member(tool, where)
        if kind == "toolSpec":
            spec = _struct(value, f"{where}.toolSpec")
            schema = _object(spec, "inputSchema").get("json")
            tools.append(function_tool(spec.get("name"), spec.get("description"), schema, where))
        elif kind == "systemTool":
            omitted.append(str(_struct(value, where).get("name") or kind)[:80])
        elif kind != "cachePoint":
            raise GatewayFault.invalid(
                f"{where} is of type {kind[:80]!r}; only tools with a toolSpec are served", param=where
            )
    return tools, omitted, _tool_choice(config.get("toolChoice"), tools, omitted)


def _tool_choice(choice: Any, tools: list[dict[str, Any]], omitted: list[str]) -> str:
    """What may be called. A tool that is left out can't be asked for, and nothing is forced."""
    where = "toolConfig.toolChoice"
    if choice is None:
        return "auto"
    kind, value = _member(choice, where)
    if kind == "any":
        return any_tool(tools, param=where) if tools or not omitted else "auto"
    if kind == "tool":
        name = _struct(value, where).get("name")
        return chosen_tool(name, tools, param=where) if name not in omitted else "auto"
    if kind != "auto":
        raise GatewayFault.invalid(f"{where} is {kind[:80]!r}; expected one of auto, any, tool", param=where)
    return "auto"


def _sampling(inference: dict[str, Any], additional: dict[str, Any], output: dict[str, Any]) -> Sampling:
    """The settings under the names that `read_sampling` knows, and its refusals under those that the client used."""
    given: dict[str, tuple[str, Any]] = {}
    nested = additional.get("inferenceConfig")  # where Nova has its topK
    for fields, names in ((additional, _ADDITIONAL), (nested, _ADDITIONAL), (inference, _INFERENCE)):
        if isinstance(fields, dict):
            given |= {names[own]: (own, value) for own, value in fields.items() if own in names and value is not None}
    schema = _output_schema(output)
    if schema is not None:
        wanted = {"type": "json_schema", "json_schema": {"schema": schema}}
        given["response_format"] = ("response_format", wanted)
    try:
        return read_sampling({name: value for name, (_, value) in given.items()})
    except GatewayFault as fault:
        name = fault.param or ""
        own = given[name][0] if name in given else name
        raise GatewayFault.invalid(fault.message.replace(name, own, 1), param=own) from None


def _output_schema(output: dict[str, Any]) -> dict[str, Any] | None:
    if output.get("textFormat") is None:
        return None
    where = "outputConfig.textFormat"
    kind, described = _member(_struct(output["textFormat"], where).get("structure"), f"{where}.structure")
    schema = described.get("schema") if kind == "jsonSchema" and isinstance(described, dict) else None
    if isinstance(schema, str):
        try:
            return read_json(schema.encode("utf-8", "surrogatepass"))
        except GatewayFault as fault:
            raise GatewayFault.invalid(f"{where}'s schema is no JSON schema: {fault.message}", param=where) from None
    raise GatewayFault.invalid(f"{where} has no jsonSchema with a schema in JSON", param=where)


def _template(additional: dict[str, Any]) -> dict[str, Any]:
    for name in ("thinking", "reasoning_config", "reasoningConfig"):
        config = additional.get(name)
        kind = config.get("type") if isinstance(config, dict) else None
        if isinstance(kind, str) and kind in _THINKING:
            return {"enable_thinking": _THINKING[kind]}
    return {}


def _object(body: dict[str, Any], name: str) -> dict[str, Any]:
    """An object within an object; not given is empty."""
    return _struct(body[name], name) if body.get(name) is not None else {}


def _struct(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise GatewayFault.invalid(f"{where} is {short(value)}, not an object", param=where)
    return value


def _name(known: dict[str, Any], name: str, where: str) -> str:
    value = known.get(name)
    if not isinstance(value, str) or not value:
        raise GatewayFault.invalid(f"{where} has no {name}", param=where)
    return value
