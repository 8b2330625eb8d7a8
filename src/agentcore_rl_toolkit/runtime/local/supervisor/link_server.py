"""The supervisor's end of its link to the program that started it; `link.py` is the other.

The caller is the program itself, so there are no tokens here, and a rollout may name any store.

    /invoke    headers agent, session, content-type; the payload    → the app's answer
    /stop      headers agent, session                               → nothing
    /command   headers agent, session, timeout; the command         → its events
    /printed   header session                                       → the end of the session's output
    /log       header session                                       → the path of the session's log
    /sessions                                                       → what `runtime ps` shows
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from ....errors import RuntimeFault
from ...base import one_piece
from ..template.app_server import AppServer
from ..template.channel import Channel
from .link import APP, DATA, FAULT_STATUS, encode_fault

if TYPE_CHECKING:
    from .supervisor import Supervisor

logger = logging.getLogger(__name__)


class LinkServer:
    """Answers the program's requests until it closes the link."""

    def __init__(self, supervisor: Supervisor, channel: Channel) -> None:
        self._supervisor, self._channel = supervisor, channel
        self._server = AppServer(self._answer)
        self._connecting: set[asyncio.Task[None]] = set()
        self.closed = asyncio.Event()

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._receive)

    def _receive(self) -> None:
        message, descriptors = self._channel.receive()
        if message is None:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self.closed.set()
        for descriptor in descriptors:
            task = asyncio.get_running_loop().create_task(self._server.connect(socket.socket(fileno=descriptor)))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = (await receive())["body"]
        caller = asyncio.ensure_future(_run(self._operation(scope["path"], headers, body), send))
        gone = asyncio.ensure_future(receive())  # the program has given the request up
        try:
            await asyncio.wait({caller, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (caller, gone):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await caller

    async def _operation(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[dict[str, str], AsyncIterator[bytes]]:
        """An answer's headers and its body."""
        supervisor = self._supervisor
        if path == "/sessions":
            return {}, one_piece(json.dumps(await supervisor.describe()).encode())
        session = headers["session"]
        if path == "/printed":
            data = await supervisor.read_output(session)
            return {"known": "no" if data is None else "yes"}, one_piece(data or b"")
        if path == "/log":
            return {}, one_piece(str(await supervisor.log_of(session) or "").encode())
        agent = supervisor.agent(headers["agent"])
        if path == "/invoke":
            passed = {name.removeprefix(APP): value for name, value in headers.items() if name.startswith(APP)}
            found = await agent.invoke(session, body, content_type=headers["content-type"], headers=passed)
            sent = {APP + name: value for name, value in found.headers.items()}
            return {"status": str(found.status), "kind": found.content_type} | sent, found.body
        if path == "/stop":
            await agent.stop(session)
            return {}, one_piece(b"")
        events = await agent.new_command(session, body.decode(), int(headers["timeout"]))
        return {}, _encoded(events)


async def _run(operation: Any, send: Any) -> None:
    """Send what an operation answers, or its fault."""
    status, headers, body = 200, {}, one_piece(b"")
    first = b""
    try:
        headers, body = await operation
    except Exception as error:
        status, first = FAULT_STATUS, encode_fault(_as_fault(error))
    pairs = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    if first:
        await send({"type": "http.response.body", "body": first})
        return
    try:
        async for data in body:
            await send({"type": "http.response.body", "body": DATA + data, "more_body": True})
        first = b""
    except Exception as error:
        first = encode_fault(_as_fault(error))
    finally:
        if isinstance(body, AsyncGenerator):
            await body.aclose()
    await send({"type": "http.response.body", "body": first})


def _as_fault(error: Exception) -> RuntimeFault:
    if isinstance(error, RuntimeFault):
        return error
    logger.error("a request failed", exc_info=error)
    return RuntimeFault(f"{type(error).__name__}: {error}")


async def _encoded(events: AsyncGenerator[Any, None]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(events):
        async for event in events:
            yield json.dumps(dataclasses.asdict(event)).encode()
