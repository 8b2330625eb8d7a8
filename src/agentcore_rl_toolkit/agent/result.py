"""The result: what the entrypoint returned, or how it failed, as the document that lands in the store.

A document is the user's dict plus the keys in `RESERVED`. It is written by the app and read by the client; both go
through this module. Pure: nothing here stores anything.

There is a result whatever the function returned or raised, and it has a bound: a document has at most `LARGEST_RESULT`
bytes, messages and tracebacks as many characters as `failure.py` says. The copies of the request and of what a failed
rollout had returned have at most a quarter of it; entries beyond are left out one by one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..common.describe import SHORT, article, full_type_name, plain_text, short_repr, type_name
from ..errors import NotSerializable, ResultTooLarge, RewardInvalid
from ..types import LARGEST_RESULT, SCHEMA_VERSION, RolloutId, Status
from .failure import LONGEST_MESSAGE, chain, message_of, traceback_frames, traceback_of
from .json_values import DEEPEST, TOO_LARGE_HINT, dump_json, jsonable
from .redaction import HIDDEN, Redactor
from .reward import RewardFunction, normalize_rewards

_LARGEST_COPY = LARGEST_RESULT // 4
_MOST_ENTRIES = 1000  # of what a failed rollout had returned
_LEFT_OUT = "left out: too large"
_LONGEST_FAILURE = 4000
_LONGEST_HINT = 1000

RESERVED = {
    "status_code": "200, or 500 on failure; a number that the user returns is kept",
    "stop_reason": "`end_turn`, or what went wrong; a string that the user returns is kept",
    "input_id": "the data row",
    "s3_bucket": "the store, as the request named it",
    "result_key": "this document's key in the store",
    "payload": "the request, without its secrets and without fields that are too large",
    "error": "on failure: `kind` (a `Status`), `type`, `message`",
    "traceback": "on failure: the Python traceback",
    "shadowed": "values the user returned under a reserved key, kept here",
    "returned": "on a failure after the function returned: what it had returned, as far as it can be stored",
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
    _data: bytes | None = field(default=None, init=False, repr=False, compare=False)

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
    def failure(self) -> str | None:
        """What went wrong, cut off after some thousand characters; None if nothing did."""
        if self.status is Status.COMPLETED:
            return None
        text = str(self.document.get("stop_reason") or self.status.meaning)
        text = text if len(text) <= _LONGEST_FAILURE else text[:_LONGEST_FAILURE] + "…"
        if isinstance(hint := self.document.get("hint"), str):  # the client's, of what the agent's sandbox lacks
            text += f"\nhint: {hint[:_LONGEST_HINT]}"
        return text.encode(errors="backslashreplace").decode()  # half a character can't be written everywhere

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
        return dump_json(self.document) if self._data is None else self._data

    @classmethod
    def from_bytes(cls, data: bytes) -> Result:
        """Read a stored document; whatever is wrong with it is a `ValueError`."""
        try:
            document = json.loads(data, parse_constant=_no_number)
        except RecursionError:
            raise ValueError(f"a result is nested at most {DEEPEST} levels deep") from None
        except MemoryError:
            raise ValueError(f"there is not enough memory for its {len(data):,} bytes") from None
        if not isinstance(document, dict):
            raise ValueError(f"a result is a JSON object, not a {type(document).__name__}")
        if data.count(b"[") + data.count(b"{") > DEEPEST and _is_deeper(document, DEEPEST):
            raise ValueError(f"a result is nested at most {DEEPEST} levels deep")
        return cls(document)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether containers are nested more than so many levels deep. Recursion is what it guards against."""
    level: list[Any] = [value]
    for _ in range(levels + 1):
        inner: list[Any] = []
        for container in level:
            items = container.values() if isinstance(container, dict) else container
            inner += [item for item in items if isinstance(item, (dict, list))]
        if not inner:
            return False
        level = inner
    return True


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
        except BaseException as error:  # SystemExit too: reading a value runs the agent's code
            return self.failed(Status.AGENT_ERROR, error, finished_at, returned=value)

    def raised(self, error: BaseException, finished_at: float) -> Result:
        """The result for an exception that came out of the function."""
        return self.failed(classify(error), error, finished_at)

    def failed(self, status: Status, error: BaseException, finished_at: float, *, returned: Any = None) -> Result:
        """A failure: what happened, for machines (`error`) and for people (`stop_reason`, `traceback`)."""
        name, message = type_name(error), message_of(error, self.redact)
        document: dict[str, Any] = {
            "status_code": status.status_code,
            "stop_reason": self.redact.cut(f"{name}: {message}" if message else name, LONGEST_MESSAGE),
            "error": {"kind": status.value, "type": name, "message": message},
            "traceback": traceback_of(error, self.redact),
        }
        if returned is not None:
            document["returned"] = as_far_as_possible(returned, self.redact)
        return _dumped(document | self._metadata(finished_at))

    def _completed(self, value: Any, finished_at: float) -> Result:
        if not isinstance(value, Mapping):
            raise NotSerializable(
                f"the rollout function returned {article(value)}, not a dict", hint='return {"rewards": …}'
            )
        # Rewards first: the rule for them is stricter, and knows types that JSON does not.
        rewards = _rewards_of(value)
        document = jsonable(value, redact=self.redact, limit=LARGEST_RESULT, given={"rewards": rewards})
        metadata = self._metadata(finished_at)
        shadowed = {k: document.pop(k) for k in list(document) if k in metadata and document[k] != metadata[k]}
        status_code, stop_reason = document.get("status_code", 200), document.get("stop_reason", "end_turn")
        if type(status_code) is not int:
            shadowed["status_code"], status_code = status_code, 200
        if not isinstance(stop_reason, str):
            shadowed["stop_reason"], stop_reason = stop_reason, "end_turn"
        elif len(stop_reason) > LONGEST_MESSAGE:
            shadowed["stop_reason"], stop_reason = stop_reason, self.redact.cut(stop_reason, LONGEST_MESSAGE)
        document.update(status_code=status_code, stop_reason=stop_reason)
        if status_code != 200:
            if "error" in document:
                shadowed["error"] = document["error"]
            document["error"] = {"kind": Status.AGENT_ERROR.value, "type": "Returned", "message": stop_reason}
        if shadowed:
            if "shadowed" in document:
                shadowed["shadowed"] = document["shadowed"]
            document["shadowed"] = shadowed
        result = _dumped(document | metadata)
        if (size := len(result.to_bytes())) > LARGEST_RESULT:
            said = f"the result has {size:,} bytes of JSON; the limit is {LARGEST_RESULT:,} bytes"
            raise ResultTooLarge(said, hint=TOO_LARGE_HINT)
        return result

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
    if isinstance(error, RewardInvalid) or _passed_through_reward(error):
        return Status.REWARD_ERROR
    for cause in chain(error):
        name = type_name(cause)
        if name in _TRUNCATED:
            return Status.TRUNCATED
        if name in _ENGINE_ERRORS and full_type_name(cause).startswith(_ENGINE_MODULES):
            return Status.ENGINE_ERROR
    return Status.AGENT_ERROR


