"""The gateway's HTTP operations, and their description in OpenAPI.

`App` routes requests by this table, `GET /openapi.json` serves it, and tests generate requests from it. The schemas of
request bodies come from the structs that parse them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from ... import __version__
from ...common.eventstream import CONTENT_TYPE
from ..call.side_calls import RULES
from ..record.reasons import MEANINGS
from ..record.session import SessionSettings
from ..record.trajectory import Fidelity
from ..remote.batch_operations import BatchRequest, OpenBatchRequest
from ..remote.frames import MEDIA as FRAMED
from ..wire.anthropic.messages_request import CountTokensRequest, MessagesRequest
from ..wire.bedrock.converse_request import ConverseRequest
from ..wire.bedrock.invoke_model import BedrockCountRequest
from ..wire.google.generate_request import GenerateRequest, GoogleCountRequest
from ..wire.openai.chat_completions import ChatRequest
from ..wire.openai.completions import TextRequest
from ..wire.openai.response_items import ResponseItem
from ..wire.openai.responses import ResponseRequest
from ..wire.openai.sampling import SamplingSettings
from .jobs.job_rules import CompleteRolloutRequest, JobReport, UpdateRewardRequest

Schema = dict[str, Any]

SESSION = "/sessions/{session_id}"
AGENT = "/sessions/{session}"
_REF = "#/components/schemas/{name}"
_JSON, _EVENTS = "application/json", "text/event-stream"


class WeightsRequest(Struct):
    """The name of the weights that the engine samples from now on."""

    version: str | int


class EnginesRequest(Struct):
    """The engine's replicas from now on, each like `vllm=http://10.0.0.7:8000`."""

    engines: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1024)]


class PeersRequest(Struct):
    """The gateways that share sessions from now on, each like `http://10.0.0.7:9000`."""

    peers: Annotated[list[str], msgspec.Meta(min_length=1, max_length=256)]
    leaving: Annotated[list[str], msgspec.Meta(max_length=256)] = []
    """Gateways that keep the sessions they have, and get no new ones."""


def _object(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "required": [*required], "properties": properties}


def _ref(kind: type) -> Schema:
    return {"$ref": _REF.format(name=kind.__name__)}


_TEXT: Schema = {"type": "string"}
_ANY = _object()
_OPENAI_ERROR = _object("error", error=_object("message", "type", "param", "code"))
_ANTHROPIC_ERROR = _object("type", "error", "request_id", error=_object("type", "message", "details"))
_BEDROCK_ERROR = _object("message")
_JOB_ERROR = _object("Message")
_GOOGLE_ERROR = _object("error", error=_object("code", "message", "status"))


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    name: str
    summary: str
    answer: Schema
    body: Any = None
    """The type that its body is parsed as."""
    error: Schema | None = None
    media: tuple[str, ...] = (_JSON,)
    status: int = 200

    @property
    def needs_admin_key(self) -> bool:
        return not self.path.startswith(AGENT + "/") and self.path not in ("/health", "/openapi.json")


_HEALTH = _object(
    *("status", "sessions", "in_flight", "replicas", "replicas_well", "log_error", "log_failures", "log_damaged"),
    status={
        "enum": ["ok", "paused", "degraded"],
        "description": "degraded: no replica of the engine answers, a worker is missing, or the log can't be written",
    },
    log_error={"type": ["string", "null"], "description": "why the log can't be written now"},
    log_failures={"type": "integer", "description": "failed writes of the log since the start"},
    log_damaged={"type": "integer", "description": "places of the log that can't be read"},
)
_URLS = ("base_url", "anthropic_base_url", "bedrock_endpoint_url", "google_base_url", "result_url")
_SESSION = _object("session_id", *_URLS, "expires_at")
_SESSIONS = _object("sessions", sessions={"type": "array", "description": "the latest thousand, the newest first"})
_TURN = _object(
    *("index", "parent", "new_prompt_ids", "sampled_ids", "logprobs", "finish", "origin", "unbridged", "masked"),
    origin={"enum": ["first", "bridge", "render"]},
    unbridged={"enum": ["", *MEANINGS], "description": "why the prompt was rendered from scratch, if it was"},
)
_ROW = _object("token_ids", "loss_mask", "logprobs", "weight", "prompt_length", "spans", "weight_versions")
_TURNS = _object("turns", turns={"type": "array", "items": _TURN})
_ROWS = _object("rows", "fidelity", rows={"type": "array", "items": _ROW}, fidelity=_ref(Fidelity))
_CHOICES = _object("id", "object", "created", "model", "choices", "usage")
_RESPONSE = _object("id", "object", "created_at", "model", "status", "output", "usage", "tools", "tool_choice")
_MESSAGE = _object("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage")
_CONVERSE = _object("output", "stopReason", "usage", "metrics")
_GENERATE = _object("candidates", "usageMetadata", "modelVersion", "responseId")
_PACKED = (_JSON, "application/msgpack")
_ENGINES = _object("engines", engines={"type": "array", "items": _object("name", "healthy", "in_flight")})
_PEERS = _object("peers", "leaving", "workers")
_ABILITIES = _object(
    *("line", "problems", "blind", "images", "routes", "models", "wants_engine", "workers"),
    images={"type": "boolean", "description": "whether the model is shown images"},
    routes={"type": "boolean", "description": "whether the engine is asked for expert routes"},
    wants_engine={
        "type": "boolean",
        "description": "whether it samples from engines that connect (`--engine trainer`)",
    },
    workers={"type": "array", "description": "the addresses of all workers, if there are several"},
)
_STREAMED = (_JSON, _EVENTS)
_FRAMES = (CONTENT_TYPE,)
_TOTAL_TOKENS = _object("totalTokens")
_CHUNKS = {"type": "array", "items": _object("candidates")}


