"""The gateway's HTTP, described: what `GET /openapi.json` answers, and what the tests generate requests from."""

from __future__ import annotations

from functools import cache
from typing import Any

from ... import __version__
from ..call.side_calls import RULES
from ..call.unbridged import MEANINGS
from ..wire.anthropic import messages_schema as anthropic_schema
from ..wire.openai import responses_schema
from .operations import ERROR, MODEL, SESSION_AND_KEY, model_paths, operation

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_ID: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_~:@=-]{1,128}$"}
_OBJECT: Schema = {"type": "object"}
_IDS: Schema = {"type": "array", "items": {"type": "integer"}}
_NUMBERS: Schema = {"type": "array", "items": {"type": ["number", "null"]}}
_WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TEXTS: Schema = {"type": ["string", "array"], "items": _TEXT}
_SAMPLING: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "temperature": {"type": "number", "minimum": 0, "maximum": 100},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "top_k": _WHOLE | {"minimum": -1},
        "min_p": {"type": "number", "minimum": 0, "maximum": 1},
        "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
        "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
        "repetition_penalty": {"type": "number", "minimum": 0, "maximum": 100},
        "max_tokens": _WHOLE | {"minimum": 1},
        "max_completion_tokens": _WHOLE | {"minimum": 1},
        "min_tokens": _WHOLE,
        "seed": {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1},
        "stop": {"type": ["string", "array", "null"], "items": _TEXT, "maxItems": 16},
        "stop_token_ids": {"type": "array", "items": _WHOLE},
        "logit_bias": {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
        "ignore_eos": {"type": "boolean"},
        "response_format": {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}, "json_schema": _OBJECT},
        },
    },
}
_SETTINGS: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "session_id": _ID,
        "sampling": _SAMPLING,
        "enforced": _SAMPLING,
        "context_limit": {"type": "integer", "minimum": 1},
        "group_id": _TEXT,
        "input_id": _TEXT,
        "model": _TEXT,
        "metadata": _OBJECT,
        "ttl_seconds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e9},
        "mask_truncated": {"type": "boolean"},
        "side_calls": {"type": "object", "properties": dict.fromkeys(RULES, _TEXTS), "additionalProperties": False},
    },
}
_SESSION: Schema = {
    "type": "object",
    "required": [
        "session_id",
        "base_url",
        "anthropic_base_url",
        "bedrock_endpoint_url",
        "google_base_url",
        "result_url",
        "expires_at",
    ],
    "properties": {
        "session_id": _ID,
        "base_url": _TEXT,
        "anthropic_base_url": _TEXT,
        "bedrock_endpoint_url": _TEXT,
        "google_base_url": _TEXT,
        "result_url": _TEXT,
        "expires_at": {"type": "number"},
    },
}
_TURN: Schema = {
    "type": "object",
    "required": ["index", "parent", "new_prompt_ids", "sampled_ids", "logprobs", "finish", "origin", "masked"],
    "properties": {
        "index": {"type": "integer"},
        "parent": {"type": ["integer", "null"]},
        "new_prompt_ids": _IDS,
        "sampled_ids": _IDS,
        "logprobs": _NUMBERS,
        "finish": _TEXT,
        "origin": {"enum": ["first", "bridge", "render"]},
        "unbridged": {"enum": ["", *MEANINGS], "description": "why the prompt was rendered anew, if it was"},
        "masked": {"type": ["string", "null"]},
    },
}
_ROW: Schema = {
    "type": "object",
    "required": ["token_ids", "loss_mask", "logprobs", "weight", "prompt_length", "spans", "weight_versions"],
    "properties": {
        "token_ids": _IDS,
        "loss_mask": {"type": "array", "items": {"enum": [0, 1]}},
        "logprobs": _NUMBERS,
        "weight": {"type": "number"},
        "prompt_length": {"type": "integer"},
        "spans": {"type": "array"},
        "weight_versions": {"type": "array"},
    },
}
_FIDELITY: Schema = {
    "type": "object",
    "required": ["sampled", "trained", "masked", "rows", "turns", "bridges", "renders", "parse_failures", "tool_calls"],
    "properties": {
        "sampled": {"type": "integer"},
        "trained": {"type": "integer"},
        "masked": {"type": "object", "additionalProperties": {"type": "integer"}},
        "rows": {"type": "integer"},
        "unbridged": {"type": "object", "description": "prompts rendered anew, by reason: together they are `renders`"},
        "damaged": {"type": "boolean", "description": "turns could not be read from the log: these are not all"},
        "omitted": {"type": "object", "description": "images and server-side tools that the model was not shown"},
    },
}
_HEALTH: Schema = {
    "type": "object",
    "required": ["status", "sessions", "in_flight"],
    "properties": {
        "status": {
            "enum": ["ok", "paused", "degraded"],
            "description": "degraded: no replica of the engine is well, a worker is not there, or the log fails now",
        },
        "sessions": {"type": "integer"},
        "in_flight": {"type": "integer"},
        "replicas": {"type": "integer"},
        "replicas_well": {"type": "integer"},
        "log_error": {"type": ["string", "null"], "description": "what is wrong with the log's folder or disk now"},
        "log_failures": {"type": "integer", "description": "writes that the log's disk did not take since the start"},
        "log_damaged": {"type": "integer", "description": "places of the log that can't be read"},
    },
}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [
                _TEXT,
                {"type": "null"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": _TEXT},
                    },
                },
            ]
        },
        "tool_call_id": _TEXT,
    },
}
_CHAT: Schema = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "model": _TEXT,
        "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
        "tools": {"type": "array", "items": _OBJECT},
        "tool_choice": {},
        "n": {"type": "integer", "minimum": 1, "maximum": 128},
        "stream": {"type": "boolean"},
        "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
        "logprobs": {"type": "boolean"},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "chat_template_kwargs": _OBJECT,
        **_SAMPLING["properties"],
    },
}
_COMPLETION: Schema = {
    "type": "object",
    "required": ["prompt"],
    "properties": {
        "model": _TEXT,
        "prompt": {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}]},
        "n": {"type": "integer", "minimum": 1, "maximum": 128},
        "stream": {"type": "boolean"},
        "logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        **_SAMPLING["properties"],
    },
}
_CHOICES: Schema = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {"choices": {"type": "array", "minItems": 1}, "usage": _OBJECT},
}

