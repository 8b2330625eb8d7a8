"""Checks a request before any session sees it: AWS's rules, and no text that could break the code that handles it.

Everything refused here is the caller's fault: a `ValidationException`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ...errors import ConfigError, RuntimeFault
from ...store.base import directory_of

_LARGEST_PAYLOAD = 100_000_000
MODEL_VARIABLES = ("BASE_URL", "MODEL_ID")
"""Where the first toolkit's agents find their model when they are imported."""
_TEXTS = ("s3_bucket", "sqs_url", "base_url", "model_id", "model_api_key")
_IDS = ("exp_id", "input_id")


def check_session_id(session_id: str) -> None:
    if not 33 <= len(session_id) <= 256:
        raise _invalid(f"runtimeSessionId must have 33 to 256 characters, not {len(session_id)}")
    if not (session_id.isascii() and session_id.isprintable()):
        raise _invalid("runtimeSessionId must be printable ASCII", hint="use a UUID")


def check_payload(payload: bytes) -> None:
    if len(payload) > _LARGEST_PAYLOAD:
        raise _invalid(f"the payload is over {_LARGEST_PAYLOAD:,} bytes")


def check_command(command: str, timeout: int) -> None:
    if not 1 <= len(command) <= 65536:
        raise _invalid("command must have 1 to 65536 characters")
    if not 1 <= timeout <= 3600:
        raise _invalid("timeout must be 1 to 3600 seconds")
    _check_text(command, "command")


def rollout_request(payload: bytes) -> dict[str, Any]:
    """The parsed payload if it has a `_rollout`, else the endpoints of a SageMaker job: all that a runtime reads.

    >>> rollout_request(b'{"prompt": "hi"}')
    {}
    >>> rollout_request(b'{"_rollout": {"s3_bucket": []}}')
    Traceback (most recent call last):
        ...
    agentcore_rl_toolkit.errors.RuntimeFault: _rollout.s3_bucket must be a string, not list
    """
    # The name may be escaped ("\u005frollout") or in UTF-16; the app would read those too.
    if not any(part in payload for part in (b"_rollout", b'"metadata"', b"\\u", b"\0")):
        return {}
    try:
        value = json.loads(payload)
    except RecursionError:
        raise _invalid("the payload is nested too deeply") from None
    except ValueError:
        return {}  # the app refuses it
    settings = value.get("_rollout") if isinstance(value, dict) else None
    if settings is None:
        return _job_endpoints(value)
    if not isinstance(settings, dict):
        raise _invalid(f"_rollout must be an object, not {type(settings).__name__}")
    _check_settings(settings)
    return dict(value)


def _job_endpoints(value: Any) -> dict[str, Any]:
    """Where a SageMaker job's rollout samples and reports."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict):
        return {}
    named = [metadata.get("endpoint"), value.get("model_endpoint"), value.get("modelEndpoint")]
    return {"endpoints": [url for url in named if isinstance(url, str) and "//" in url]}


def _check_settings(settings: dict[str, Any]) -> None:
    for name in (*_TEXTS, *_IDS):
        value = settings.get(name)
        if value is None or (name in _IDS and type(value) is int):
            continue
        if not isinstance(value, str):
            raise _invalid(f"_rollout.{name} must be a string, not {type(value).__name__}")
        _check_text(value, f"_rollout.{name}")
    try:
        for name in ("sqs_url", "base_url"):
            _ = urlsplit(settings.get(name) or "").port
        directory_of(settings.get("s3_bucket") or "")
    except (ConfigError, ValueError) as error:
        raise _invalid(f"_rollout: {error}") from None


def _check_text(text: str, name: str) -> None:
    if "\0" in text:
        raise _invalid(f"{name} contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _invalid(f"{name} is not valid Unicode: it contains half of a surrogate pair") from None


def _invalid(message: str, *, hint: str | None = None) -> RuntimeFault:
    return RuntimeFault(message, code="ValidationException", hint=hint)


def model_variables(request: Mapping[str, Any]) -> dict[str, str]:
    """The model of a rollout, as variables for an agent that reads them when it is imported. A key of production stays
    away from it.

    >>> model_variables({"_rollout": {"base_url": "http://gw/sessions/s.k/v1"}})
    {'BASE_URL': 'http://gw/sessions/s.k/v1', 'MODEL_ID': 'policy', 'MODEL_API_KEY': 'EMPTY'}
    """
    settings = request.get("_rollout") or {}
    if not settings.get("base_url"):
        return {}
    url, model = settings["base_url"], settings.get("model_id") or "policy"
    return {"BASE_URL": url, "MODEL_ID": model, "MODEL_API_KEY": settings.get("model_api_key") or "EMPTY"}
