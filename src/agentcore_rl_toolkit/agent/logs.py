"""Structured logs: one JSON object per line, with its session and request, redacted as the request asks.

Only `app.run()` and the command line configure logging; importing the package or constructing an app does not.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
from contextvars import ContextVar
from typing import Any

from bedrock_agentcore.runtime import BedrockAgentCoreContext

from .safe_values.describe import message_of, traceback_of, type_name
from .safe_values.redaction import Redactor

_DEFAULT = Redactor()
current_redactor: ContextVar[Redactor] = ContextVar("agentcore_rl_redactor", default=_DEFAULT)
"""The redactor of the request being served; tasks and threads started for a rollout inherit it."""


class JsonLine:
    """A log message that is one line of JSON under any formatter, and part of the object under `JsonFormatter`."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __str__(self) -> str:
        return json.dumps(self.fields, default=repr)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        redact = current_redactor.get()
        when = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        entry: dict[str, object] = {
            "timestamp": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
        }
        if isinstance(record.msg, JsonLine):
            entry.update(record.msg.fields)
        else:
            entry["message"] = redact(record.getMessage())
        if session_id := BedrockAgentCoreContext.get_session_id():
            entry["sessionId"] = session_id
        if request_id := BedrockAgentCoreContext.get_request_id():
            entry["requestId"] = request_id
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            entry["errorType"] = type_name(error)
            entry["errorMessage"] = message_of(error, redact)
            entry["stackTrace"] = traceback_of(error, redact)
        return json.dumps(entry, ensure_ascii=False, default=repr)


def configure_logging(level: int = logging.INFO) -> None:
    """Send everything to stderr as JSON lines, unless the program has set up logging itself."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root.addHandler(handler)
    root.setLevel(level)
    _silence_sdk_handler()


def _silence_sdk_handler() -> None:
    """Print the SDK's lines once, and redacted: an app adds its own handler to a logger without one."""
    sdk = logging.getLogger("bedrock_agentcore.app")
    for handler in sdk.handlers[:]:
        if type(handler.formatter).__module__.startswith("bedrock_agentcore."):
            sdk.removeHandler(handler)
    if not sdk.handlers:
        sdk.addHandler(logging.NullHandler())
