"""A shell command in a session: `SessionApp` runs it inside the session, `read_events` reads its output outside.

Between them are lines of JSON. The session's code is hostile: it may send endless lines, lines that are not events, or
nothing. `read_events` bounds what it holds, turns anything wrong into one `RuntimeClientError`, and gives up some time
after the command's time limit.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from ...errors import RuntimeFault
from ..base import CommandEvent

COMMAND_PATH = "/.session/command"
_CHUNK = 65536
_LAST_OUTPUT_SECONDS = 0.5
_LONGEST_LINE = 1 << 20
_GRACE_SECONDS = 30.0
"""How long after a command's time limit its session may take to end it."""
_SHELL = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class SessionApp:
    """The agent's app as an ASGI app, with `COMMAND_PATH` in front of it, which only the runtime requests."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == COMMAND_PATH:
            await run_command(receive, send)
        else:
            await self._app(scope, receive, send)


async def run_command(receive: Receive, send: Send) -> None:
    """Run the command in a request's body and stream its events; the last one has its exit code."""
    request = json.loads(await _read_body(receive))
    out, err = await _open_pipe(), await _open_pipe()
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
    except OSError as error:  # the session is out of processes or memory; shells report that with code 126
        out.transport.close()
        err.transport.close()
        await _start_response(send)
        await _send_event(send, {"stderr": f"{_SHELL}: {error.strerror}\n"})
        await _send_event(send, {"exit_code": 126, "status": "COMPLETED"}, more=False)
        return
    finally:
        os.close(out.write_end)
        os.close(err.write_end)
    await _start_response(send)
    output = asyncio.gather(_send_output(out.reader, "stdout", send), _send_output(err.reader, "stderr", send))
    exited = asyncio.ensure_future(process.wait())
    gone = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({exited, gone}, timeout=request["timeout"], return_when=asyncio.FIRST_COMPLETED)
        end = {"exit_code": -1, "status": "TIMED_OUT"}
        if exited.done():
            # Background processes may keep the pipes open; don't wait for them.
            await asyncio.wait({output}, timeout=_LAST_OUTPUT_SECONDS)
            end = {"exit_code": exited.result(), "status": "COMPLETED"}
    finally:
        if not exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        gone.cancel()
        output.cancel()
        await asyncio.gather(exited, output, return_exceptions=True)
        out.transport.close()
        err.transport.close()
    await _send_event(send, end, more=False)


async def read_events(
    chunks: AsyncIterator[bytes], seconds: float, *, grace: float = _GRACE_SECONDS
) -> AsyncIterator[CommandEvent]:
    """The events in `chunks`, up to the last one, of a command whose time limit is `seconds`."""
    deadline, rest = time.monotonic() + seconds + grace, b""
    while True:
        try:
            chunk = await asyncio.wait_for(anext(chunks), deadline - time.monotonic())
        except StopAsyncIteration:
            raise _stream_fault("broke off before the command ended") from None
        except asyncio.TimeoutError:
            limit = f"{grace:g} s of the command's time limit of {seconds:g} s"
            raise _stream_fault(f"did not end within {limit}") from None
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise _stream_fault(f"has a line of more than {_LONGEST_LINE:,} bytes")
        for line in lines:
            event = _parse_event(line)
            yield event
            if event.status is not None:
                return


def _parse_event(line: bytes) -> CommandEvent:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    match value:
        case {"stdout": str(text), **rest} if not rest:
            return CommandEvent(stdout=_replace_surrogates(text))
        case {"stderr": str(text), **rest} if not rest:
            return CommandEvent(stderr=_replace_surrogates(text))
        case {"exit_code": int(code), "status": "COMPLETED" | "TIMED_OUT" as status}:
            if type(code) is int and abs(code) < 1 << 31:
                return CommandEvent(exit_code=code, status=status)
    raise _stream_fault(f"has a line that is not an event: {line[:200]!r}")


def _replace_surrogates(text: str) -> str:
    return text.encode(errors="replace").decode()


def _stream_fault(what: str) -> RuntimeFault:
    return RuntimeFault(f"the session's event stream {what}", code="RuntimeClientError")


async def _read_body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _start_response(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/x-ndjson")]})


async def _send_event(send: Send, event: dict[str, Any], *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": json.dumps(event).encode() + b"\n", "more_body": more})


class _Pipe(NamedTuple):
    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport
    write_end: int


async def _open_pipe() -> _Pipe:
    """A pipe of our own: with asyncio's, `process.wait` would also wait for background processes that hold its end."""
    read_end, write_end = os.pipe()
    reader = asyncio.StreamReader()
    connect = asyncio.get_running_loop().connect_read_pipe
    transport, _ = await connect(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb"))
    return _Pipe(reader, transport, write_end)


async def _send_output(stream: asyncio.StreamReader, name: str, send: Send) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        chunk = await stream.read(_CHUNK)
        text = decoder.decode(chunk, final=not chunk)
        if text:
            await _send_event(send, {name: text})
        if not chunk:
            return


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
