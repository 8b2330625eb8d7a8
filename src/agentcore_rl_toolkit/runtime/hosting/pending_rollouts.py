"""The rollouts a session has taken on and not yet left a result for, so that none can be lost with the session.

A runtime doesn't read the agent's code, so it doesn't know the `secret_keys` that are written there. Of `_rollout` it
therefore stores only the fields that are the toolkit's own, and hides what the others hold wherever it turns up. The
names in `AGENTCORE_RL_SECRET_KEYS` of the agent's environment hold for all of the request, as in the app.
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

from ...agent.redaction import Redactor
from ...agent.result import Result, ResultBuilder, convert_partly, copy_request
from ...config import AgentCoreConfig
from ...errors import AgentCoreRLError, NotSerializable, SessionLost
from ...store import Store, open_store
from ...store.retry import retry
from ...types import RolloutId, Status

logger = logging.getLogger(__name__)

_STORE_SECONDS = 10.0
_SECRET_KEYS = "AGENTCORE_RL_SECRET_KEYS"
_OUR_FIELDS = frozenset(
    {"exp_id", "input_id", "session_id", "s3_bucket", "sqs_url", "base_url", "model_id", "sampling_params"}
)


@dataclass(frozen=True)
class _Accepted:
    id: RolloutId
    store: str
    sqs_url: str | None
    payload: Any
    at: float


class AcceptedRollouts:
    """One session's; a place is where a result lands, as `place_of` writes it."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Accepted] = {}
        self._own: dict[str, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def accept(self, payload: Mapping[str, Any], session_id: str) -> str | None:
        """Remember the rollout that a request asks for, if it does; gives its place."""
        settings = payload.get("_rollout")
        if not isinstance(settings, dict) or not isinstance(settings.get("s3_bucket"), str):
            return None
        try:
            id = RolloutId(str(settings["exp_id"]), str(settings["input_id"]), session_id)
        except (KeyError, AgentCoreRLError):
            return None  # the app refuses it with a better message
        store = settings["s3_bucket"]
        place = place_of(store, id.result_key)
        if place not in self._own:
            self._own[place] = (store, id.result_key)
            self._waiting[place] = _Accepted(id, store, settings.get("sqs_url"), payload, time.time())
        return place

    def refused(self, place: str | None) -> None:
        """The app did not take it on after all."""
        if self._waiting.pop(place or "", None) is not None:
            self._own.pop(place or "", None)

    def was_stored(self, place: str) -> None:
        """Its result is there."""
        self._waiting.pop(place, None)

    def store_of(self, place: str) -> str | None:
        """The store of a rollout that this session has accepted, as its caller named it; None if there is none."""
        return self._own[place][0] if place in self._own else None

    def results_in(self, store: str) -> list[tuple[str, str]]:
        """Store, as its caller named it, and key of each of the session's own results in one store."""
        return [(name, key) for name, key in self._own.values() if place_of(name, key) == place_of(store, key)]

    async def report_lost(self, reason: str, environ: dict[str, str]) -> int:
        """Store `session_lost` for every one that has no result; gives how many had none. What is there stays."""
        lost = 0
        for rollout in list(self._waiting.values()):
            try:
                data = _lost_result(rollout, reason, environ).to_bytes()
                lost += await asyncio.to_thread(_store_once, rollout, data, environ)
            except AgentCoreRLError as problem:
                logger.error("%s was lost, and so is the report of it: %s", rollout.id.result_key, problem)
            except Exception:
                logger.exception("%s was lost, and so is the report of it", rollout.id.result_key)
        return lost


def place_of(store: str, key: str) -> str:
    """Where a result lands, however its store was named.

    >>> place_of("bucket", "e/i/s.json") == place_of("s3://bucket/", "e/i/s.json")
    True
    """
    if store.startswith("file:") or os.path.isabs(store):
        path = unquote(urlsplit(store).path) if store.startswith("file:") else store
        return f"{os.path.normpath(path)}/{key}"
    return "s3://" + "/".join(part for part in (store.removeprefix("s3://").strip("/"), key) if part)


def _lost_result(rollout: _Accepted, reason: str, environ: Mapping[str, str]) -> Result:
    configured = AgentCoreConfig.load(environ={_SECRET_KEYS: environ.get(_SECRET_KEYS, "")}).secret_keys
    others = [name for name in rollout.payload["_rollout"] if name not in _OUR_FIELDS]
    redact = Redactor.of(rollout.payload, (*configured, *others))
    try:
        payload = copy_request(rollout.payload, redact)
    except NotSerializable:  # the app would have refused it, had it lived
        payload = convert_partly(rollout.payload, redact)
    builder = ResultBuilder(rollout.id, rollout.store, payload, redact, None, rollout.at)
    return builder.failed(Status.SESSION_LOST, SessionLost(reason), time.time())


def _store_once(rollout: _Accepted, data: bytes, environ: dict[str, str]) -> bool:
    key, store = rollout.id.result_key, open_store(rollout.store, sqs_url=rollout.sqs_url, environ=environ)
    try:
        stored = retry(lambda: store.put_if_absent(key, data), seconds=_STORE_SECONDS)
        if stored:
            _announce(store, key)
    finally:
        store.close()
    return stored


def _announce(store: Store, key: str) -> None:
    try:
        store.announce(key)
    except AgentCoreRLError as problem:  # it is there, and will be found
        logger.warning("%s is stored, but could not be announced: %s", key, problem)
