"""Bedrock's Converse for the gateway's description: as much of botocore's service model as is served here."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def _union(**members: Schema) -> Schema:
    """An object with exactly one of its members."""
    return {"type": "object", "properties": members, "minProperties": 1, "maxProperties": 1}


def _struct(*required: str, **members: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": members}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


_TEXT: Schema = {"type": "string"}
_NAME: Schema = {"type": "string", "minLength": 1}
_OBJECT: Schema = {"type": "object"}
_CACHE_POINT = _struct("type", type={"const": "default"})
_GUARDED = _union(text=_struct("text", text=_TEXT))
_RESULT = _struct("toolUseId", "content", toolUseId=_NAME, content=_list(_union(text=_TEXT, json={})))
_CALL = _struct("toolUseId", "name", "input", toolUseId=_NAME, name=_NAME, input=_OBJECT)
_REASONING = _union(reasoningText=_struct("text", text=_TEXT, signature=_TEXT), redactedContent=_TEXT)
_BLOCK = _union(
    text=_TEXT,
    guardContent=_GUARDED,
    cachePoint=_CACHE_POINT,
    toolUse=_CALL,
    toolResult=_RESULT,
    reasoningContent=_REASONING,
)
_TOOL = _struct("name", "inputSchema", name=_NAME, description=_TEXT, inputSchema=_union(json=_OBJECT))
_FORMAT = _struct("type", "structure", type=_TEXT, structure=_union(jsonSchema=_struct("schema", schema=_TEXT)))

REQUEST = _struct(
    "messages",
    messages=_list(_struct("role", "content", role={"enum": ["user", "assistant", "system"]}, content=_list(_BLOCK)))
    | {"minItems": 1},
    system=_list(_union(text=_TEXT, guardContent=_GUARDED, cachePoint=_CACHE_POINT)),
    inferenceConfig=_struct(
        maxTokens={"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
        temperature={"type": "number", "minimum": 0, "maximum": 100},
        topP={"type": "number", "minimum": 0, "maximum": 1},
        stopSequences=_list(_TEXT) | {"maxItems": 16},
    ),
    toolConfig=_struct(
        "tools",
        tools=_list(_union(toolSpec=_TOOL, cachePoint=_CACHE_POINT)),
        toolChoice=_union(auto=_OBJECT, any=_OBJECT, tool=_struct("name", name=_NAME)),
    ),
    additionalModelRequestFields=_OBJECT,
    additionalModelResponseFieldPaths=_list(_TEXT),
    outputConfig=_struct(textFormat=_FORMAT),
)

_COUNT: Schema = {"type": "integer", "minimum": 0}
ANSWER = _struct(
    "output",
    "stopReason",
    "usage",
    "metrics",
    output=_union(message=_struct("role", "content", role={"const": "assistant"}, content=_list(_BLOCK))),
    stopReason={"enum": ["end_turn", "tool_use", "max_tokens", "stop_sequence"]},
    usage=_struct(
        "inputTokens", "outputTokens", "totalTokens", inputTokens=_COUNT, outputTokens=_COUNT, totalTokens=_COUNT
    ),
    metrics=_struct("latencyMs", latencyMs=_COUNT),
)
ERROR = _struct("message", message=_TEXT)
