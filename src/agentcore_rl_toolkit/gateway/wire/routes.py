"""Which wire a path belongs to. `path` is what follows an agent's own URL, `/sessions/{id}.{key}/`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from . import anthropic, completions, converse, openai, responses
from .base import Wire

_MODEL = re.compile(r"^(v1/)?model/.+/")  # a name with slashes comes encoded, unless a proxy has decoded it
_BEDROCK = ("model/", "v1/model/")  # the latter under a session's `base_url`

WIRES: dict[str, Wire] = {
    "v1/chat/completions": openai.CHAT,
    "v1/completions": completions.TEXT,
    "v1/responses": responses.RESPONSES,
    "v1/messages": anthropic.MESSAGES,
    "model/{model}/converse": converse.CONVERSE,
    "model/{model}/converse-stream": converse.STREAM,
}

_UNSERVED: dict[str, Wire] = {
    "model/{model}/invoke": converse.INVOKE,
    "model/{model}/invoke-with-response-stream": converse.INVOKE,
}
"""What says where to go instead."""


def wire_at(path: str) -> Wire | None:
    """The wire whose model calls go to `path`."""
    if path.startswith(_BEDROCK):  # which has the model's name in the path
        path = _MODEL.sub("model/{model}/", path, count=1)
    return WIRES.get(path) or _UNSERVED.get(path)


def wire_near(path: str, headers: Mapping[str, str]) -> Wire:
    """The wire in whose words to refuse a request to `path`, whatever is wrong with it."""
    known = wire_at(path)
    if known is None and path.startswith(_BEDROCK):
        return converse.CONVERSE
    if known is None and (path.startswith("v1/messages/") or speaks_anthropic(headers)):
        return anthropic.MESSAGES
    return known or openai.CHAT


def speaks_anthropic(headers: Mapping[str, str]) -> bool:
    """Whether the client is one of Anthropic's, where the path doesn't tell."""
    return "anthropic-version" in headers
