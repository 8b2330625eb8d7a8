"""Inside a session: the agent's app, with shell commands beside it, as one ASGI app.

A path of our own, which only the runtime asks for, runs commands. What carries requests to it is the runtime's affair.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

COMMAND_PATH = "/.session/command"
SESSION_HEADER = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
STAND_IN_AWS = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""For sessions without credentials: AWS's clients refuse to be built without any, even where nobody checks them."""
_CHUNK = 65536
_LAST_OUTPUT_SECONDS = 0.5
_SHELL = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class SessionApp:
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
    try:
        process = await asyncio.create_subprocess_exec(
            _SHELL,
            "-c",
            request["command"],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out.write_end,
            stderr=err.write_end,
            start_new_session=True,
        )
    except OSError as error:  # the session has no process left, or no memory
        out.transport.close()
        err.transport.close()
        await _cannot_run(error, send)
        return
    finally:
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
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for task in (gone, pumps):
            task.cancel()
        await asyncio.gather(exited, pumps, return_exceptions=True)
        out.transport.close()
        err.transport.close()
    await send({"type": "http.response.body", "body": json.dumps(end).encode() + b"\n"})


async def _cannot_run(error: OSError, send: Send) -> None:
    """As a shell says it of a program that it can't start: in words, and with code 126."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/x-ndjson")]})
    lines = [{"stderr": f"{_SHELL}: {error.strerror}\n"}, {"exit_code": 126, "status": "COMPLETED"}]
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    await send({"type": "http.response.body", "body": body})


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
