"""The gateway's sessions: opened, found, closed, removed. After a restart they are found in the log."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from ...errors import GatewayFault
from .log import Log
from .session import Session, SessionSettings

_REMOVED_REMEMBERED = 10_000


class SessionTable:
    def __init__(self, log: Log | None = None, *, most: int = 100_000) -> None:
        self._log = log
        self._most = most
        self._sessions: dict[str, Session] = {}
        self._removed: OrderedDict[str, str] = OrderedDict(log.removed if log is not None else {})
        self.opened = 0
        """How many were opened since the gateway started."""

    def __len__(self) -> int:
        return len(self._sessions)

    def latest(self, most: int) -> list[dict[str, Any]]:
        """The sessions in memory that were opened last, the newest first, for people to look at."""
        chosen = sorted(self._sessions.values(), key=lambda session: -session.created)[:most]
        return [
            {
                "session_id": session.id,
                "input_id": session.settings.input_id,
                "created_at": session.created,
                "closed": session.closed,
                "turns": len(session.tree.turns),
                "in_flight": session.in_flight,
            }
            for session in chosen
        ]

    def open(self, settings: SessionSettings) -> Session:
        if len(self._sessions) >= self._most:
            raise GatewayFault(
                f"{len(self._sessions)} sessions are open", status=503, code="too_many_sessions", retry_after=10
            )
        if self._log is not None:
            self._check_log(self._log)
        if settings.session_id in self._sessions or (self._log is not None and self._log.has(settings.session_id)):
            raise GatewayFault(f"session {settings.session_id!r} exists already", status=409, code="session_exists")
        session = Session(settings, secrets.token_urlsafe(24), time.time())
        if self._log is not None:
            self._write(self._log, session)
        self._sessions[session.id] = session
        self._removed.pop(session.id, None)
        self.opened += 1
        return session

    def open_once(self, settings: SessionSettings) -> Session:
        """Open a session, or give the open one of the same id and settings: the request may be a repeated one."""
        try:
            return self.open(settings)
        except GatewayFault as fault:
            known = self.get(settings.session_id) if fault.code == "session_exists" else None
            if known is None or known.closed or known.settings != settings:
                raise
            return known

    def has(self, session_id: str) -> bool:
        """Whether a session is in memory or in the log, or was and is remembered."""
        known = session_id in self._sessions or session_id in self._removed
        return known or (self._log is not None and self._log.has(session_id))

    def get(self, session_id: str) -> Session:
        """A session by its id, closed ones included; from the log, if another process opened it."""
        session = self._sessions.get(session_id)
        if session is None and session_id not in self._removed and self._log is not None and self._log.has(session_id):
            session = self._log.load(session_id)
            if session is not None:
                self._sessions[session_id] = session
        if session is None:
            raise self._missing(session_id)
        if session.idle_until_expired < 0 and not session.in_flight:
            self._remove(session, "expired")
            raise self._missing(session_id)
        return session

    def for_agent(self, session_id: str, key: str) -> Session:
        """An open session, for an agent that has its key."""
        session = self.get(session_id)
        if not hmac.compare_digest(session.key.encode(), key.encode("utf-8", "surrogatepass")):
            raise GatewayFault(
                f"the key in the URL is not that of session {session_id!r}", status=401, code="invalid_key"
            )
        if session.closed:
            raise GatewayFault(f"session {session_id!r} is closed", status=410, code="session_closed")
        session.used = time.monotonic()
        return session

    def delete(self, session_id: str) -> None:
        """Close a session and forget its turns. Calls in flight end as usual, but are not recorded."""
        self._remove(self.get(session_id), "deleted")

    def end(self, session: Session) -> None:
        """Refuse further calls; turns stay readable."""
        if not session.closed:
            session.closed = True
            if self._log is not None:
                self._log.write(session.id, "closed")

    def put_result(self, session: Session, result: Any) -> None:
        if session.gone:  # while the result was read
            raise self._missing(session.id)
        session.result = result
        session.result_changed.set()
        session.used = time.monotonic()
        if self._log is not None:
            self._log.write(session.id, "result", result=result)

    def sweep(self) -> None:
        for session in [s for s in self._sessions.values() if s.idle_until_expired < 0 and not s.in_flight]:
            self._remove(session, "expired")

    def _missing(self, session_id: str) -> GatewayFault:
        reason = self._removed.get(session_id)
        if reason == "expired":
            return GatewayFault(f"session {session_id!r} has expired", status=410, code="session_expired")
        if reason == "deleted":
            return GatewayFault(f"session {session_id!r} was closed", status=410, code="session_closed")
        return GatewayFault(
            f"session {session_id!r} does not exist",
            status=404,
            code="session_unknown",
            hint="was it opened on this gateway?",
        )

    def _check_log(self, log: Log) -> None:
        log.check_session()
        if log.full:
            log.make_room(self._disposable(log))
        if log.full:
            raise GatewayFault(
                "the log is full and can't hold another session",
                status=503,
                code="log_full",
                hint="close or delete sessions that are over",
                retry_after=60,
            )

    def _write(self, log: Log, session: Session) -> None:
        log.write_session(session)
        try:
            log.check_session()
        except GatewayFault:
            log.remove(session.id)
            raise

    def _remove(self, session: Session, reason: str) -> None:
        session.closed = session.gone = True
        self._sessions.pop(session.id, None)
        self._remember_removed(session.id, reason)
        if self._log is not None:
            self._log.remove(session.id, reason)

    def _remember_removed(self, session_id: str, reason: str) -> None:
        self._removed[session_id] = reason
        while len(self._removed) > _REMOVED_REMEMBERED:
            self._removed.popitem(last=False)

    def _disposable(self, log: Log) -> Iterator[str]:
        """Sessions that are closed or expired, the oldest first."""
        used = {session.id for session in self._sessions.values() if not session.closed}
        for session_id in [name for name in log.sessions() if name not in used]:
            session = self._sessions.get(session_id) or log.load(session_id)
            if session is None or session.closed or session.idle_until_expired < 0:
                self._sessions.pop(session_id, None)
                self._remember_removed(session_id, "expired")
                yield session_id