_SESSION_ID: Schema = {"name": "session_id", "in": "path", "required": True, "schema": _TEXT}


@cache
def openapi() -> Schema:
    """The description, in OpenAPI 3.1."""
    agent, control = "/sessions/{session}", "/sessions/{session_id}"
    return {
        "openapi": "3.1.0",
        "info": {"title": "AgentCore RL Toolkit gateway", "version": __version__},
        "components": {
            "securitySchemes": {"admin": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": ERROR},
        },
        "paths": {
            "/health": {"get": operation("health", "How the gateway is", _HEALTH, admin=False)},
            "/metrics": {"get": operation("metrics", "Counters for Prometheus", None, kind="text/plain")},
            "/openapi.json": {"get": operation("openapi", "This description", _OBJECT, admin=False)},
            "/sessions": {
                "post": operation("openSession", "Open a session", _SESSION, body=_SETTINGS, status="201", needs=False)
            },
            control: {
                "parameters": [_SESSION_ID],
                "get": operation("describeSession", "A session's settings and state", _SESSION),
                "delete": operation("deleteSession", "Close a session and forget its turns", _OBJECT),
            },
            f"{control}/turns": {
                "parameters": [_SESSION_ID],
                "get": operation("readTurns", "What was sampled, call by call", _list("turns", _TURN), packed=True),
            },
            f"{control}/trajectories": {
                "parameters": [_SESSION_ID],
                "get": operation(
                    "readTrajectories", "Training rows", _list("rows", _ROW, fidelity=_FIDELITY), packed=True
                ),
            },
            f"{control}/result": {
                "parameters": [_SESSION_ID],
                "put": operation("putResult", "Attach the rollout's result", _OBJECT, body=_OBJECT),
            },
            f"{control}/close": {
                "parameters": [_SESSION_ID],
                "post": operation("closeSession", "Take no more calls; turns stay readable", _OBJECT),
            },
            "/pause": {"post": operation("pause", "Let no new call sample", _HEALTH)},
            "/resume": {"post": operation("resume", "Go on", _HEALTH)},
            "/drain": {"post": operation("drain", "Wait until nothing is being sampled", _HEALTH)},
            "/weights": {
                "put": operation(
                    "setWeightVersion",
                    "Name the weights that are sampled from now on",
                    _HEALTH,
                    body={
                        "type": "object",
                        "required": ["version"],
                        "properties": {"version": {"type": ["string", "integer"]}},
                    },
                )
            },
            f"{agent}/v1/chat/completions": {
                "parameters": [SESSION_AND_KEY],
                "post": operation("chat", "OpenAI chat completions", _CHOICES, body=_CHAT, admin=False, stream=True),
            },
            f"{agent}/v1/completions": {
                "parameters": [SESSION_AND_KEY],
                "post": operation(
                    "complete", "OpenAI completions", _CHOICES, body=_COMPLETION, admin=False, stream=True
                ),
            },
            f"{agent}/v1/responses": {
                "parameters": [SESSION_AND_KEY],
                "post": operation(
                    "respond",
                    "OpenAI responses",
                    responses_schema.ANSWER,
                    body=responses_schema.REQUEST,
                    admin=False,
                    stream=True,
                ),
            },
            f"{agent}/v1/messages": {
                "parameters": [SESSION_AND_KEY],
                "post": operation(
                    "message",
                    "Anthropic messages",
                    anthropic_schema.SAID,
                    body=anthropic_schema.CALL,
                    admin=False,
                    stream=True,
                    error=anthropic_schema.ERROR,
                ),
            },
            f"{agent}/v1/messages/count_tokens": {
                "parameters": [SESSION_AND_KEY],
                "post": operation(
                    "countTokens",
                    "How long a prompt would be",
                    anthropic_schema.COUNT,
                    body=anthropic_schema.COUNTED,
                    admin=False,
                    error=anthropic_schema.ERROR,
                ),
            },
            **model_paths(agent),
            f"{agent}/v1/models": {
                "parameters": [SESSION_AND_KEY],
                "get": operation("models", "The models there are", _OBJECT, admin=False),
            },
            f"{agent}/v1/models/{{model}}": {
                "parameters": [SESSION_AND_KEY, MODEL],
                "get": operation("model", "One of them", _OBJECT, admin=False),
            },
            f"{agent}/result": {
                "parameters": [SESSION_AND_KEY],
                "put": operation("pushResult", "Attach the rollout's result", _OBJECT, body=_OBJECT, admin=False),
            },
        },
    }


def _list(name: str, item: Schema, **others: Schema) -> Schema:
    return {
        "type": "object",
        "required": [name, *others],
        "properties": {name: {"type": "array", "items": item}, **others},
    }