def copy_of_request(payload: Any, redact: Redactor) -> Any:
    """The request as it is stored: without its secrets, and without fields that are too large."""
    try:
        copy = jsonable(payload, redact=redact, limit=_LARGEST_COPY)
        if len(dump_json(copy)) <= _LARGEST_COPY:
            return copy
    except ResultTooLarge:
        pass
    ids_first = {"_rollout": payload["_rollout"]} | payload
    return as_far_as_possible(ids_first, redact)


def _passed_through_reward(error: BaseException) -> bool:
    """Whether the exception came out of a `RewardFunction`."""
    for tb in traceback_frames(error):
        names = tb.tb_frame.f_locals  # in a class's body, this can be an object of any kind
        if type(names) is dict and issubclass(type(names.get("self")), RewardFunction):
            return True
    return False


def _rewards_of(value: Mapping[Any, Any]) -> float | list[float] | None:
    returned = value.get("rewards")
    try:
        return normalize_rewards(returned)
    except RewardInvalid:
        raise
    except BaseException as error:
        raise RewardInvalid(f"rewards is {article(returned)} that raises {type_name(error)} when it is read") from error


def _dumped(document: dict[str, Any]) -> Result:
    result = Result(document)
    object.__setattr__(result, "_data", dump_json(document))  # it may be large: once is enough
    return result


def as_far_as_possible(value: Any, redact: Redactor) -> Any:
    """What is kept of a value that could not be stored as it is: of a mapping, each entry for itself."""
    try:
        if isinstance(value, Mapping):
            return _entries(value, redact)
        return _json_or_repr(value, redact, _LARGEST_COPY)[0]
    except BaseException:
        return short_repr(value, SHORT, redact.cut)


def _entries(value: Mapping[Any, Any], redact: Redactor) -> dict[str, Any]:
    left, kept = _LARGEST_COPY, {}
    for key, item in itertools.islice(value.items(), _MOST_ENTRIES):
        name = plain_text(key) if isinstance(key, str) else short_repr(key, SHORT, redact.cut)
        shown = redact.cut(name, SHORT)
        kept[shown], size = (HIDDEN, 0) if redact.hides(name, item, value) else _json_or_repr(item, redact, left)
        left = max(0, left - size)
    return kept


def _json_or_repr(value: Any, redact: Redactor, limit: int) -> tuple[Any, int]:
    """The value as JSON, or else words for it; and its size."""
    try:
        converted = jsonable(value, redact=redact, limit=limit)
        size = len(dump_json(converted))
        return (converted, size) if size <= limit else (_LEFT_OUT, 0)
    except ResultTooLarge:
        return _LEFT_OUT, 0
    except BaseException:
        return short_repr(value, SHORT, redact.cut), 0


def _iso(timestamp: float) -> str:
    return datetime.datetime.fromtimestamp(timestamp, datetime.timezone.utc).isoformat()
