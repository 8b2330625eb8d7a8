"""Inside a Ray actor: one session's app, called through ASGI. `ray.py` is the other side.

Nothing here imports ray: Ray calls these methods, all of them on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from ..agent.logs import configure_logging
from .base import PLACEHOLDER_AWS
from .hosting.agent_code import load_app
from .hosting.agent_files import unpack_agent_folder
from .hosting.commands import SessionApp

logger = logging.getLogger(__name__)

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
        self._app: Any = None
        self._spec: ActorSpec | None = None
        self._folder = ""
        self._started_at = self._used_at = time.monotonic()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._shutdown = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    async def wait_for_place(self) -> int:
        """Returns as soon as the cluster has placed the actor."""
        return os.getpid()

    async def load(self, spec: ActorSpec, code: bytes | None) -> str | None:
        """Import the agent in a separate folder and start its app; returns the traceback if that fails."""
        self._spec = spec
        try:
            self._app = SessionApp(await asyncio.to_thread(self._import, spec, code))
            started = asyncio.get_running_loop().create_future()
            self._life = asyncio.create_task(self._live(started))
            await started
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

    async def _live(self, started: asyncio.Future[None]) -> None:
        """The app's lifespan, from its startup to its shutdown."""
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        messages.put_nowait({"type": "lifespan.startup"})

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "lifespan.startup.failed":
                raise RuntimeError(f"the app's startup failed: {message.get('message')}")
            if message["type"] == "lifespan.startup.complete":
                started.set_result(None)
                await self._shutdown.wait()
                messages.put_nowait({"type": "lifespan.shutdown"})

        try:
            await self._app({"type": "lifespan", "asgi": {"version": "3.0"}}, messages.get, send)
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)

    async def request(self, method: str, path: str, headers: dict[str, str], body: bytes) -> AsyncGenerator[Any, None]:
        """Call the app: yields status and content type, then the body's chunks, and None if its end is missing."""
        messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        gone = asyncio.Event()
        task = asyncio.create_task(self._call(_scope(method, path, headers), body, gone, messages))
        if path != _PING:  # a ping is not work
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)
        whole = False
        try:
            while (message := await messages.get()) is not None:
                if message["type"] == "http.response.start":
                    kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
                    yield message["status"], kinds[0].decode("latin-1") if kinds else ""
                    continue
                if message.get("body"):
                    yield bytes(message["body"])
                whole = not message.get("more_body")
            if not whole:
                yield None
        finally:
            gone.set()  # the caller may have left first
            if path != _PING:
                self._used_at = time.monotonic()

    async def _call(
        self,
        scope: dict[str, Any],
        body: bytes,
        gone: asyncio.Event,
        messages: asyncio.Queue[dict[str, Any] | None],
    ) -> None:
        request = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if request:
                return request.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        try:
            await self._app(scope, receive, messages.put)
        except Exception:
            logger.exception("the app failed at %s", scope["path"])
        finally:
            messages.put_nowait(None)

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
        tasks = list(self._in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._shutdown.set()
        if self._life is not None:
            await asyncio.gather(self._life, return_exceptions=True)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


def _scope(method: str, path: str, headers: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 0),
        "server": ("session", 80),
    }


def _has_credentials() -> bool:
    """Whether this node has credentials; placeholders must not hide its role from the store."""
    from botocore.session import Session

    return Session().get_credentials() is not None
