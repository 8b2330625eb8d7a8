"""The models there are, as OpenAI's clients read them, or Anthropic's. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from .body import dump


def listed(names: Sequence[str], created: int, context: int | None, *, anthropic: bool) -> bytes:
    """The answer of `/models`."""
    data = [_entry(name, created, context, anthropic) for name in names]
    if not anthropic:
        return dump({"object": "list", "data": data})
    first, last = (names[0], names[-1]) if names else (None, None)
    return dump({"data": data, "has_more": False, "first_id": first, "last_id": last})


def described(name: str, created: int, context: int | None, *, anthropic: bool) -> bytes:
    """The answer of `/models/{name}`."""
    return dump(_entry(name, created, context, anthropic))


def _entry(name: str, created: int, context: int | None, anthropic: bool) -> dict[str, Any]:
    if not anthropic:
        owner = "agentcore-rl-toolkit"
        return {"id": name, "object": "model", "created": created, "owned_by": owner, "max_model_len": context}
    since = datetime.fromtimestamp(created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"type": "model", "created_at": since, "lifecycle": "active", "max_input_tokens": context}
    return {"id": name, "display_name": name, **about}
