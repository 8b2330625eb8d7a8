"""Which wire a path belongs to. `path` is what follows an agent's own URL, `/sessions/{id}.{key}/`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote

from .anthropic import messages as anthropic
from .base import Wire
from .bedrock import converse
from .bedrock import invoke_model as invoke
from .google import generate as google
from .openai import chat_completions as openai
from .openai import completions, responses

_BEDROCK = re.compile(r"(?:v1/)?model/.+/([^/]+)")  # a name with slashes comes encoded, unless a proxy has decoded it
_GOOGLE = re.compile(
    r"(?:v1/)?(v1|v1beta|v1beta1|v1alpha)/(?:projects/[^/]+/locations/[^/]+/)?(?:publishers/[^/]+/)?"
    r"(?:tunedM|m)odels(?:/(.+?)(:[a-z]+[A-Z][A-Za-z]+)?)?"
)
"""The developer API's paths and Vertex's, also under a session's `base_url`: version, model, method."""
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
}


def route(path: str) -> str:
    """A path as the gateway's description has it, without the name of the model in it."""
    if path.startswith(("model/", "v1/model/")):
        known = _BEDROCK.fullmatch(path)
        return f"model/{{model}}/{known[1]}" if known is not None else path
    if path.startswith("v1") and "odels" in path:
        if _OPENAI_MODELS.fullmatch(unquote(path)):
            return "v1/models/{model}" if path != "v1/models" else path
        if known := _GOOGLE.fullmatch(unquote(path)):
            return "v1beta/models" + (f"/{{model}}{known[3] or ''}" if known[2] else "")
    return path


def wire_at(path: str, query: str = "") -> Wire | None:
    """The wire whose model calls go to `path`."""
    wire = WIRES.get(route(path))
    if wire is google.ARRAY and ({("alt", "sse"), ("$alt", "sse")} & set(parse_qsl(query))):
        return google.EVENTS
    return wire


def wire_near(path: str, headers: Mapping[str, str]) -> Wire:
    """The wire in whose words to refuse a request to `path`, whatever is wrong with it."""
    at = route(path)
    known = WIRES.get(at)
    if known is None and path.startswith(("model/", "v1/model/")):
        return converse.CONVERSE
    if known is None and (path.startswith("v1/messages/") or speaks_anthropic(headers)):
        return anthropic.MESSAGES
    if known is None and (at.startswith(("v1beta", "v1alpha")) or speaks_google(headers)):
        return google.GENERATE
    return known or openai.CHAT


def speaks_anthropic(headers: Mapping[str, str]) -> bool:
    """Whether the client is one of Anthropic's, where the path doesn't tell."""
    return "anthropic-version" in headers


def speaks_google(headers: Mapping[str, str]) -> bool:
    """Whether the client is one of Google's, where the path doesn't tell."""
    return "x-goog-api-key" in headers or "x-goog-api-client" in headers
