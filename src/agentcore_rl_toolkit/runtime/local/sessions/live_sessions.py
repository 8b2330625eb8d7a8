"""All sessions of a runtime: creates them, counts them, ends those that are idle or too old, keeps their logs few."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from pathlib import Path

from ....errors import RuntimeFault
from ...base import LONGEST_PRINTED
from ..agent_source import AgentSource
from ..template.output_log import read_end
from .local_session import LocalSession, SessionContext
from .places import Places

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_LOGS_KEPT = 1000


class LiveSessions:
    """The sessions of a runtime, prepared ones included."""

    def __init__(self, context: SessionContext, places: Places, max_sessions: int, counts: dict[str, int]) -> None:
        self._context, self._places, self._max_sessions, self._counts = context, places, max_sessions, counts
        self._all: set[LocalSession] = set()
        self._created = 0
        self._logs: dict[str, Path] = {}
        """The latest log of each session id."""
        self._ended: deque[tuple[str, Path]] = deque()
        """Session ids and logs of ended sessions, the oldest first."""
        self._pinging: dict[LocalSession, asyncio.Task[None]] = {}

    @property
    def assigned(self) -> list[LocalSession]:
        """The sessions that have an id and are not quite gone."""
        return sorted((session for session in self._all if session.id), key=lambda session: session.n)

    def create(self, source: AgentSource) -> LocalSession:
        """A new session, to be prepared."""
        self._created += 1
        session = LocalSession(self._created, source, self._context)
        self._all.add(session)
        session.on_ended.append(lambda: self._remove(session))
        return session

    def reserve_place(self) -> None:
        """Reserve a slot for a session that is about to start; raises a fault if none is free."""
        if not self._places.take():
            self._counts["refused"] += 1
            raise RuntimeFault(
                f"all {self._max_sessions} sessions of this machine are in use",
                code="ThrottlingException",
                reason="full",
                retry_after=1,
                hint="try again, or raise max_sessions",
            )

    def release_place(self) -> None:
        self._places.give_back()

    def record_start(self, session: LocalSession, session_id: str) -> None:
        self._counts["started"] += 1
        self._logs.pop(session_id, None)
        self._logs[session_id] = session.log

    def log_of(self, session_id: str) -> Path | None:
        """The log of the latest session whose id starts with the given text, or None."""
        matches = [path for id, path in self._logs.items() if id.startswith(session_id) and path.exists()]
        return matches[-1] if matches else None

    def printed(self, session_id: str) -> bytes | None:
        """The end of a session's log, with what its pipe still holds; None if there was no such session."""
        for session in self._all:
            if session.id == session_id:
                session.drain_output()
        path = self._logs.get(session_id)
        with contextlib.suppress(OSError):
            return None if path is None else read_end(path, LONGEST_PRINTED)
        return None

    async def watch(self) -> None:
        """Once a second: end sessions that are due."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            for session in self.assigned:
                try:
                    self._end_if_due(session, time.monotonic())
                except Exception:
                    logger.exception("session %s could not be watched", session.id)

    def _remove(self, session: LocalSession) -> None:
        self._all.discard(session)
        if not session.id:  # a spare that was never used
            session.log.unlink(missing_ok=True)
            return
        self.release_place()
        self._counts["ended"] += 1
        self._counts["lost"] += session.lost
        self._ended.append((session.id, session.log))
        if len(self._ended) > _LOGS_KEPT:
            self._remove_log(*self._ended.popleft())

    def _end_if_due(self, session: LocalSession, now: float) -> None:
        policy, app = session.source.policy, session.app
        if session.stopping:
            return
        if now - session.created_at > policy.max_lifetime:
            session.end(f"the session reached its maximum lifetime of {policy.max_lifetime:g} s")
        elif app.in_flight == 0 and now - app.used_at > policy.idle_timeout:
            if session not in self._pinging:  # in a task: a session that doesn't answer delays no other
                task = asyncio.get_running_loop().create_task(self._end_if_idle(session))
                self._pinging[session] = task
                task.add_done_callback(lambda _: self._pinging.pop(session, None))
        elif not app.has_started and now - session.created_at > policy.start_timeout:
            session.end(f"the app took no request within {policy.start_timeout:g} s of its start")

    async def _end_if_idle(self, session: LocalSession) -> None:
        if await session.app.ping() == "HealthyBusy":
            session.app.used_at = time.monotonic()
        else:
            session.end(f"the session was idle for {session.source.policy.idle_timeout:g} s")

    def _remove_log(self, session_id: str, path: Path) -> None:
        if self._logs.get(session_id) == path:
            del self._logs[session_id]
        with contextlib.suppress(OSError):
            path.unlink()
