"""The result: the one document that the app stores for a rollout, even if its function failed.

A document is the user's dict plus reserved keys (docs/reference/results.md). The app writes it and the client reads it,
both with this module; storing it is the caller's task. Its size is bounded: `LARGEST_RESULT` bytes in all, a quarter of
that for the copy of the request and for what a failed rollout had returned, and the limits of `describe.py` for texts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import inspect
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..common.object_repr import object_repr
from ..errors import KeyInvalid, NotSerializable, ResultTooLarge, ResultUnreadable, RewardInvalid, StoreError
from ..store.base import Store
from ..types import LARGEST_RESULT, SCHEMA_VERSION, RolloutId, Status
from .reward import RewardFunction, normalize_rewards
from .safe_values.describe import (
    LONGEST_MESSAGE,
    LONGEST_REPR,
    causes,
    message_of,
    short_repr,
    traceback_of,
    type_name,
    with_article,
)
from .safe_values.json_values import DEEPEST, TOO_LARGE_HINT, dump_json, find_excess, jsonable
from .safe_values.redaction import HIDDEN, Redactor

_LARGEST_COPY = LARGEST_RESULT // 4
_MOST_ENTRIES = 1000  # of the dict that a failed rollout had returned
_LEFT_OUT = "left out: too large"
_LONGEST_FAILURE = 4000
_LONGEST_HINT = 1000
_MARKS = {"_rollout", "rewards", "status_code", "stop_reason"}
"""Each result has some of these."""

# Exceptions of model clients by module and name, so that classifying one imports none of them.
_TRUNCATED = (
    ("openai", "LengthFinishReasonError"),
    ("strands.types.exceptions", "MaxTokensReachedException"),
    ("strands.types.exceptions", "ContextWindowOverflowException"),
)
_UNREACHABLE = (
    ("openai", "APIConnectionError"),
    ("anthropic", "APIConnectionError"),
    ("strands.types.exceptions", "ModelThrottledException"),
)
_ANSWERED = (("openai", "APIStatusError"), ("anthropic", "APIStatusError"))


@dataclass(frozen=True, repr=False)
class Result:
    """One stored result: the `document`, and its status, rewards and duration.

    >>> stored = b'{"status_code": 200, "stop_reason": "end_turn", "rewards": 1.0}'
    >>> Result.from_bytes(stored).status.value
    'completed'
    """

    document: dict[str, Any]

    def __repr__(self) -> str:
        shown = {"rewards": self.document.get("rewards")} if self.failure is None else {"failure": self.failure}
        return object_repr(self, self.status.value, **shown, key=self.document.get("result_key"))

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
        """The cause of a failure, cut after a few thousand characters; None for a completed rollout."""
        if self.status is Status.COMPLETED:
            return None
        text = str(self.document.get("stop_reason") or self.status.meaning)
        text = text if len(text) <= _LONGEST_FAILURE else text[:_LONGEST_FAILURE] + "…"
        if isinstance(hint := self.document.get("hint"), str):  # the client adds one for what the agent's sandbox lacks
            text += f"\nhint: {hint[:_LONGEST_HINT]}"
        return text.encode(errors="backslashreplace").decode()  # lone surrogates can't be printed

    @property
    def rewards(self) -> float | list[float] | None:
        """The reward, a list with one reward per turn, or None."""
        return normalize_rewards(self.document.get("rewards"))

    @property
    def seconds(self) -> float | None:
        """How long the function ran, None if the document has no times."""
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
        """Read a stored document; raises `ValueError` for anything else."""
        if excess := find_excess(data):
            raise ValueError(excess)
        try:
            document = json.loads(data, parse_constant=_refuse_constant)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        except MemoryError:
            raise ValueError(f"there is not enough memory for its {len(data):,} bytes") from None
        if not isinstance(document, dict):
            raise ValueError(f"a result is a JSON object, not a {type(document).__name__}")
        if data.count(b"[") + data.count(b"{") > DEEPEST and _is_deeper(document, DEEPEST):
            raise ValueError(_TOO_DEEP)
        return cls(document)


def read_result(store: Store, key: str) -> Result:
    """The result under `key`; raises `ResultUnreadable` if it is too large or malformed: agents are hostile."""
    try:
        return Result.from_bytes(store.get(key, limit=LARGEST_RESULT))
    except StoreError:  # some are ValueErrors too
        raise
    except ValueError as error:
        raise ResultUnreadable(f"{key!r} in {store.url} can't be read as a result: {error}") from None


def stored_results(store: Store, prefix: str = "") -> Iterator[tuple[RolloutId, Result | Exception]]:
    """The results under a prefix, one at a time, or why one can't be read. Files of other kinds are left out."""
    for key in store.keys(prefix):
        try:
            id, result = RolloutId.from_key(key), read_result(store, key)
        except KeyInvalid:
            continue
        except (ResultUnreadable, ValueError) as error:
            yield RolloutId.from_key(key), error
        else:
            if result.document.keys() & _MARKS:
                yield id, result