def _anthropic(path: str, name: str, summary: str, answer: Schema, body: type, **others: Any) -> Operation:
    return Operation("POST", f"{AGENT}/v1/messages{path}", name, summary, answer, body, _ANTHROPIC_ERROR, **others)


def _bedrock(path: str, summary: str, answer: Schema, body: type, name: str = "", **others: Any) -> Operation:
    title = f"Bedrock {summary}"
    name = name or summary[0].lower() + summary[1:].partition(",")[0]
    return Operation("POST", f"{AGENT}/model/{{model}}/{path}", name, title, answer, body, _BEDROCK_ERROR, **others)


def _google(path: str, name: str, summary: str, answer: Schema, body: type | None = None, **others: Any) -> Operation:
    method = "GET" if body is None else "POST"
    return Operation(method, f"{AGENT}/v1beta/models{path}", name, summary, answer, body, _GOOGLE_ERROR, **others)


def _job(path: str, name: str, summary: str, answer: Schema, body: type, **others: Any) -> Operation:
    return Operation("POST", f"{AGENT}/{path}", name, f"SageMaker {summary}", answer, body, _JOB_ERROR, **others)


def _batch(path: str, name: str, summary: str, body: type) -> Operation:
    answer: Schema = {"type": "string", "description": "one frame for each session: its length, then MessagePack"}
    return Operation("POST", f"/batch/{path}", name, summary, answer, body, media=(FRAMED,))


_get, _post, _put = (partial(Operation, method) for method in ("GET", "POST", "PUT"))

OPERATIONS = (
    _get("/health", "health", "Report the gateway's state", _HEALTH),
    _get("/metrics", "metrics", "Counters for Prometheus", _TEXT, media=("text/plain",)),
    _get("/openapi.json", "openapi", "This description", _ANY),
    _post("/sessions", "openSession", "Open a session", _SESSION, SessionSettings, status=201),
    _get("/sessions", "listSessions", "The sessions in memory", _SESSIONS),
    _get(SESSION, "describeSession", "A session's settings and state", _SESSION),
    Operation("DELETE", SESSION, "deleteSession", "Close a session and forget its turns", _ANY),
    _get(f"{SESSION}/turns", "readTurns", "What was sampled, call by call", _TURNS, media=_PACKED),
    _get(f"{SESSION}/trajectories", "readTrajectories", "Training rows", _ROWS, media=_PACKED),
    _put(f"{SESSION}/result", "putResult", "Attach the rollout's result", _ANY, dict[str, Any]),
    _post(f"{SESSION}/close", "closeSession", "Refuse more calls; turns stay readable", _ANY),
    _post("/pause", "pause", "Hold back new calls", _HEALTH),
    _post("/resume", "resume", "Let calls sample again", _HEALTH),
    _post("/drain", "drain", "Wait until nothing is being sampled", _HEALTH),
    _put("/weights", "setWeightVersion", "Name the weights that are sampled from now on", _HEALTH, WeightsRequest),
    _get("/abilities", "readAbilities", "The renderer, and what it can bridge and show", _ABILITIES),
    _get("/engines", "listEngines", "The engine's replicas, with their load", _ENGINES),
    _put("/engines", "changeEngines", "Sample from these replicas from now on", _ENGINES, EnginesRequest),
    _get("/peers", "listPeers", "The gateways that share sessions with this one", _PEERS),
    _put("/peers", "changePeers", "Share sessions with these gateways from now on", _PEERS, PeersRequest),
    _get("/engine", "connectEngine", "Connect the engine of a trainer, with a WebSocket", _ANY),
    _batch("open", "openSessions", "Open up to 256 sessions; repeating it opens none twice", OpenBatchRequest),
    _batch("fold", "foldSessions", "Training rows of up to 256 sessions, in packed arrays", BatchRequest),
    _batch("delete", "deleteSessions", "Close up to 256 sessions and forget their turns", BatchRequest),
    _post(f"{AGENT}/v1/chat/completions", "chat", "OpenAI chat completions", _CHOICES, ChatRequest, media=_STREAMED),
    _post(f"{AGENT}/v1/completions", "complete", "OpenAI completions", _CHOICES, TextRequest, media=_STREAMED),
    _post(f"{AGENT}/v1/responses", "respond", "OpenAI responses", _RESPONSE, ResponseRequest, media=_STREAMED),
    _anthropic("", "message", "Anthropic messages", _MESSAGE, MessagesRequest, media=_STREAMED),
    _anthropic("/count_tokens", "countTokens", "Count a prompt's tokens", _object("input_tokens"), CountTokensRequest),
    _bedrock("converse", "Converse", _CONVERSE, ConverseRequest),
    _bedrock("converse-stream", "ConverseStream", _TEXT, ConverseRequest, media=_FRAMES),
    _bedrock("invoke", "InvokeModel, Anthropic's body", _MESSAGE, MessagesRequest),
    _bedrock(
        "invoke-with-response-stream",
        "InvokeModelWithResponseStream, Anthropic's body",
        _TEXT,
        MessagesRequest,
        media=_FRAMES,
    ),
    _bedrock("count-tokens", "CountTokens", _object("inputTokens"), BedrockCountRequest, "bedrockCountTokens"),
    _google("/{model}:generateContent", "generateContent", "Google generateContent", _GENERATE, GenerateRequest),
    _google(
        "/{model}:streamGenerateContent",
        "streamGenerateContent",
        "Google streamGenerateContent",
        _CHUNKS,
        GenerateRequest,
        media=_STREAMED,
    ),
    _google("/{model}:countTokens", "googleCountTokens", "Google countTokens", _TOTAL_TOKENS, GoogleCountRequest),
    _google("", "googleModels", "List the models, in Google's format", _object("models")),
    _google("/{model}", "googleModel", "Describe a model, in Google's format", _object("name")),
    _get(f"{AGENT}/v1/models", "models", "List the models", _ANY),
    _get(f"{AGENT}/v1/models/{{model}}", "model", "Describe a model", _ANY),
    _job("sample", "sample", "Sample", _CHOICES, ChatRequest),
    _job(
        "sample-with-response-stream", "sampleStream", "SampleWithResponseStream", _TEXT, ChatRequest, media=(_EVENTS,)
    ),
    _job("complete-rollout", "completeRollout", "CompleteRollout", _ANY, CompleteRolloutRequest),
    _job("update-reward", "updateReward", "UpdateReward", _ANY, UpdateRewardRequest),
    _get(
        f"{AGENT}/report", "readReport", "What was reported of a SageMaker rollout", _ref(JobReport), error=_JOB_ERROR
    ),
    _put(f"{AGENT}/result", "pushResult", "Attach the rollout's result", _ANY, dict[str, Any]),
)

