"""One operation of the gateway's description, and the paths of the wires that have the model's name in theirs."""

from __future__ import annotations

from typing import Any

from ...common.eventstream import CONTENT_TYPE
from ..wire.anthropic import messages_schema as anthropic_schema
from ..wire.bedrock import converse_schema
from ..wire.google import generate_schema as google_schema

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": _TEXT,
            },
        }
    },
}
SESSION_AND_KEY: Schema = {
    "name": "session",
    "in": "path",
    "required": True,
    "schema": _TEXT,
    "description": "The session's id, a dot, and its key.",
}
MODEL: Schema = {
    "name": "model",
    "in": "path",
    "required": True,
    "schema": _TEXT,
    "description": "The model's name or ARN, percent-encoded.",
}
_ALT: Schema = {
    "name": "alt",
    "in": "query",
    "required": False,
    "schema": {"enum": ["sse"]},
    "description": "With `sse`, the stream is server-sent events; without, one JSON array.",
}


def model_paths(agent: str) -> dict[str, Schema]:
    """Bedrock's operations and Google's, under an agent's own URL."""
    calls = {
        "model/{model}/converse": _bedrock("converse", "Bedrock Converse", converse_schema.ANSWER),
        "model/{model}/converse-stream": _bedrock("converseStream", "Bedrock ConverseStream", None),
        "model/{model}/invoke": _bedrock("invokeModel", "Bedrock InvokeModel, Anthropic's body", anthropic_schema.SAID),
        "model/{model}/invoke-with-response-stream": _bedrock(
            "invokeModelWithResponseStream", "Bedrock InvokeModelWithResponseStream, Anthropic's body", None
        ),
        "model/{model}/count-tokens": _bedrock("bedrockCountTokens", "Bedrock CountTokens", _INPUT_TOKENS),
        "v1beta/models/{model}:generateContent": _google(
            "generateContent", "Google generateContent", google_schema.ANSWER, google_schema.REQUEST
        ),
        "v1beta/models/{model}:streamGenerateContent": _google(
            "streamGenerateContent",
            "Google streamGenerateContent",
            google_schema.STREAM,
            google_schema.REQUEST,
            stream=True,
        ),
        "v1beta/models/{model}:countTokens": _google(
            "googleCountTokens", "Google countTokens", google_schema.COUNT, google_schema.COUNTED
        ),
    }
    calls["v1beta/models/{model}:streamGenerateContent"]["parameters"] = [_ALT]
    paths = {f"{agent}/{path}": {"parameters": [SESSION_AND_KEY, MODEL], "post": call} for path, call in calls.items()}
    listed = _google("googleModels", "The models there are, as Google lists them", google_schema.MODELS)
    described = _google("googleModel", "One of them", google_schema.MODEL)
    paths[f"{agent}/v1beta/models"] = {"parameters": [SESSION_AND_KEY], "get": listed}
    paths[f"{agent}/v1beta/models/{{model}}"] = {"parameters": [SESSION_AND_KEY, MODEL], "get": described}
    return paths


_INPUT_TOKENS: Schema = {"type": "object", "required": ["inputTokens"], "properties": {"inputTokens": {"minimum": 1}}}
_BODIES = {
    "converse": converse_schema.REQUEST,
    "converseStream": converse_schema.REQUEST,
    "bedrockCountTokens": {
        "type": "object",
        "required": ["input"],
        "properties": {
            "input": {
                "type": "object",
                "properties": {"converse": {"type": "object"}, "invokeModel": {"type": "object"}},
            }
        },
    },
}


def _bedrock(name: str, summary: str, answer: Schema | None) -> Schema:
    return operation(
        name,
        summary,
        answer,
        body=_BODIES.get(name, anthropic_schema.CALL),
        kind="application/json" if answer else CONTENT_TYPE,
        admin=False,
        error=converse_schema.ERROR,
    )


def _google(name: str, summary: str, answer: Schema, body: Schema | None = None, *, stream: bool = False) -> Schema:
    return operation(name, summary, answer, body=body, admin=False, stream=stream, error=google_schema.ERROR)


def operation(
    name: str,
    summary: str,
    answer: Schema | None,
    *,
    body: Schema | None = None,
    status: str = "200",
    kind: str = "application/json",
    admin: bool = True,
    needs: bool = True,
    packed: bool = False,
    stream: bool = False,
    error: Schema = ERROR,
) -> Schema:
    """What one method of one path takes and answers."""
    content: Schema = {kind: {"schema": answer or _TEXT}}
    if packed:
        content["application/msgpack"] = {"schema": {}}
    if stream:
        event = {"type": "object", "required": ["data"], "properties": {"data": _TEXT}}
        content["text/event-stream"] = {"schema": event}
    why_not = {"description": "Why not", "content": {"application/json": {"schema": error}}}
    operation: Schema = {
        "operationId": name,
        "summary": summary,
        "responses": {status: {"description": summary, "content": content}, "4XX": why_not, "5XX": why_not},
    }
    if admin:
        operation["security"] = [{"admin": []}]
    if body is not None:
        operation["requestBody"] = {"required": needs, "content": {"application/json": {"schema": body}}}
    return operation