_TOO_DEEP = f"a result is nested at most {DEEPEST} levels deep"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether containers are nested more than `levels` deep, found without recursion."""
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
    """Builds the one result of a rollout, with the ids and the payload of its request."""

    id: RolloutId
    s3_bucket: str
    payload: Any
    """A copy of the request without its secrets, taken before the agent could change it."""
    redact: Redactor
    request_id: str | None
    started_at: float

    def returned(self, value: Any, finished_at: float) -> Result:
        """The result for a function that returned: a success, or a failure if the value can't be stored."""
        try:
            return self._completed(value, finished_at)
        except RewardInvalid as error:
            return self.failed(Status.REWARD_ERROR, error, finished_at, returned=value)
        except BaseException as error:  # SystemExit too: reading a value runs the agent's code
            return self.failed(Status.AGENT_ERROR, error, finished_at, returned=value)

    def raised(self, error: BaseException, finished_at: float) -> Result:
        try:
            status = classify(error)
        except BaseException:  # the exception's own attributes may raise
            status = Status.AGENT_ERROR
        return self.failed(status, error, finished_at)

    def failed(self, status: Status, error: BaseException, finished_at: float, *, returned: Any = None) -> Result:
        """The result for a failure: `error` for programs, `stop_reason` and `traceback` for people."""
        name, message = type_name(error), message_of(error, self.redact)
        document: dict[str, Any] = {
            "status_code": status.status_code,
            "stop_reason": self.redact.cut(f"{name}: {message}" if message else name, LONGEST_MESSAGE),
            "error": {"kind": status.value, "type": name, "message": message},
            "traceback": traceback_of(error, self.redact),
        }
        if returned is not None:
            document["returned"] = convert_partly(returned, self.redact)
        return Result(document | self._metadata(finished_at))

    def _completed(self, value: Any, finished_at: float) -> Result:
        if not isinstance(value, Mapping):
            hint = "await it" if inspect.isawaitable(value) else 'return {"rewards": …}'
            raise NotSerializable(f"the rollout function returned {with_article(value)}, not a dict", hint=hint)
        # Rewards first: their rule is stricter, and accepts types that JSON does not have.
        rewards = _read_rewards(value)
        document = jsonable(value, redact=self.redact, limit=LARGEST_RESULT, given={"rewards": rewards})
        metadata = self._metadata(finished_at)
        shadowed = {k: document.pop(k) for k in list(document) if k in metadata and document[k] != metadata[k]}
        shadowed |= self._check_status(document)
        if shadowed:
            if "shadowed" in document:
                shadowed["shadowed"] = document["shadowed"]
            document["shadowed"] = shadowed
        result = Result(document | metadata)
        if (size := len(result.to_bytes())) > LARGEST_RESULT:
            message = f"the result has {size:,} bytes of JSON; the limit is {LARGEST_RESULT:,} bytes"
            raise ResultTooLarge(message, hint=TOO_LARGE_HINT)
        return result

    def _check_status(self, document: dict[str, Any]) -> dict[str, Any]:
        """Complete `status_code` and `stop_reason`; gives the user's values that were replaced."""
        replaced: dict[str, Any] = {}
        status_code, stop_reason = document.get("status_code", 200), document.get("stop_reason", "end_turn")
        if type(status_code) is not int:
            replaced["status_code"], status_code = status_code, 200
        if not isinstance(stop_reason, str):
            replaced["stop_reason"], stop_reason = stop_reason, "end_turn"
        elif len(stop_reason) > LONGEST_MESSAGE:
            replaced["stop_reason"], stop_reason = stop_reason, self.redact.cut(stop_reason, LONGEST_MESSAGE)
        document.update(status_code=status_code, stop_reason=stop_reason)
        if status_code != 200:
            if "error" in document:
                replaced["error"] = document["error"]
            document["error"] = {"kind": Status.AGENT_ERROR.value, "type": "Returned", "message": stop_reason}
        return replaced

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
    """The status of a rollout whose function raised `error`, by its type and those of its causes.

    >>> classify(ZeroDivisionError()).value
    'agent_error'
    """
    if isinstance(error, (asyncio.CancelledError, concurrent.futures.CancelledError)):
        return Status.CANCELLED
    if isinstance(error, RewardInvalid) or _passed_through_reward(error):
        return Status.REWARD_ERROR
    for cause in causes(error):
        if _is_any_of(cause, _TRUNCATED):
            return Status.TRUNCATED
        if _is_any_of(cause, _UNREACHABLE) or (_is_any_of(cause, _ANSWERED) and _is_engines_fault(cause)):
            return Status.ENGINE_ERROR
    return Status.AGENT_ERROR


