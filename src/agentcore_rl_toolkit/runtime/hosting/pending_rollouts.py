"""A session's pending rollouts: requested, and without a result yet. If the session ends, each gets `session_lost`.

A runtime can't read the `secret_keys` that are written in the agent's code. Of `_rollout` it therefore stores only the
toolkit's own fields, and redacts the values of all others wherever they occur. It also redacts the names listed in
`AGENTCORE_RL_SECRET_KEYS` of the agent's environment, as the app does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from ...agent.result import Result, ResultBuilder, convert_partly, copy_request
from ...agent.safe_values.redaction import Redactor
from ...config import AgentCoreConfig
from ...errors import AgentCoreRLError, NotSerializable, SessionLost
from ...store import open_store
from ...store.retry import retry
from ...types import RolloutId, Status

logger = logging.getLogger(__name__)

_STORE_SECONDS = 10.0
_SECRET_KEYS = "AGENTCORE_RL_SECRET_KEYS"
_OUR_FIELDS = frozenset(
    {"exp_id", "input_id", "session_id", "s3_bucket", "sqs_url", "base_url", "model_id", "sampling_params"}
)


@dataclass(frozen=True)
class _Pending:
    id: RolloutId
    store: str
    sqs_url: str | None
    payload: Any
    at: float


class PendingRollouts:
    """The rollouts of one session, each under its result's location as `result_location` writes it."""

    def __init__(self) -> None:
        self._pending: dict[str, _Pending] = {}
        self._own: dict[str, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, payload: Mapping[str, Any], session_id: str) -> str | None:
        """Remember the rollout that a request asks for and return its location; None if it asks for none."""
        settings = payload.get("_rollout")
        if not isinstance(settings, dict) or not isinstance(settings.get("s3_bucket"), str):
            return None
        try:
            id = RolloutId(str(settings["exp_id"]), str(settings["input_id"]), session_id)
        except (KeyError, AgentCoreRLError):
            return None  # the app refuses it with a better message
        store = settings["s3_bucket"]
        location = result_location(store, id.result_key)
        if location not in self._own:
            self._own[location] = (store, id.result_key)
            self._pending[location] = _Pending(id, store, settings.get("sqs_url"), payload, time.time())
        return location

    def remove_refused(self, location: str | None) -> None:
        """Forget a rollout that the app refused."""
        if location is not None and self._pending.pop(location, None) is not None:
            del self._own[location]

    def mark_stored(self, location: str) -> None:
        self._pending.pop(location, None)

    def store_of(self, location: str) -> str | None:
        """The store of one of this session's rollouts, as its caller named it; None for other locations."""
        return self._own[location][0] if location in self._own else None

    def results_in(self, store: str) -> list[tuple[str, str]]:
        """Store (as its caller named it) and key of each of the session's results in one store."""
        return [
            (name, key) for name, key in self._own.values() if result_location(name, key) == result_location(store, key)
        ]

    async def report_lost(self, reason: str, environ: dict[str, str]) -> int:
        """Store `session_lost` for every rollout without a result, and return how many there were."""
        lost = 0
        for rollout in list(self._pending.values()):
            try:
                data = _lost_result(rollout, reason, environ).to_bytes()
                lost += await asyncio.to_thread(_store_once, rollout, data, environ)
            except AgentCoreRLError as problem:
                logger.error("can't store that %s was lost: %s", rollout.id.result_key, problem)
            except Exception:
                logger.exception("can't store that %s was lost", rollout.id.result_key)
        return lost


def result_location(store: str, key: str) -> str:
    """One spelling for a result's place, however its store was named.

    >>> result_location("bucket", "e/i/s.json") == result_location("s3://bucket/", "e/i/s.json")
    True
    """
    if store.startswith("file:") or os.path.isabs(store):
        path = unquote(urlsplit(store).path) if store.startswith("file:") else store
        return f"{os.path.normpath(path)}/{key}"
    return "s3://" + "/".join(part for part in (store.removeprefix("s3://").strip("/"), key) if part)


def _lost_result(rollout: _Pending, reason: str, environ: Mapping[str, str]) -> Result:
    configured = AgentCoreConfig.load(environ={_SECRET_KEYS: environ.get(_SECRET_KEYS, "")}).secret_keys
    others = [name for name in rollout.payload["_rollout"] if name not in _OUR_FIELDS]
    redact = Redactor.of(rollout.payload, (*configured, *others))
    try:
        payload = copy_request(rollout.payload, redact)
    except NotSerializable:
        payload = convert_partly(rollout.payload, redact)
    builder = ResultBuilder(rollout.id, rollout.store, payload, redact, None, rollout.at)
    return builder.failed(Status.SESSION_LOST, SessionLost(reason), time.time())


def _store_once(rollout: _Pending, data: bytes, environ: dict[str, str]) -> bool:
    key, store = rollout.id.result_key, open_store(rollout.store, sqs_url=rollout.sqs_url, environ=environ)
    try:
        stored = retry(lambda: store.put_if_absent(key, data), seconds=_STORE_SECONDS)
        try:
            if stored:
                store.announce(key)
        except AgentCoreRLError as problem:  # polling finds the result
            logger.warning("%s is stored but could not be announced: %s", key, problem)
    finally:
        store.close()
    return stored
