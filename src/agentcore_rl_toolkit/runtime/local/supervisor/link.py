"""A program's link to the supervisor that runs its sessions in another process.

Both hold one end of a `Channel`. For each request the program makes a pair of sockets and passes one of them on, so
nothing listens, nobody else can connect, and when either process ends the other notices. On a pair of sockets travels
one request as in `template/app_frames.py`. `link_server.py` is the supervisor's end.

Costs the program a tenth of a millisecond a request, which is why it isn't HTTP.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from ....errors import BrokenAnswer, LinkBroken, RuntimeFault
from ..template import app_frames as frames
from ..template.channel import Channel

APP = "app-"
"""Begins the names of headers that are for the app, or from it."""
DATA, FAULT = b"D", b"F"
"""The first byte of an answer's frame."""
FAULT_STATUS = 500
_PAUSE_SECONDS = 0.002
_READ_SECONDS = 30.0


def encode_fault(fault: RuntimeFault) -> bytes:
    names = {"code": fault.code, "reason": fault.reason, "retry_after": fault.retry_after}
    return FAULT + json.dumps({"message": str(fault)} | names).encode()


def decode_fault(frame: bytes) -> RuntimeFault:
    document = json.loads(frame[1:])
    return RuntimeFault(document.pop("message"), **document)


class SupervisorLink:
    """The program's end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def ask(self, path: str, headers: Mapping[str, str], body: bytes = b"") -> frames.AppAnswer:
        """Send a request; returns its answer, or raises its fault. `LinkBroken` if the supervisor has ended."""
        here, there = socket.socketpair()
        try:
            await self._pass_on(there)
        except BaseException:
            here.close()
            raise
        finally:
            there.close()
        reader, writer = await asyncio.open_unix_connection(sock=here)
        answer = frames.AppAnswer(reader, writer)
        try:
            writer.write(frames.request("POST", path, headers, body))
            await answer.read_accepted()
            await answer.read_head()
            if answer.status == FAULT_STATUS:
                raise decode_fault(b"".join([frame async for frame in answer.frames()]))
        except BrokenAnswer as error:
            answer.close()
            raise LinkBroken(str(error)) from None
        except BaseException:
            answer.close()
            raise
        return answer

    async def _pass_on(self, there: socket.socket) -> None:
        while True:
            try:
                self._channel.send({"op": "request"}, [there.fileno()], wait=False)
            except BlockingIOError:  # the supervisor is busy
                await asyncio.sleep(_PAUSE_SECONDS)
            except OSError as error:
                raise LinkBroken(str(error)) from None
            else:
                return

    def ask_now(self, path: str) -> Any:
        """Ask for a small document, from any thread, and wait for it."""
        here, there = socket.socketpair()
        with here:
            here.settimeout(_READ_SECONDS)
            try:
                self._channel.send({"op": "request"}, [there.fileno()])
            except OSError as error:
                raise LinkBroken(str(error)) from None
            finally:
                there.close()
            here.sendall(frames.request("POST", path, {}, b""))
            with here.makefile("rb") as file:
                data = file.read()
        parts = frames.split(data)
        if len(parts) < 2:
            raise LinkBroken("the supervisor ended")
        if parts[1][:1] == FAULT:
            raise decode_fault(parts[1])
        return json.loads(parts[1][1:])


async def read_data(answer: frames.AppAnswer) -> AsyncGenerator[bytes, None]:
    """The pieces of an answer's body; raises the fault that it breaks off with. Closes the answer."""
    try:
        async for frame in answer.frames():
            if frame[:1] == FAULT:
                raise decode_fault(frame)
            yield frame[1:]
    except BrokenAnswer:
        raise RuntimeFault("the runtime's supervisor ended", hint="send the request again") from None
    finally:
        answer.close()
