"""The rollouts a session has taken on and not yet left a result for, so that none can be lost with the session."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import AgentCoreRLError, SessionLost
from ..jsonable import jsonable
from ..redact import Redactor
from ..result import ResultBuilder
from ..store import open_store
from ..store.retry import retry
from ..types import RolloutId, Status

logger = logging.getLogger(__name__)

_STORE_SECONDS = 10.0


@dataclass(frozen=True)
class _Accepted:
    id: RolloutId
    store: str
    sqs_url: str | None
    payload: Any
    at: float


class AcceptedRollouts:
    """One session's; a place is `store/key`."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Accepted] = {}
        self._stores: set[str] = set()

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
        place = f"{store}/{id.result_key}"
        self._stores.add(store)
        self._waiting.setdefault(place, _Accepted(id, store, settings.get("sqs_url"), payload, time.time()))
        return place

    def refused(self, place: str | None) -> None:
        """The app did not take it on after all."""
        self._waiting.pop(place or "", None)

    def was_stored(self, place: str) -> None:
        """Its result is there. The store may have been named as a URL."""
        for name in (place, f"s3://{place}", f"file://{place}"):
            self._waiting.pop(name, None)

    def may_use(self, store: str) -> bool:
        """Whether a request has named that store, as a path or as a URL."""
        return store in self._stores or f"file://{store}" in self._stores

    async def report_lost(self, reason: str, environ: dict[str, str]) -> int:
        """Store `session_lost` for every one that has no result; gives how many had none. What is there stays."""
        lost = 0
        for rollout in self._waiting.values():
            redact = Redactor.of(rollout.payload)
            payload = jsonable(rollout.payload, redact=redact)
            builder = ResultBuilder(rollout.id, rollout.store, payload, redact, None, rollout.at)
            result = builder.failed(Status.SESSION_LOST, SessionLost(reason), time.time())
            try:
                lost += await asyncio.to_thread(_store_once, rollout, result.to_bytes(), environ)
            except AgentCoreRLError as problem:
                logger.error("%s was lost, and so is the report of it: %s", rollout.id.result_key, problem)
        return lost


def _store_once(rollout: _Accepted, data: bytes, environ: dict[str, str]) -> bool:
    key, store = rollout.id.result_key, open_store(rollout.store, sqs_url=rollout.sqs_url, environ=environ)
    try:
        stored = retry(lambda: store.put_if_absent(key, data), seconds=_STORE_SECONDS)
        if stored:
            store.announce(key)
    finally:
        store.close()
    return stored
