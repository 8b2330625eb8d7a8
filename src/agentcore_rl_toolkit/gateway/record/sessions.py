"""The gateway's sessions: opened, found, closed, forgotten. A process that was killed finds them in its log."""

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

_GONE_REMEMBERED = 10_000


class Sessions:
    """All sessions there are."""

    def __init__(self, log: Log | None = None, *, most: int = 100_000) -> None:
        self._log = log
        self._most = most
        self._known: dict[str, Session] = {}
        self._gone: OrderedDict[str, str] = OrderedDict(log.removed if log is not None else {})
        self.opened = 0
        """How many were opened since the start."""

    def open(self, settings: SessionSettings) -> Session:
        """Open a session."""
        if len(self._known) >= self._most:
            raise GatewayFault(
                f"{len(self._known)} sessions are open", status=503, code="too_many_sessions", retry_after=10
            )
        if self._log is not None:
            self._log.check(0)
            self._log.check_folder()
        if self._log is not None and self._log.full:
            more = self._log.make_room(self._disposable())
            if self._log.full:
                wait = 1 if more else 60
                raise GatewayFault(
                    "the log has no room for another session", status=503, code="log_full", retry_after=wait
                )
        if settings.session_id in self._known or (self._log is not None and self._log.has(settings.session_id)):
            raise GatewayFault(f"there is a session {settings.session_id!r} already", status=409, code="session_exists")
        session = Session(settings, secrets.token_urlsafe(24), time.time())
        if self._log is not None:
            self._log.write_session(session)
            try:
                self._log.check(0)
            except GatewayFault:
                self._log.remove(session.id)
                raise
        self._known[session.id] = session
        self._gone.pop(session.id, None)
        self.opened += 1
        return session

    def get(self, session_id: str) -> Session:
        """A session by its id, closed ones included; from the log, if this process is not the one that opened it."""
        session = self._known.get(session_id)
        if session is None and session_id not in self._gone and self._log is not None and self._log.has(session_id):
            session = self._log.load(session_id)
            if session is not None:
                self._known[session_id] = session
        if session is None:
            reason = self._gone.get(session_id)
            if reason == "expired":
                raise GatewayFault(f"session {session_id!r} has expired", status=410, code="session_expired")
            if reason == "deleted":
                raise GatewayFault(f"session {session_id!r} was closed", status=410, code="session_closed")
            raise GatewayFault(
                f"there is no session {session_id!r}", status=404, code="session_unknown", hint="was it opened here?"
            )
        if session.idle_until_expired < 0 and not session.in_flight:
            self._forget(session, "expired")
            raise GatewayFault(f"session {session_id!r} has expired", status=410, code="session_expired")
        return session

    def for_agent(self, session_id: str, key: str) -> Session:
        """A session that an agent with the right key may use."""
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
        """Close a session and forget its turns. Calls still in flight end as they would, and are recorded nowhere."""
        self._forget(self.get(session_id), "deleted")

    def end(self, session: Session) -> None:
        """Take no more calls; turns stay readable."""
        if not session.closed:
            session.closed = True
            if self._log is not None:
                self._log.write(session.id, "closed")

    def put_result(self, session: Session, result: Any) -> None:
        if session.gone:  # while the result was read
            raise GatewayFault(f"session {session.id!r} was closed", status=410, code="session_closed")
        session.result = result
        session.used = time.monotonic()
        if self._log is not None:
            self._log.write(session.id, "result", result=result)

    def sweep(self) -> None:
        """Forget what has expired."""
        for session in [s for s in self._known.values() if s.idle_until_expired < 0 and not s.in_flight]:
            self._forget(session, "expired")

    def __len__(self) -> int:
        return len(self._known)

    def _forget(self, session: Session, reason: str) -> None:
        session.closed = session.gone = True
        self._known.pop(session.id, None)
        self._gone[session.id] = reason
        while len(self._gone) > _GONE_REMEMBERED:
            self._gone.popitem(last=False)
        if self._log is not None:
            self._log.remove(session.id, reason)

    def _disposable(self) -> Iterator[str]:
        assert self._log is not None
        live = {session.id for session in self._known.values() if not session.closed}
        for session_id in self._log.sessions():
            if session_id not in live:
                stored = self._known.pop(session_id, None) or self._log.load(session_id)
                if stored is None or stored.closed or stored.idle_until_expired < 0:
                    self._gone[session_id] = "expired"
                    yield session_id