_PARAMETERS = {
    "session_id": "The session's id.",
    "session": "The session's id, a dot, and its key.",
    "model": "The model's name or ARN, percent-encoded.",
}
_ALT: Schema = {
    "name": "alt",
    "in": "query",
    "required": False,
    "schema": {"enum": ["sse"]},
    "description": "With `sse`, the stream is server-sent events; without, one JSON array.",
}


@cache
def openapi() -> Schema:
    bodies = [operation.body for operation in OPERATIONS if operation.body is not None]
    refs, components = msgspec.json.schema_components(
        [*bodies, SamplingSettings, ResponseItem, Fidelity, JobReport], ref_template=_REF
    )
    _complete_settings(components)
    schemas = iter(refs)
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        item = paths.setdefault(operation.path, {})
        names = [name for name in _PARAMETERS if f"{{{name}}}" in operation.path]
        if names:
            item["parameters"] = [_parameter(name) for name in names]
        item[operation.method.lower()] = _describe(operation, next(schemas) if operation.body is not None else None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "AgentCore RL Toolkit gateway", "version": __version__},
        "components": {"securitySchemes": {"admin": {"type": "http", "scheme": "bearer"}}, "schemas": components},
        "paths": paths,
    }


def _complete_settings(components: dict[str, Schema]) -> None:
    """Settings of a session: all are optional, and unknown names are refused, in the sampling settings too."""
    settings, sampling = components["SessionSettings"], components["SamplingSettings"]
    settings["required"] = []
    texts = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
    rules = {"type": "object", "properties": dict.fromkeys(RULES, texts), "additionalProperties": False}
    settings["properties"] |= {
        "session_id": {"type": "string", "pattern": "^[A-Za-z0-9_~:@=-]{1,128}$"},
        "sampling": _ref(SamplingSettings),
        "enforced": _ref(SamplingSettings),
        "side_calls": rules,
    }
    for closed in (settings, sampling):
        closed["additionalProperties"] = False


def _parameter(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": _TEXT, "description": _PARAMETERS[name]}


def _describe(operation: Operation, body: Schema | None) -> Schema:
    event = _object("data", data=_TEXT)
    answers = {_EVENTS: event, "application/msgpack": {}, FRAMED: {}}
    content = {kind: {"schema": answers.get(kind, operation.answer)} for kind in operation.media}
    failed = {"description": "Error", "content": {_JSON: {"schema": operation.error or _OPENAI_ERROR}}}
    described: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {
            str(operation.status): {"description": operation.summary, "content": content},
            "4XX": failed,
            "5XX": failed,
        },
    }
    if operation.name == "streamGenerateContent":
        described["parameters"] = [_ALT]
    if operation.needs_admin_key:
        described["security"] = [{"admin": []}]
    if body is not None:
        needed = operation.name != "openSession"
        described["requestBody"] = {"required": needed, "content": {_JSON: {"schema": body}}}
    return described
