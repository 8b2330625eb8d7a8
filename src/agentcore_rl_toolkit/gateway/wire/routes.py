"""The wire that a path belongs to. `path` is the rest of the URL after the session's, `/sessions/{id}.{key}/`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote

from .anthropic import messages as anthropic
from .base import Wire
from .bedrock import converse
from .bedrock import invoke_model as invoke
from .google import generate_content as google
from .openai import chat_completions as openai
from .openai import completions, job_sample, responses

_BEDROCK = re.compile(r"(?:v1/)?model/.+/([^/]+)")  # slashes in a name are encoded, unless a proxy has decoded them
_GOOGLE = re.compile(
    r"(?:v1/)?(v1|v1beta|v1beta1|v1alpha)/(?:projects/[^/]+/locations/[^/]+/)?(?:publishers/[^/]+/)?"
    r"(?:tunedM|m)odels(?:/(.+?)(:[a-z]+[A-Z][A-Za-z]+)?)?"
)
"""The developer API's paths and Vertex's, or either after a session's own `v1`: version, model, method."""
_OPENAI_MODELS = re.compile(r"v1/models(?:/(?!.*:(?:generateContent|streamGenerateContent|countTokens)$).+)?")

WIRES: dict[str, Wire] = {
    "v1/chat/completions": openai.CHAT,
    "v1/completions": completions.TEXT,
    "v1/responses": responses.RESPONSES,
    "v1/messages": anthropic.MESSAGES,
    "model/{model}/converse": converse.CONVERSE,
    "model/{model}/converse-stream": converse.STREAM,
    "model/{model}/invoke": invoke.INVOKE,
    "model/{model}/invoke-with-response-stream": invoke.STREAM,
    "v1beta/models/{model}:generateContent": google.GENERATE,
    "v1beta/models/{model}:streamGenerateContent": google.ARRAY,
    "sample": job_sample.SAMPLE,
    "sample-with-response-stream": job_sample.STREAM,
}
_REPORTS = ("complete-rollout", "update-reward", "report")


def find_route(path: str) -> str:
    """A path as OpenAPI describes it, without the model's name in it."""
    if path.startswith(("model/", "v1/model/")):
        found = _BEDROCK.fullmatch(path)
        return f"model/{{model}}/{found[1]}" if found is not None else path
    if path.startswith("v1") and "odels" in path:
        if _OPENAI_MODELS.fullmatch(unquote(path)):
            return "v1/models/{model}" if path != "v1/models" else path
        if found := _GOOGLE.fullmatch(unquote(path)):
            return "v1beta/models" + (f"/{{model}}{found[3] or ''}" if found[2] else "")
    return path


def find_wire(path: str, query: str = "") -> Wire | None:
    """The wire of the model calls to `path`."""
    wire = WIRES.get(find_route(path))
    if wire is google.ARRAY and ({("alt", "sse"), ("$alt", "sse")} & set(parse_qsl(query))):
        return google.EVENTS
    return wire


def error_wire(path: str, headers: Mapping[str, str]) -> Wire:
    """The wire whose error format a client of `path` expects."""
    route = find_route(path)
    wire = WIRES.get(route)
    if path in _REPORTS:
        return job_sample.SAMPLE
    if wire is None and path.startswith(("model/", "v1/model/")):
        return converse.CONVERSE
    if wire is None and (path.startswith("v1/messages/") or is_anthropic_client(headers)):
        return anthropic.MESSAGES
    if wire is None and (route.startswith(("v1beta", "v1alpha")) or is_google_client(headers)):
        return google.GENERATE
    return wire or openai.CHAT


def is_anthropic_client(headers: Mapping[str, str]) -> bool:
    """Whether the client is one of Anthropic's, for paths that several APIs have."""
    return "anthropic-version" in headers


def is_google_client(headers: Mapping[str, str]) -> bool:
    """Whether the client is one of Google's, for paths that several APIs have."""
    return "x-goog-api-key" in headers or "x-goog-api-client" in headers