def _is_any_of(error: BaseException, names: tuple[tuple[str, str], ...]) -> bool:
    """Whether it is an instance of one of these classes, of those that the agent has imported."""
    kinds = [getattr(sys.modules.get(module), name, None) for module, name in names]
    return isinstance(error, tuple(kind for kind in kinds if isinstance(kind, type)))


def _is_engines_fault(error: BaseException) -> bool:
    status: int = getattr(error, "status_code", 0)
    return status == 429 or status >= 500


def _passed_through_reward(error: BaseException) -> bool:
    """Whether the exception came out of a `RewardFunction`."""
    tb = error.__traceback__
    while tb is not None:
        if isinstance(tb.tb_frame.f_locals.get("self"), RewardFunction):
            return True
        tb = tb.tb_next
    return False


def _read_rewards(value: Mapping[Any, Any]) -> float | list[float] | None:
    returned = value.get("rewards")
    try:
        return normalize_rewards(returned)
    except RewardInvalid:
        raise
    except BaseException as error:
        message = f"rewards is {with_article(returned)} that raises {type_name(error)} when it is read"
        raise RewardInvalid(message) from error


def copy_request(payload: Mapping[str, Any], redact: Redactor) -> Any:
    """The request as it is stored: without its secrets, and without fields that are too large."""
    try:
        copy = jsonable(payload, redact=redact, limit=_LARGEST_COPY)
        if len(dump_json(copy)) <= _LARGEST_COPY:
            return copy
    except NotSerializable:
        pass
    ids = {name: payload[name] for name in ("_rollout", "metadata") if name in payload}
    return convert_partly(ids | dict(payload), redact)  # the ids first


def convert_partly(value: Any, redact: Redactor) -> Any:
    """As much as can be stored of a value that can't be stored whole: each entry of a mapping, or its repr."""
    try:
        if isinstance(value, Mapping):
            return _convert_entries(value, redact)
        return _convert_or_describe(value, redact, _LARGEST_COPY)[0]
    except BaseException:
        return short_repr(value, redact=redact)


def _convert_entries(value: Mapping[Any, Any], redact: Redactor) -> dict[str, Any]:
    left, kept = _LARGEST_COPY, {}
    for key, item in itertools.islice(value.items(), _MOST_ENTRIES):
        name = key if isinstance(key, str) else short_repr(key, redact=redact)
        shown = redact.cut(name, LONGEST_REPR)
        if redact.hides(name, item, value):
            kept[shown] = HIDDEN
            continue
        kept[shown], size = _convert_or_describe(item, redact, left)
        left = max(0, left - size)
    return kept


def _convert_or_describe(value: Any, redact: Redactor, limit: int) -> tuple[Any, int]:
    """The value as JSON, or a text about it; and its size."""
    try:
        converted = jsonable(value, redact=redact, limit=limit)
        size = len(dump_json(converted))
        return (converted, size) if size <= limit else (_LEFT_OUT, 0)
    except ResultTooLarge:
        return _LEFT_OUT, 0
    except BaseException:
        return short_repr(value, redact=redact), 0


def _iso(timestamp: float) -> str:
    return datetime.datetime.fromtimestamp(timestamp, datetime.timezone.utc).isoformat()
