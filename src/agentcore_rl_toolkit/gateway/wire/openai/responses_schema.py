"""OpenAI's Responses as JSON schemas: what the gateway's description says of them."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_ROLES = ["user", "assistant", "system", "developer"]
_PARTS: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"enum": ["input_text", "output_text"]}, "text": _TEXT},
    },
}


def _item(kind: str, **fields: Schema) -> Schema:
    return {"type": "object", "required": ["type", *fields], "properties": {"type": {"const": kind}, **fields}}


_ITEM: Schema = {
    "anyOf": [
        _item("message", role={"enum": _ROLES}, content={"anyOf": [_TEXT, _PARTS]}),
        _item("function_call", call_id=_TEXT, name=_TEXT, arguments=_TEXT),
        _item("function_call_output", call_id=_TEXT, output={"anyOf": [_TEXT, _PARTS]}),
        _item("reasoning", summary={"type": "array"}),
        _item("item_reference", id=_TEXT),
    ]
}
REQUEST: Schema = {
    "type": "object",
    "properties": {
        "model": _TEXT,
        "input": {"anyOf": [_TEXT, {"type": "array", "items": _ITEM}]},
        "instructions": {"type": ["string", "null"]},
        "previous_response_id": {"type": ["string", "null"]},
        "tools": {
            "type": "array",
            "items": _item("function", name=_TEXT, parameters={"type": ["object", "null"]}),
        },
        "tool_choice": {},
        "text": {"type": "object", "properties": {"format": {"type": "object"}}},
        "max_output_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 2**31 - 1},
        "temperature": {"type": "number", "minimum": 0, "maximum": 100},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "include": {"type": "array", "items": _TEXT},
        "reasoning": {"type": "object"},
        "metadata": {"type": "object"},
        "parallel_tool_calls": {"type": "boolean"},
        "store": {"type": "boolean"},
        "stream": {"type": "boolean"},
    },
}
ANSWER: Schema = {
    "type": "object",
    "required": ["id", "object", "created_at", "model", "status", "output", "usage", "tools", "tool_choice"],
    "properties": {
        "object": {"const": "response"},
        "status": {"enum": ["completed", "incomplete"]},
        "output": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["id", "type"]}},
        "usage": {"type": "object", "required": ["input_tokens", "output_tokens", "total_tokens"]},
    },
}
