"""Google's generateContent as JSON schemas: what the gateway's description says of it."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
_COUNT: Schema = {"type": "integer", "minimum": 0}


def _struct(*required: str, **members: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": members}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


_CALL = _struct("name", id=_TEXT, name=_TEXT | {"minLength": 1}, args=_OBJECT)
_RESPONSE = _struct("name", "response", id=_TEXT, name=_TEXT | {"minLength": 1}, response=_OBJECT)
_PART: Schema = {
    "anyOf": [
        _struct("text", text=_TEXT, thought={"type": "boolean"}, thoughtSignature=_TEXT),
        _struct("functionCall", functionCall=_CALL, thoughtSignature=_TEXT),
        _struct("functionResponse", functionResponse=_RESPONSE),
    ]
}
_CONTENT = _struct("parts", role={"enum": ["user", "model"]}, parts=_list(_PART) | {"minItems": 1})
_FUNCTION = _struct("name", name=_TEXT, description=_TEXT, parameters=_OBJECT, parametersJsonSchema=_OBJECT)
_CHOICE = _struct(mode={"enum": ["AUTO", "ANY", "NONE", "VALIDATED"]}, allowedFunctionNames=_list(_TEXT))
_CONFIG = _struct(
    temperature={"type": "number", "minimum": 0, "maximum": 100},
    topP={"type": "number", "minimum": 0, "maximum": 1},
    topK={"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    maxOutputTokens={"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
    stopSequences=_list(_TEXT) | {"maxItems": 16},
    candidateCount={"type": "integer", "minimum": 1, "maximum": 128},
    seed={"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1},
    presencePenalty={"type": "number", "minimum": -2, "maximum": 2},
    frequencyPenalty={"type": "number", "minimum": -2, "maximum": 2},
    responseMimeType={"enum": ["text/plain", "application/json"]},
    responseSchema=_OBJECT,
    responseJsonSchema=_OBJECT,
    responseLogprobs={"type": "boolean"},
    logprobs={"type": "integer", "minimum": 0, "maximum": 20},
    thinkingConfig=_struct(
        includeThoughts={"type": "boolean"},
        thinkingBudget={"type": "integer", "minimum": -1, "maximum": 2**31 - 1},
        thinkingLevel=_TEXT,
    ),
)

REQUEST = _struct(
    "contents",
    contents=_list(_CONTENT) | {"minItems": 1},
    systemInstruction=_struct("parts", parts=_list(_struct("text", text=_TEXT))),
    tools=_list(_struct(functionDeclarations=_list(_FUNCTION))),
    toolConfig=_struct(functionCallingConfig=_CHOICE),
    generationConfig=_CONFIG,
)
COUNTED = _struct(contents=_list(_CONTENT), generateContentRequest=_OBJECT)

_CANDIDATE = _struct("content", "index", "finishReason", content=_CONTENT, index=_COUNT, finishReason=_TEXT)
_USAGE = _struct(
    "promptTokenCount",
    "candidatesTokenCount",
    "totalTokenCount",
    promptTokenCount=_COUNT,
    candidatesTokenCount=_COUNT,
    totalTokenCount=_COUNT,
)
ANSWER = _struct(
    "candidates",
    "usageMetadata",
    "modelVersion",
    "responseId",
    candidates=_list(_CANDIDATE) | {"minItems": 1},
    usageMetadata=_USAGE,
)
STREAM = _list(_struct("candidates", candidates=_list(_OBJECT)))
COUNT = _struct("totalTokens", totalTokens=_COUNT)
MODELS = _struct("models", models=_list(_struct("name", name=_TEXT)))
MODEL = _struct("name", name=_TEXT)
ERROR = _struct(
    "error",
    error=_struct("code", "message", "status", code={"type": "integer"}, message=_TEXT, status=_TEXT),
)
