"""`Front`: a supervisor whose sessions are spread over workers, for machines with many cores.

A worker is a supervisor in a separate process, without a port. The front has the port, the access rules, the buckets
and each agent's rate limit; a session belongs to the worker that its id's hash names, with all its requests. All of
them together are one runtime: one list of sessions, one limit on their number.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base import CommandEvent, Invocation
from ...hosting.request_checks import check_command, check_payload, check_session_id, rollout_request
from ..agent import RateLimit
from ..agent_source import AgentSource
from ..runtime import LinkedAgent, LocalRuntime
from ..server.access import check_store
from ..server.aws_wire import WireServer
from ..server.local_s3 import LocalS3
from ..sessions.places import Places
from .runtime_settings import RuntimeSettings
from .supervisor import Supervisor


class ShardedAgent:
    """One agent, whose sessions are the workers'."""

    def __init__(self, source: AgentSource, workers: Sequence[LocalRuntime]) -> None:
        self.source = source
        self._workers = workers
        self._rate = RateLimit(source.tps_limit)

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
        """As `LocalAgent.invoke`."""
        check_session_id(session_id)
        check_payload(payload)
        self._rate.check()
        if stores is not None:
            check_store(rollout_request(payload), stores)
        return await self._agent(session_id).invoke(session_id, payload, content_type=content_type, headers=headers)

    async def stop(self, session_id: str) -> None:
        """End the session; returns when nothing of it is left."""
        check_session_id(session_id)
        self._rate.check()
        await self._agent(session_id).stop(session_id)

    async def new_command(self, session_id: str, command: str, timeout: int) -> AsyncGenerator[CommandEvent, None]:
        """The events of a command that starts with the first one; raises a fault at once if it can't."""
        check_session_id(session_id)
        check_command(command, timeout)
        return await self._agent(session_id).new_command(session_id, command, timeout)

    async def aclose(self) -> None:
        """The front ends the workers."""

    def _agent(self, session_id: str) -> LinkedAgent:
        return worker_of(session_id, self._workers).agent(self.source.name)


class Front(Supervisor):
    """The port of a runtime whose sessions are its workers'."""

    def __init__(self, settings: RuntimeSettings) -> None:
        super().__init__(settings)
        self._workers: list[LocalRuntime] = []
        self._buckets: tempfile.TemporaryDirectory[str] | None = None

    async def start(self) -> None:
        """Listen, then start the workers."""
        settings = self.settings
        if settings.buckets is None:
            self._buckets = tempfile.TemporaryDirectory(prefix="agentcore-rl-buckets-")
        folder = settings.buckets if self._buckets is None else self._buckets.name
        self._server = WireServer(self, LocalS3(Path(str(folder))))
        try:
            await self._server.start()
            self.port = self._server.port
            sources = [dataclasses.replace(source, tps_limit=None) for source in settings.agents]
            own: dict[str, Any] = {"front": self.endpoint_url, "port": self.port, "buckets": folder, "agents": sources}
            of_worker = dataclasses.replace(settings, workers=1, **own)
            places = Places.make(settings.max_sessions, settings.workers)
            self._workers = [LocalRuntime.of_worker(of_worker, one) for one in places]
            self.agents = {source.name: ShardedAgent(source, self._workers) for source in settings.agents}
            await asyncio.gather(*(worker.start() for worker in self._workers))
        except BaseException:
            await self.aclose()
            raise
        self.missing = self._workers[0].missing

    def introduce(self) -> dict[str, Any]:
        """As a supervisor's own."""
        traces: dict[str, Any] = {"state": self._buckets.name if self._buckets else None, "groups": []}
        return {
            "port": self.port,
            "protections": self._workers[0].protections,
            "missing": self.missing,
            "traces": traces,
        }

    async def describe(self) -> dict[str, Any]:
        """For `runtime ps`."""
        found = await asyncio.gather(*(worker.describe() for worker in self._workers))
        counts = {name: sum(one["counts"][name] for one in found) for name in self.counts}
        sessions = [session for one in found for session in one["sessions"]]
        return {
            "max_sessions": self.settings.max_sessions,
            "counts": counts,
            "missing": self.missing,
            "sessions": sorted(sessions, key=lambda session: -session["seconds"]),
        }

    async def log_of(self, session_id: str) -> Path | None:
        """The log of a session whose id is this or starts so; None if there was none."""
        found = await asyncio.gather(*(worker.log_of(session_id) for worker in self._workers))
        return next((path for path in found if path is not None), None)

    async def read_output(self, session_id: str) -> bytes | None:
        """The end of what a session printed, even after it has ended; None if there was no such session."""
        return await worker_of(session_id, self._workers).printed(session_id)

    async def aclose(self) -> None:
        """End the workers with all sessions."""
        await asyncio.gather(*(worker.aclose() for worker in self._workers))
        await super().aclose()
        if self._buckets is not None:
            self._buckets.cleanup()


def worker_of(session_id: str, workers: Sequence[LocalRuntime]) -> LocalRuntime:
    """The worker that has a session: the same for all its requests."""
    return workers[zlib.crc32(session_id.encode()) % len(workers)]
