"""Which wire a path belongs to. `path` is what follows an agent's own URL, `/sessions/{id}.{key}/`."""

from __future__ import annotations

import re

from . import openai
from .base import Wire

_MODEL = re.compile(r"^model/[^/]+/")

WIRES: dict[str, Wire] = {
    "v1/chat/completions": openai.CHAT,
    "v1/completions": openai.TEXT,
}


def wire_at(path: str) -> Wire | None:
    """The wire whose model calls go to `path`."""
    if path.startswith("model/"):  # Bedrock has the model's name in the path
        path = _MODEL.sub("model/{model}/", path, count=1)
    return WIRES.get(path)


def wire_near(path: str) -> Wire:
    """The wire in whose words to refuse a request to `path`, whatever is wrong with it."""
    return wire_at(path) or openai.CHAT
