"""The result: what the entrypoint returned, or how it failed, as the document that lands in the store.

A document is the user's dict plus the keys in `RESERVED`. It is written by the app and read by the client; both go
through this module. Pure: nothing here stores anything.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from .errors import NotSerializable, RewardInvalid
from .jsonable import dump_json, jsonable
from .redact import HIDDEN, Redactor
from .reward import RewardFunction, normalize_rewards
from .types import SCHEMA_VERSION, RolloutId, Status

RESERVED = {
    "status_code": "200, or 500 on failure; a number that the user returns is kept",
    "stop_reason": "`end_turn`, or what went wrong; a string that the user returns is kept",
    "input_id": "the data row",
    "s3_bucket": "the store, as the request named it",
    "result_key": "this document's key in the store",
    "payload": "the request, without its secrets",
    "error": "on failure: `kind` (a `Status`), `type`, `message`",
    "traceback": "on failure: the Python traceback",
    "shadowed": "values the user returned under a reserved key, kept here",
    "returned": "on a failure after the function returned: what it had returned",
    "_rollout": "schema version, ids and times",
}

# Exceptions of model clients, by module and name, so that none of them has to be imported.
_TRUNCATED = frozenset({"MaxTokensReachedException", "ContextWindowOverflowException", "LengthFinishReasonError"})
_ENGINE_MODULES = ("openai", "anthropic", "strands.types.exceptions")
_ENGINE_ERRORS = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "InternalServerError",
        "RateLimitError",
        "OverloadedError",
        "ServiceUnavailableError",
        "ModelThrottledException",
    }
)


@dataclass(frozen=True)
class Result:
    """One stored result: the whole `document`, and what readers need of it.

    >>> stored = b'{"status_code": 200, "stop_reason": "end_turn", "rewards": 1.0}'
    >>> Result.from_bytes(stored).status.value
    'completed'
    """

    document: dict[str, Any]

    @property
    def status(self) -> Status:
        """How the rollout ended."""
        if self.document.get("status_code", 200) == 200:
            return Status.COMPLETED
        error = self.document.get("error")
        kind = error.get("kind") if isinstance(error, Mapping) else None
        try:
            return Status(kind)
        except ValueError:
            return Status.AGENT_ERROR

    @property
    def rewards(self) -> float | list[float] | None:
        """The reward, one per turn, or none."""
        return normalize_rewards(self.document.get("rewards"))

    @property
    def seconds(self) -> float | None:
        """How long the function ran, if the document says so."""
        times = self.document.get("_rollout")
        try:
            start, end = (datetime.datetime.fromisoformat(times[name]) for name in ("started_at", "finished_at"))  # type: ignore[index]
            return (end - start).total_seconds()
        except (TypeError, KeyError, ValueError):
            return None

    def to_bytes(self) -> bytes:
        """The document as it is stored."""
        return dump_json(self.document)

    @classmethod
    def from_bytes(cls, data: bytes) -> Result:
        """Read a stored document."""
        document = json.loads(data)
        if not isinstance(document, dict):
            raise ValueError(f"a result is a JSON object, not a {type(document).__name__}")
        return cls(document)


@dataclass(frozen=True)
class ResultBuilder:
    """Builds the one result of a rollout; knows everything about the request it answers."""

    id: RolloutId
    s3_bucket: str
    payload: Any
    """The request as it came, without its secrets: a copy, so that an agent may change its own."""
    redact: Redactor
    request_id: str | None
    started_at: float

    def returned(self, value: Any, finished_at: float) -> Result:
        """The result for what the function returned: a success, or the failure it amounts to."""
        try:
            return self._completed(value, finished_at)
        except RewardInvalid as error:
            return self.failed(Status.REWARD_ERROR, error, finished_at, returned=value)
        except Exception as error:
            return self.failed(Status.AGENT_ERROR, error, finished_at, returned=value)

    def raised(self, error: BaseException, finished_at: float) -> Result:
        """The result for an exception that came out of the function."""
        return self.failed(classify(error), error, finished_at)

    def failed(self, status: Status, error: BaseException, finished_at: float, *, returned: Any = None) -> Result:
        """A failure: what happened, for machines (`error`) and for people (`stop_reason`, `traceback`)."""
        name, message = type(error).__name__, self.redact(str(error))
        document: dict[str, Any] = {
            "status_code": status.status_code,
            "stop_reason": f"{name}: {message}" if message else name,
            "error": {"kind": status.value, "type": name, "message": message},
            "traceback": self.redact("".join(traceback.format_exception(error))),
        }
        if returned is not None:
            document["returned"] = _as_far_as_possible(returned, self.redact)
        return Result(document | self._metadata(finished_at))

    def _completed(self, value: Any, finished_at: float) -> Result:
        if not isinstance(value, Mapping):
            raise NotSerializable(
                f"the rollout function returned {_a(value)}, not a dict", hint='return {"rewards": …}'
            )
        # Rewards first: the rule for them is stricter, and knows types that JSON does not.
        rewards = normalize_rewards(value.get("rewards"))
        document = jsonable({k: v for k, v in value.items() if k != "rewards"}, redact=self.redact)
        if "rewards" in value:
            document["rewards"] = rewards
        metadata = self._metadata(finished_at)
        shadowed = {k: document.pop(k) for k in list(document) if k in metadata and document[k] != metadata[k]}
        status_code, stop_reason = document.get("status_code", 200), document.get("stop_reason", "end_turn")
        if type(status_code) is not int:
            shadowed["status_code"], status_code = status_code, 200
        if not isinstance(stop_reason, str):
            shadowed["stop_reason"], stop_reason = stop_reason, "end_turn"
        document.update(status_code=status_code, stop_reason=stop_reason)
        if status_code != 200:
            if "error" in document:
                shadowed["error"] = document["error"]
            document["error"] = {"kind": Status.AGENT_ERROR.value, "type": "Returned", "message": stop_reason}
        if shadowed:
            if "shadowed" in document:
                shadowed["shadowed"] = document["shadowed"]
            document["shadowed"] = shadowed
        return Result(document | metadata)

    def _metadata(self, finished_at: float) -> dict[str, Any]:
        return {
            "input_id": self.id.input_id,
            "s3_bucket": self.s3_bucket,
            "result_key": self.id.result_key,
            "payload": self.payload,
            "_rollout": {
                "schema_version": SCHEMA_VERSION,
                "exp_id": self.id.exp_id,
                "session_id": self.id.session_id,
                "request_id": self.request_id,
                "started_at": _iso(self.started_at),
                "finished_at": _iso(finished_at),
            },
        }


def classify(error: BaseException) -> Status:
    """Which status an exception amounts to, looking through what it was raised from.

    >>> classify(ZeroDivisionError()).value
    'agent_error'
    """
    if isinstance(error, (asyncio.CancelledError, concurrent.futures.CancelledError)):
        return Status.CANCELLED
    if isinstance(error, RewardInvalid) or _passed_through_reward(error.__traceback__):
        return Status.REWARD_ERROR
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        kind = type(cause)
        if kind.__name__ in _TRUNCATED:
            return Status.TRUNCATED
        if kind.__name__ in _ENGINE_ERRORS and kind.__module__.startswith(_ENGINE_MODULES):
            return Status.ENGINE_ERROR
        cause = cause.__cause__ or cause.__context__
    return Status.AGENT_ERROR


def _passed_through_reward(tb: TracebackType | None) -> bool:
    """Whether the exception came out of a `RewardFunction`."""
    while tb is not None:
        if isinstance(tb.tb_frame.f_locals.get("self"), RewardFunction):
            return True
        tb = tb.tb_next
    return False


def _as_far_as_possible(value: Any, redact: Redactor) -> Any:
    """What a failed result keeps of a value that could not be stored as it is."""
    if isinstance(value, Mapping):
        return {redact(str(k)): HIDDEN if redact.is_secret(k) else _json_or_repr(v, redact) for k, v in value.items()}
    return _json_or_repr(value, redact)


def _json_or_repr(value: Any, redact: Redactor) -> Any:
    try:
        return jsonable(value, redact=redact)
    except Exception:
        try:
            return redact(repr(value))[:1000]
        except Exception:
            return f"a {type(value).__name__}, whose repr fails"


def _a(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _iso(timestamp: float) -> str:
    return datetime.datetime.fromtimestamp(timestamp, datetime.timezone.utc).isoformat()
