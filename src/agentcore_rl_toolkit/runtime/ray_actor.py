"""Inside a Ray actor: one session's app, called through ASGI. `ray.py` is the other side.

Nothing here imports ray: Ray calls these methods, all of them on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
import time
import traceback
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from ..agent.logs import configure_logging
from ..errors import BrokenAnswer
from .base import PLACEHOLDER_AWS
from .hosting.agent_code import load_app
from .hosting.agent_files import unpack_agent_folder
from .hosting.commands import SessionApp
from .local.template import app_frames as frames
from .local.template.app_server import AppServer, Lifespan

_TICK_SECONDS = 1.0
_PING = "/ping"
_PING_SECONDS = 10.0
_LONGEST_PING = 65_536


@dataclass(frozen=True)
class ActorSpec:
    """What an actor runs, and for how long."""

    entry: str
    env: dict[str, str] = field(repr=False)
    idle_timeout: float
    max_lifetime: float


class SessionActor:
    """The agent's app in the actor's process."""

    def __init__(self) -> None:
        self._server: AppServer | None = None
        self._lifespan: Lifespan | None = None
        self._spec: ActorSpec | None = None
        self._folder = ""
        self._started_at = self._used_at = time.monotonic()
        self._in_flight = 0

    async def wait_for_place(self) -> int:
        """Returns as soon as the cluster has placed the actor."""
        return os.getpid()

    async def load(self, spec: ActorSpec, code: bytes | None) -> str | None:
        """Import the agent in a separate folder and start its app; returns the traceback if that fails."""
        self._spec = spec
        try:
            self._server = AppServer(SessionApp(await asyncio.to_thread(self._import, spec, code)))
            self._lifespan = Lifespan(self._server)
            await self._lifespan.start()
        except BaseException:  # an agent may also exit
            shutil.rmtree(self._folder, ignore_errors=True)
            return traceback.format_exc()
        return None

    def _import(self, spec: ActorSpec, code: bytes | None) -> Any:
        configure_logging()
        os.environ.update(spec.env)
        if not _has_credentials():
            for name, value in PLACEHOLDER_AWS.items():
                os.environ.setdefault(name, value)
        self._folder = tempfile.mkdtemp(prefix="agentcore-rl-session-")
        if code is not None:
            unpack_agent_folder(code, self._folder)
        return load_app(self._folder, spec.entry)

    async def request(self, method: str, path: str, headers: dict[str, str], body: bytes) -> AsyncGenerator[Any, None]:
        """Call the app: yields status and content type, then the body's chunks, and None if its end is missing."""
        assert self._server is not None
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=here)
        await self._server.connect(there)
        answer = frames.AppAnswer(reader, writer)
        self._in_flight += path != _PING  # a ping is not work
        try:
            writer.write(frames.request(method, path, headers, body))
            await answer.read_accepted()
            await answer.read_head()
            yield answer.status, answer.headers.get("content-type", "")
            async for chunk in answer.chunks():
                yield chunk
        except BrokenAnswer:
            yield None
        finally:
            answer.close()  # the caller may have left first
            if path != _PING:
                self._in_flight -= 1
                self._used_at = time.monotonic()

    async def watch(self) -> str:
        """Returns once the session should end, with the reason: it is idle, or too old."""
        assert self._spec is not None
        while True:
            await asyncio.sleep(min(_TICK_SECONDS, self._spec.idle_timeout))
            now = time.monotonic()
            if now - self._started_at > self._spec.max_lifetime:
                return f"the session reached its maximum lifetime of {self._spec.max_lifetime:g} s"
            if not self._in_flight and now - self._used_at > self._spec.idle_timeout:
                used_at = self._used_at
                if await self.is_busy():
                    self._used_at = now
                elif self._used_at == used_at and not self._in_flight:
                    return f"the session was idle for {self._spec.idle_timeout:g} s"

    async def is_busy(self) -> bool:
        """Whether the app reports work in the background."""
        try:
            return await asyncio.wait_for(self._reports_busy(), _PING_SECONDS)
        except asyncio.TimeoutError:
            return False

    async def _reports_busy(self) -> bool:
        answer, data = self.request("GET", _PING, {}, b""), b""
        async with contextlib.aclosing(answer):
            async for part in answer:
                data += part if isinstance(part, bytes) else b""
                if len(data) > _LONGEST_PING:
                    break
        return b"HealthyBusy" in data

    async def shut_down(self) -> None:
        """End commands, the app's lifespan, and the session's files."""
        tasks = [] if self._server is None else list(self._server.running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lifespan is not None:
            await self._lifespan.stop()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


def _has_credentials() -> bool:
    """Whether this node has credentials; placeholders must not hide its role from the store."""
    from botocore.session import Session

    return Session().get_credentials() is not None
