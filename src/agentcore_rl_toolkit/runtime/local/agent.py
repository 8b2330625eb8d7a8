"""One agent of a local runtime, and its sessions by session id."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

from ...errors import RuntimeFault
from ..base import SESSION_HEADER, CommandEvent, Invocation
from ..hosting.request_checks import check_command, check_payload, check_session_id, rollout_request
from .agent_source import AgentSource
from .server.access import check_store
from .sessions.egress import TokenBucket
from .sessions.live_sessions import LiveSessions
from .sessions.local_session import LocalSession
from .sessions.pool import SessionPool
from .template.template_keeper import Machine, TemplateKeeper


class LocalAgent:
    """One agent; a `Runtime`."""

    def __init__(
        self,
        source: AgentSource,
        machine: Machine,
        table: LiveSessions,
        *,
        spares: int,
    ) -> None:
        self.source = source
        self.keeper = TemplateKeeper(source, machine)
        self.sessions: dict[str, LocalSession] = {}
        self._pool = SessionPool(self.keeper, lambda: table.create(source), spares)
        self._table = table
        self._rate = RateLimit(source.tps_limit)
        self._starting: dict[str, asyncio.Task[LocalSession]] = {}

    @property
    def arn(self) -> str:
        return self.source.arn

    async def invoke(
        self,
        session_id: str,
        payload: bytes,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        stores: Sequence[str] | None = None,
    ) -> Invocation:
        """Send `payload` to the session's app; the first invoke starts the session.

        `stores` are the folders that the payload may name as its store; None, for the user's own code, allows all.
        """
        check_session_id(session_id)
        check_payload(payload)
        self._rate.check()
        parsed = rollout_request(payload)
        if stores is not None:
            check_store(parsed, stores)
        sent = {"Content-Type": content_type, SESSION_HEADER: session_id} | dict(headers or {})
        sent.setdefault("X-Amzn-Bedrock-AgentCore-Runtime-Request-Id", str(uuid.uuid4()))
        session = await self._session(session_id, parsed)
        return await session.invoke(payload, parsed, sent)

    async def stop(self, session_id: str) -> None:
        """End the session; returns when nothing of it is left."""
        check_session_id(session_id)
        self._rate.check()
        session = self.sessions.get(session_id)
        if session is None:
            raise _no_session(session_id)
        await asyncio.shield(session.end("the session was stopped"))

    async def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        """Run a shell command inside a live session."""
        async with contextlib.aclosing(await self.new_command(session_id, command, timeout)) as events:
            async for event in events:
                yield event

    async def new_command(self, session_id: str, command: str, timeout: int) -> AsyncGenerator[CommandEvent, None]:
        """The events of a command that starts with the first one; raises a fault at once if it can't."""
        check_session_id(session_id)
        check_command(command, timeout)
        session = self.sessions.get(session_id)
        if session is None or session.stopping:
            raise _no_session(session_id)
        return session.command(command, timeout)

    async def aclose(self) -> None:
        """End all of the agent's sessions, and its templates."""
        await self._pool.close()
        await asyncio.gather(*(session.end("the runtime was stopped") for session in list(self.sessions.values())))
        await self.keeper.close()

    async def _session(self, session_id: str, parsed: dict[str, Any]) -> LocalSession:
        """The live session of that id, or a new one; requests that come while it starts wait for the same one."""
        while True:
            starting = self._starting.get(session_id)
            if starting is not None:
                return await asyncio.shield(starting)
            session = self.sessions.get(session_id)
            if session is None:
                task = asyncio.get_running_loop().create_task(self._start(session_id, parsed))
                self._starting[session_id] = task
                task.add_done_callback(lambda _: self._starting.pop(session_id, None))
                task.add_done_callback(lambda task: task.cancelled() or task.exception())  # callers may have left
                return await asyncio.shield(task)
            if not session.stopping:
                return session
            await session.ended.wait()  # a stopped session that is invoked again starts afresh

    async def _start(self, session_id: str, parsed: dict[str, Any]) -> LocalSession:
        self._table.reserve_place()
        try:
            session = await self._pool.take_session()
        except BaseException:
            self._table.release_place()
            raise
        self.sessions[session_id] = session
        session.on_ended.append(lambda: self.sessions.pop(session_id, None))
        self._table.record_start(session, session_id)
        await session.assign(session_id, parsed)
        return session


class RateLimit:
    """An agent's requests a second, if they are limited."""

    def __init__(self, tps_limit: float | None) -> None:
        self._tps_limit = tps_limit
        self._bucket = TokenBucket(tps_limit, tps_limit) if tps_limit else None

    def check(self) -> None:
        """Count a request; raises a fault if it is one too many."""
        if self._bucket is not None and (wait := self._bucket.seconds_to_wait(time.monotonic())) > 0:
            self._bucket.put_back()
            message = f"more than {self._tps_limit:g} requests per second"
            raise RuntimeFault(message, code="ThrottlingException", retry_after=wait)


def _no_session(session_id: str) -> RuntimeFault:
    return RuntimeFault(f"session {session_id} does not exist", code="ResourceNotFoundException")
