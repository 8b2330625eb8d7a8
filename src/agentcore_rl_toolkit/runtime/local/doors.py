"""The ways out of a sandbox that a session has: to addresses its policy allows, and to its own results.

A session's network has no connection to any other. Where it may reach an address, there is a listening socket in *its*
network at that very address, which the session opened and this process accepts on; what arrives there is passed on to
the real address from here. So agents use the URLs they were given, and nothing else of the host answers.

Results go through an HTTP door of ours, on loopback, where an unguessable key says which session it is: directories
as `DoorStore` asks for them, buckets in S3's own terms.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from ...errors import AgentCoreRLError, KeyNotFound, StoreUnavailable
from ...store.local import LocalStore
from .s3 import LocalS3

logger = logging.getLogger(__name__)

_CHUNK = 1 << 16


class Doors:
    """The open doors of one session."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._pumps: set[asyncio.Task[None]] = set()

    async def accept(self, door: socket.socket, host: str, port: int) -> None:
        """Pass everything that arrives at `door` on to `host:port`."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._pumps.add(task)
            try:
                await _pass_on(reader, writer, host, port)
            except asyncio.CancelledError:
                pass  # by `close`; asyncio would log it as an error
            finally:
                self._pumps.discard(task)

        self._servers.append(await asyncio.start_server(connected, sock=door))

    async def close(self) -> None:
        """Close all doors, and cut what goes through them."""
        for server in self._servers:
            server.close()
        for task in list(self._pumps):
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    ends = [writer]
    try:
        far_reader, far_writer = await asyncio.open_connection(host, port)
        ends.append(far_writer)
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
    except OSError as error:
        if len(ends) == 1:
            logger.warning("a session could not reach %s:%s: %s", host, port, error)
    finally:
        for end in ends:
            end.close()
        for end in ends:
            with contextlib.suppress(OSError):
                await end.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


class _Admitted(NamedTuple):
    session_id: str
    may_use: Callable[[str], bool]
    """Whether it may use the store of that name."""
    was_stored: Callable[[str], object]
    """Told of each result that is there, as `store/key`."""


class ResultDoor:
    """One loopback port through which sessions store their own results outside of their sandbox."""

    def __init__(self, s3: LocalS3) -> None:
        self._s3 = s3
        self._sessions: dict[str, _Admitted] = {}
        self._stores: dict[str, LocalStore] = {}
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{door}/store/{key:.*}", self._handle)
        app.router.add_route("*", "/{door}/s3/{bucket}/{key:.*}", self._handle_s3)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    def admit(self, session_id: str, may_use: Callable[[str], bool], was_stored: Callable[[str], object]) -> str:
        """Open the door for a session; gives the URL, which is also the key."""
        key = secrets.token_urlsafe(24)
        self._sessions[key] = _Admitted(session_id, may_use, was_stored)
        return f"http://127.0.0.1:{self.port}/{key}"

    def dismiss(self, url: str) -> None:
        """Close it again."""
        self._sessions.pop(url.rsplit("/", 1)[-1], None)

    def store(self, path: str) -> LocalStore:
        """The store in a directory of the host."""
        path = str(Path(path).resolve())
        if path not in self._stores:
            self._stores[path] = LocalStore(path)
        return self._stores[path]

    async def _handle(self, request: web.Request) -> web.Response:
        admitted = self._sessions.get(request.match_info["door"])
        name, key = request.query.get("store", ""), request.match_info["key"]
        if admitted is None or not admitted.may_use(name):
            return web.Response(status=403, text="this session may not use that store")
        session_id = admitted.session_id
        if key and not key.endswith(f"/{session_id}.json"):
            return web.Response(status=403, text=f"this session may only use keys that end in /{session_id}.json")
        data = await request.read()
        try:
            status, body = await asyncio.to_thread(self._do, request, self.store(name), key, data, session_id)
        except StoreUnavailable as error:
            return web.Response(status=503, text=str(error))
        except AgentCoreRLError as error:
            return web.Response(status=400, text=str(error))
        if request.method == "PUT":
            admitted.was_stored(f"{name}/{key}")
        return web.Response(status=status, body=body)

    async def _handle_s3(self, request: web.Request) -> web.Response:
        """The runtime's own S3, as far as a session needs it: objects that are its results."""
        admitted = self._sessions.get(request.match_info["door"])
        key = request.match_info["key"]
        if admitted is None or not key.endswith(f"/{admitted.session_id}.json"):
            text = "a session may only use objects that are its own results"
            body = f"<Error><Code>AccessDenied</Code><Message>{text}</Message></Error>"
            return web.Response(status=403, text=body, content_type="application/xml")
        inner = request.rel_url.raw_path_qs.split("/s3/", 1)[1]
        response = await self._s3.handle(request.clone(rel_url="/" + inner))
        if request.method == "PUT" and response.status in (200, 412):
            admitted.was_stored(f"{request.match_info['bucket']}/{key}")
        return response

    @staticmethod
    def _do(request: web.Request, store: LocalStore, key: str, data: bytes, session_id: str) -> tuple[int, bytes]:
        if request.method == "PUT":
            return (201, b"") if store.put_if_absent(key, data) else (409, b"")
        if request.method == "POST":
            store.announce(key)
            return 204, b""
        if not key:
            mine = [k for k in store.keys(request.query.get("prefix", "")) if k.endswith(f"/{session_id}.json")]
            return 200, "\n".join(mine).encode()
        try:
            return 200, store.get(key)
        except KeyNotFound:
            return 404, b""
