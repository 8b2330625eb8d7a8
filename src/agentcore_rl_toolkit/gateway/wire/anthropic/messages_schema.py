"""What goes over Anthropic's wire, as JSON schemas."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
ERROR: Schema = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message", "details"],
            "properties": {"type": _TEXT, "message": _TEXT, "details": _OBJECT},
        },
        "request_id": _TEXT,
    },
}
_BLOCKS: Schema = {
    "anyOf": [
        _TEXT,
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type"],
                "properties": {
                    "type": {"enum": ["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]},
                    "text": _TEXT,
                    "thinking": _TEXT,
                    "id": _TEXT,
                    "name": _TEXT,
                    "input": _OBJECT,
                    "tool_use_id": _TEXT,
                    "content": {},
                },
            },
        },
    ]
}
COUNTED: Schema = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "model": _TEXT,
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["role", "content"],
                "properties": {"role": {"enum": ["user", "assistant"]}, "content": _BLOCKS},
            },
        },
        "system": _BLOCKS,
        "tools": {"type": "array", "items": _OBJECT},
        "tool_choice": {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"enum": ["auto", "any", "tool", "none"]}, "name": _TEXT},
        },
        "thinking": {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"enum": ["enabled", "disabled", "adaptive", "between_tools"]}},
        },
    },
}
CALL: Schema = {
    "type": "object",
    "required": ["messages", "max_tokens"],
    "properties": {
        **COUNTED["properties"],
        "stop_sequences": {"type": "array", "items": _TEXT, "maxItems": 16},
        "stream": {"type": "boolean"},
        "output_config": _OBJECT,
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
        "temperature": {"type": "number", "minimum": 0, "maximum": 100},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "top_k": {"type": "integer", "minimum": -1, "maximum": 2**31 - 1},
    },
}
SAID: Schema = {
    "type": "object",
    "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
    "properties": {
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "content": {"type": "array", "minItems": 1},
        "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        "usage": _OBJECT,
    },
}
COUNT: Schema = {
    "type": "object",
    "required": ["input_tokens"],
    "properties": {"input_tokens": {"type": "integer", "minimum": 1}},
}
