"""Inside a session: the agent's app on the session's socket, and shell commands beside it.

The app is served as `app.run()` would serve it, only on a socket that the runtime made. A path of our own, which only
the runtime asks for, runs shell commands in the same sandbox.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import uvicorn

from ...logs import configure_logging
from .rehearsal import rehearse_sdks

COMMAND_PATH = "/.session/command"
_CHUNK = 65536
_LAST_OUTPUT_SECONDS = 0.5
_SHELL = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def warm_up(app: Any) -> None:
    """Import what serving needs before the first fork: what that is, a rehearsal in a throwaway fork tells."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        names: list[str] = []
        with contextlib.suppress(BaseException):
            before = set(sys.modules)
            asyncio.run(asyncio.wait_for(_rehearse(app), 10))
            asyncio.run(rehearse_sdks())
            names = sorted(set(sys.modules) - before)
        os.write(write, json.dumps(names).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        names = json.loads(file.read() or b"[]")
    os.waitpid(pid, 0)
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    _config(app).load()


async def _rehearse(app: Any) -> None:
    """Serve a ping and a request that isn't JSON, over a real socket; the agent's own code is not called."""
    path = os.path.join(tempfile.gettempdir(), f"rehearsal-{os.getpid()}.sock")
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


class _Server(uvicorn.Server):
    """uvicorn, woken by a signal instead of looking for one ten times a second: there may be hundreds of us."""

    async def main_loop(self) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        if not self.should_exit:
            await woken.wait()

    def handle_exit(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        getattr(self, "_wake", lambda: None)()


def serve_session(app: Any, listen: socket.socket) -> None:
    """Serve until SIGTERM."""
    configure_logging()
    _reseed()
    server = _Server(_config(app, timeout_graceful_shutdown=2))
    asyncio.run(server.serve(sockets=[listen]))
    if not server.started:
        raise SystemExit(3)  # the app's startup failed; uvicorn has logged why


def _config(app: Any, **settings: Any) -> uvicorn.Config:
    return uvicorn.Config(
        _SessionApp(app),
        log_config=None,
        log_level="warning",
        access_log=False,
        date_header=False,
        server_header=False,
        **settings,
    )


def _reseed() -> None:
    """Random numbers that a fork would otherwise share with every other session (`random` reseeds itself)."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


class _SessionApp:
    """The agent's app, with `COMMAND_PATH` in front of it."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == COMMAND_PATH:
            await _command(receive, send)
        else:
            await self._app(scope, receive, send)


async def _command(receive: Receive, send: Send) -> None:
    """Run a command and stream its output as lines of JSON; the last one says how it ended."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    request = json.loads(body)
    out, err = await _pipe(), await _pipe()
    # Pipes of our own: asyncio's would have `wait` wait for whoever else holds on to them.
    process = await asyncio.create_subprocess_exec(
        _SHELL,
        "-c",
        request["command"],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=out.write_end,
        stderr=err.write_end,
        start_new_session=True,
    )
    os.close(out.write_end)
    os.close(err.write_end)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/x-ndjson")]})
    pumps = asyncio.ensure_future(_pump_both(out.reader, err.reader, send))
    exited = asyncio.ensure_future(process.wait())
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({exited, gone}, timeout=request["timeout"], return_when=asyncio.FIRST_COMPLETED)
        if exited.done():
            # What it left running in the background may hold on to the output; that's no reason to wait.
            await asyncio.wait({pumps}, timeout=_LAST_OUTPUT_SECONDS)
            end = {"exit_code": exited.result(), "status": "COMPLETED"}
        else:
            end = {"exit_code": -1, "status": "TIMED_OUT"}
    finally:
        if not exited.done():
            os.killpg(process.pid, signal.SIGKILL)
        for task in (gone, pumps):
            task.cancel()
        await asyncio.gather(exited, pumps, return_exceptions=True)
        out.transport.close()
        err.transport.close()
    await send({"type": "http.response.body", "body": json.dumps(end).encode() + b"\n"})


class _Pipe(NamedTuple):
    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport
    write_end: int


async def _pipe() -> _Pipe:
    read_end, write_end = os.pipe()
    reader = asyncio.StreamReader()
    connect = asyncio.get_running_loop().connect_read_pipe
    transport, _ = await connect(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb"))
    return _Pipe(reader, transport, write_end)


async def _pump_both(out: asyncio.StreamReader, err: asyncio.StreamReader, send: Send) -> None:
    await asyncio.gather(_pump(out, "stdout", send), _pump(err, "stderr", send))


async def _pump(stream: asyncio.StreamReader, name: str, send: Send) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        chunk = await stream.read(_CHUNK)
        text = decoder.decode(chunk, final=not chunk)
        if text:
            line = json.dumps({name: text}).encode() + b"\n"
            await send({"type": "http.response.body", "body": line, "more_body": True})
        if not chunk:
            return


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
