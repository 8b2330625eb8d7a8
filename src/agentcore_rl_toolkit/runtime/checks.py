"""What AWS checks of a request before any session sees it, for the runtimes that are our own."""

from __future__ import annotations

import json
from typing import Any

from ..errors import RuntimeFault

_LARGEST_PAYLOAD = 100_000_000


def check_session_id(session_id: str) -> None:
    """Whether AWS would take it."""
    if not 33 <= len(session_id) <= 256:
        raise RuntimeFault(
            f"runtimeSessionId must have 33 to 256 characters, not {len(session_id)}", code="ValidationException"
        )


def check_payload(payload: bytes) -> None:
    """Whether it is small enough."""
    if len(payload) > _LARGEST_PAYLOAD:
        raise RuntimeFault(f"the payload is over {_LARGEST_PAYLOAD:,} bytes", code="ValidationException")


def check_command(command: str, timeout: int) -> None:
    """Whether AWS would run it."""
    if not 1 <= len(command) <= 65536:
        raise RuntimeFault("command must have 1 to 65536 characters", code="ValidationException")
    if not 1 <= timeout <= 3600:
        raise RuntimeFault("timeout must be 1 to 3600 seconds", code="ValidationException")


def rollout_request(payload: bytes) -> dict[str, Any]:
    """The payload as far as a runtime is concerned: itself if it has a `_rollout`, else nothing.

    >>> rollout_request(b'{"prompt": "hi"}')
    {}
    """
    if b'"_rollout"' not in payload:
        return {}
    try:
        value = json.loads(payload)
    except ValueError:
        return {}  # the app's to refuse
    return value if isinstance(value, dict) else {}
