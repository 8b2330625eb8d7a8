"""Inside a session: an ASGI server for one app on one socket, which speaks `app_frames.py`.

Serves what an app sees of uvicorn: HTTP requests with their disconnects, bounded writes, and the lifespan. It has no
parser, no access log and no timers, so that a session starts and answers in a few hundred steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from ....errors import StartupFailed
from . import app_frames as frames

logger = logging.getLogger(__name__)

_ASGI = {"version": "3.0", "spec_version": "2.4"}
_GRACE_SECONDS = 2.0
Message = dict[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


class AppServer:
    """Serves an app until it is told to stop."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.state: Message = {}
        self.running: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()

    def stop_on_signals(self) -> None:
        """Stop on SIGTERM and SIGINT. Adding the loop's own handlers lists all signals there are, for each of them."""
        loop = asyncio.get_running_loop()

        def stop(*_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.stop)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)

    def stop(self) -> None:
        """Take no more requests, and give those in flight two seconds."""
        self._stop.set()

    async def connect(self, connection: socket.socket) -> None:
        """Serve one connection; without the lifespan."""
        await asyncio.get_running_loop().connect_accepted_socket(lambda: _Exchange(self), connection)

    async def serve(self, listen: socket.socket) -> None:
        """Serve until `stop`; raises `StartupFailed` if the app's lifespan does."""
        lifespan = Lifespan(self)
        await lifespan.start()
        server = await asyncio.get_running_loop().create_unix_server(lambda: _Exchange(self), sock=listen)
        await self._stop.wait()
        server.close()
        if self.running:
            _, late = await asyncio.wait(self.running, timeout=_GRACE_SECONDS)
            for task in late:
                task.cancel()
        await lifespan.stop()


class _Exchange(asyncio.Protocol):
    """One connection: a request and its answer."""

    def __init__(self, server: AppServer) -> None:
        self._server = server
        self._received: bytearray | None = bytearray()
        self._body: bytes | None = None
        self._gone, self._writable = asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._unsent = b""
        self._started = self._ended = False
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(frames.END)  # accepted

    def data_received(self, data: bytes) -> None:
        if self._received is None:
            return
        self._received += data
        start = frames.REQUEST.size
        if len(self._received) < start:
            return
        head, body = frames.REQUEST.unpack_from(self._received)
        if len(self._received) < start + head + body:
            return
        request = json.loads(self._received[start : start + head])
        self._body = bytes(memoryview(self._received)[start + head :])
        self._received = None
        task = asyncio.get_running_loop().create_task(self._run(**request))
        self._server.running.add(task)
        task.add_done_callback(self._server.running.discard)

    def connection_lost(self, _: Exception | None) -> None:
        self._gone.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def _run(self, method: str, path: str, headers: dict[str, str]) -> None:
        length = str(len(self._body or b""))
        sent = {"host": "session", "content-length": length} | {k.lower(): v for k, v in headers.items()}
        scope = {
            "type": "http", "asgi": _ASGI, "http_version": "1.1", "method": method,
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [(name.encode(), value.encode(errors="replace")) for name, value in sent.items()],
            "client": None, "server": None, "state": self._server.state.copy(),
        }  # fmt: skip
        try:
            await self._server.app(scope, self._receive, self._send)
        except Exception:
            logger.exception("the app failed to answer %s", path)
        if not self._started:
            await self._send(
                {"type": "http.response.start", "status": 500, "headers": [(b"content-type", b"text/plain")]}
            )
            await self._send({"type": "http.response.body", "body": b"Internal Server Error"})
        self._flush()
        self._transport.close()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._ended or self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._started = True
            self._unsent = frames.answer_head(message["status"], [tuple(pair) for pair in message.get("headers", ())])
            asyncio.get_running_loop().call_soon(self._flush)  # with the body, if that follows at once
            return
        body = bytes(message.get("body", b""))
        self._unsent += frames.frame(body) if body else b""
        if not message.get("more_body", False):
            self._ended = True
            self._unsent += frames.END
        self._flush()
        await self._writable.wait()

    def _flush(self) -> None:
        if self._unsent:
            data, self._unsent = self._unsent, b""
            self._transport.write(data)


class Lifespan:
    """The app's startup and shutdown. An app that knows no lifespan has neither."""

    def __init__(self, server: AppServer) -> None:
        self._server = server
        self._calls = iter(("startup", "shutdown"))
        self._answered, self._stopping = asyncio.Event(), asyncio.Event()
        self._failure: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        await self._answered.wait()
        if self._failure is not None:
            raise StartupFailed(self._failure)

    async def stop(self) -> None:
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": _ASGI, "state": self._server.state}
        try:
            await self._server.app(scope, self._receive, self._send)
        except Exception as error:
            logger.debug("the app has no lifespan: %s", error)
        self._answered.set()

    async def _receive(self) -> Message:
        call = next(self._calls)
        if call == "shutdown":
            await self._stopping.wait()
        return {"type": f"lifespan.{call}"}

    async def _send(self, message: Message) -> None:
        if message["type"].endswith(".failed"):
            self._failure = str(message.get("message", ""))
            logger.error("the app's %s failed: %s", message["type"].split(".")[1], self._failure)
        self._answered.set()
