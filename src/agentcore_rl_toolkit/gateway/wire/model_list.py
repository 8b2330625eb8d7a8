"""The models there are, as OpenAI's clients read them, or Anthropic's, or Google's. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from .json_body import dump

_METHODS = ["generateContent", "countTokens"]


def listed(names: Sequence[str], created: int, context: int | None, *, wire: str) -> bytes:
    """The answer of `/models`; `wire` is `openai`, `anthropic` or `google`."""
    data = [_entry(name, created, context, wire) for name in names]
    if wire == "google":
        return dump({"models": data})
    if wire == "openai":
        return dump({"object": "list", "data": data})
    first, last = (names[0], names[-1]) if names else (None, None)
    return dump({"data": data, "has_more": False, "first_id": first, "last_id": last})


def described(name: str, created: int, context: int | None, *, wire: str) -> bytes:
    """The answer of `/models/{name}`."""
    return dump(_entry(name, created, context, wire))


def _entry(name: str, created: int, context: int | None, wire: str) -> dict[str, Any]:
    if wire == "google":
        limits = {"inputTokenLimit": context, "outputTokenLimit": context} if context else {}
        return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": _METHODS, **limits}
    if wire == "openai":
        owner = "agentcore-rl-toolkit"
        return {"id": name, "object": "model", "created": created, "owned_by": owner, "max_model_len": context}
    since = datetime.fromtimestamp(created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"type": "model", "created_at": since, "lifecycle": "active", "max_input_tokens": context}
    return {"id": name, "display_name": name, **about}
