"""Inside a session: serves the agent's app on the session's socket, as `app.run()` would on a port."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
from typing import Any

import uvicorn

from ....agent.logs import configure_logging
from ...hosting.commands import SessionApp


def import_server() -> None:
    """Import the modules that serving needs."""
    _config(lambda: None).load()


async def warm_up_server(app: Any) -> None:
    """Serve a ping and a request that isn't JSON over a real socket; the agent's own code is not called."""
    path = os.path.join(tempfile.gettempdir(), f"warm-up-{os.getpid()}.sock")
    listen = socket.socket(socket.AF_UNIX)
    listen.bind(path)
    listen.listen()
    server = asyncio.create_task(_Server(_config(app, lifespan="off")).serve(sockets=[listen]))
    for request in (b"GET /ping HTTP/1.1\r\n", b"POST /invocations HTTP/1.1\r\nContent-Length: 1\r\n"):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(request + b"Host: x\r\nConnection: close\r\n\r\n" + b"{" * request.startswith(b"POST"))
        await reader.read()
        writer.close()
    await asyncio.to_thread(json.dumps, {})
    server.cancel()


def serve_session(app: Any, listen: socket.socket) -> None:
    """Serve until SIGTERM."""
    configure_logging()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()  # forks would share its state; `random` reseeds itself
    server = _Server(_config(app, timeout_graceful_shutdown=2))
    asyncio.run(server.serve(sockets=[listen]))
    if not server.started:
        raise SystemExit(3)  # the app's startup failed, and uvicorn has logged why


class _Server(uvicorn.Server):
    """uvicorn, woken by a signal: its loop polls ten times a second, which adds up over hundreds of sessions."""

    async def main_loop(self) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        if not self.should_exit:
            await woken.wait()

    def handle_exit(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        getattr(self, "_wake", lambda: None)()


def _config(app: Any, **settings: Any) -> uvicorn.Config:
    quiet: dict[str, Any] = {"log_config": None, "log_level": "warning", "access_log": False}
    return uvicorn.Config(SessionApp(app), date_header=False, server_header=False, **quiet, **settings)
