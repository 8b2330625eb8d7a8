"""Where sessions store their results: one loopback port of the runtime, which takes only a session's own
results.

A session sees none of the host's files. Through this port it stores the result of each of its rollouts, once, in the
store that the rollout's request named, a directory (`store/session_store.py`) or a bucket of the runtime's S3; and it
reads and announces them. An unguessable key in the URL identifies the session. Everything is bounded: the size of a
result, the bytes held for all sessions together, and a session's requests per second. A session sends or receives one
result at a time: each may take 100 MB of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from ....common.http_guard import RequestGuard
from ....errors import AgentCoreRLError, KeyNotFound, S3Error, StoreUnavailable
from ....store.base import directory_of
from ....store.directory import LocalStore
from ....types import LARGEST_RESULT
from ...hosting.pending_rollouts import PendingRollouts, result_location
from ..server.access import http_logger
from ..server.local_s3 import LocalS3, decode_body, s3_error
from .egress import TokenBucket

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CHUNK = 1 << 16
_MOST_HELD = 1 << 30
_ALWAYS_HELD = 1 << 20
"""A result of this size is stored however many others are: those of slow sessions keep nobody else waiting."""
_BODY_SECONDS = 120
_REQUESTS_PER_SECOND, _BURST = 20, 200
_GUARD = RequestGuard([])
_FULL = "too many results are sent and received at once"
_NOT_OWN = "a session may use only the results of its own rollouts"


@dataclass
class _Admitted:
    rollouts: PendingRollouts
    announced: set[str] = field(default_factory=set)
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while one of its results is sent or received."""
    warned: bool = False
    bucket: TokenBucket = field(default_factory=lambda: TokenBucket(_REQUESTS_PER_SECOND, _BURST))

    def directory_of(self, location: str) -> str | None:
        """The directory of a rollout's store, as its caller named it: a session's own spelling may lead elsewhere."""
        store = self.rollouts.store_of(location)
        return None if store is None else directory_of(store)


@web.middleware
async def _refuse_web_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    refusal = _GUARD.refusal(request.headers)
    return await handler(request) if refusal is None else web.Response(status=403, text=refusal.message)


class StoreProxy:
    """The port, and the sessions that may use it."""

    def __init__(self, s3: LocalS3) -> None:
        self._s3 = s3
        self._sessions: dict[str, _Admitted] = {}
        self._stores: dict[str, LocalStore] = {}
        self._held = 0
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        app = web.Application(middlewares=[_refuse_web_pages])
        app.router.add_route("*", "/{session}/store/{key:.*}", self._handle)
        app.router.add_route("*", "/{session}/s3/{bucket}/{key:.*}", self._handle_s3)
        self._runner = web.AppRunner(app, access_log=None, auto_decompress=False, logger=http_logger())
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def admit(self, rollouts: PendingRollouts) -> str:
        """Let a session in; returns its URL, which is also its key."""
        key = secrets.token_urlsafe(24)
        self._sessions[key] = _Admitted(rollouts)
        return f"http://127.0.0.1:{self.port}/{key}"

    def dismiss(self, url: str) -> None:
        """End a session's access."""
        self._sessions.pop(url.rsplit("/", 1)[-1], None)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        """A request of `store/session_store.py` for a directory of the host."""
        name, key = request.query.get("store", ""), request.match_info["key"]
        session = self._sessions.get(request.match_info["session"])
        if session is None:
            return web.Response(status=403, text="this session has ended")
        if session.bucket.seconds_to_wait(time.monotonic()) > 0:
            return web.Response(status=503, text="too many requests")
        if not key:
            keys = await asyncio.to_thread(self._own_keys, session, name, request.query.get("prefix", ""))
            return web.Response(text="\n".join(keys))
        location = result_location(name, key)
        directory = session.directory_of(location)
        if directory is None:
            return web.Response(status=403, text=_NOT_OWN)
        try:
            return await self._answer(request, session, self._store(directory), key, location)
        except KeyNotFound:
            return web.Response(status=404)
        except StoreUnavailable as error:
            self._warn_once(session, error)
            return web.Response(status=503, text=str(error))
        except AgentCoreRLError as error:
            self._warn_once(session, error)
            return web.Response(status=400, text=str(error))

    def _warn_once(self, session: _Admitted, error: Exception) -> None:
        """Once each session: until a store takes its result, a rollout looks as if it still ran."""
        if not session.warned:
            session.warned = True
            logger.warning("a result could not be stored: %s", error)

    async def _answer(
        self, request: web.Request, session: _Admitted, store: LocalStore, key: str, location: str
    ) -> web.StreamResponse:
        if request.method == "PUT":
            async with self._body(request, session) as data:
                stored = await asyncio.to_thread(store.put_if_absent, key, data)
            session.rollouts.mark_stored(location)
            return web.Response(status=201 if stored else 409)
        if request.method == "POST":
            if location not in session.announced and await asyncio.to_thread(store.exists, key):
                session.announced.add(location)
                await asyncio.to_thread(store.announce, key)
            return web.Response(status=204)
        if request.method in ("GET", "HEAD"):
            async with session.moving:
                return await self._send(request, web.Response(body=await asyncio.to_thread(store.get, key)))
        return web.Response(status=405)

    def _own_keys(self, session: _Admitted, name: str, prefix: str) -> list[str]:
        own = [(directory_of(store), key) for store, key in session.rollouts.results_in(name) if key.startswith(prefix)]
        return sorted(key for directory, key in own if directory is not None and self._store(directory).exists(key))

    async def _handle_s3(self, request: web.Request) -> web.StreamResponse:
        """A request for a bucket of the runtime's own S3: only for objects that are the session's results."""
        bucket, key = request.match_info["bucket"], request.match_info["key"]
        session = self._sessions.get(request.match_info["session"])
        location = result_location(bucket, key)
        if session is None or session.rollouts.store_of(location) is None:
            return s3_error(403, "AccessDenied", _NOT_OWN)
        if session.bucket.seconds_to_wait(time.monotonic()) > 0:
            return s3_error(503, "SlowDown", "too many requests")
        if request.method not in ("GET", "HEAD", "PUT"):
            return s3_error(405, "MethodNotAllowed", f"a session may not {request.method} its results")
        try:
            if request.method != "PUT":
                inner = request.rel_url.raw_path_qs.split("/s3/", 1)[1]
                async with session.moving:
                    return await self._send(request, await self._s3.handle(request.clone(rel_url="/" + inner)))
            async with self._body(request, session) as data:
                etag = await self._s3.put(bucket, key, decode_body(data, request.headers), only_if_absent=True)
        except S3Error as error:
            if error.status == 412:
                session.rollouts.mark_stored(location)
            return s3_error(error.status, error.code, str(error))
        except StoreUnavailable as error:
            return s3_error(503, "ServiceUnavailable", str(error))
        session.rollouts.mark_stored(location)
        return web.Response(headers={"ETag": etag})

    async def _send(self, request: web.Request, response: web.Response) -> web.StreamResponse:
        """Send an answer whole, so that a session that reads nothing holds no more than this one."""
        body = response.body if request.method == "GET" and isinstance(response.body, bytes) else b""
        if len(body) < _CHUNK:
            return response
        if self._held + len(body) > _MOST_HELD and len(body) > _ALWAYS_HELD:
            raise StoreUnavailable(_FULL)
        self._held += len(body)
        slow = asyncio.get_running_loop().call_later(_BODY_SECONDS, _cut_off, request)
        try:
            stream = web.StreamResponse(status=response.status, headers=response.headers)
            stream.content_length = len(body)
            await _write_pieces(stream, request, io.BytesIO(body))
            return stream
        finally:
            slow.cancel()
            self._held -= len(body)

    @contextlib.asynccontextmanager
    async def _body(self, request: web.Request, session: _Admitted) -> AsyncIterator[bytes]:
        """A request's body, counted towards the bytes held for all sessions while it is in use."""
        if (request.content_length or 0) > LARGEST_RESULT:
            raise web.HTTPRequestEntityTooLarge(LARGEST_RESULT, request.content_length or 0)
        async with session.moving:
            try:
                data = await asyncio.wait_for(self._read(request), _BODY_SECONDS)
            except asyncio.TimeoutError:
                raise web.HTTPRequestTimeout from None
            try:
                yield data
            finally:
                self._held -= len(data)

    async def _read(self, request: web.Request) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in request.content.iter_chunked(_CHUNK):
                chunks.append(chunk)
                size += len(chunk)
                self._held += len(chunk)
                if size > LARGEST_RESULT:
                    raise web.HTTPRequestEntityTooLarge(LARGEST_RESULT, size)
                if self._held > _MOST_HELD and size > _ALWAYS_HELD:
                    raise StoreUnavailable(_FULL)
        except BaseException:
            self._held -= size
            chunks.clear()  # the error may keep this frame alive
            raise
        return b"".join(chunks)

    def _store(self, path: str) -> LocalStore:
        path = str(Path(path).resolve())
        if path not in self._stores:
            self._stores[path] = LocalStore(path)
        return self._stores[path]


def _cut_off(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


async def _write_pieces(stream: web.StreamResponse, request: web.Request, source: io.BytesIO) -> None:
    """Write an answer. The error of a closed connection keeps its frames alive: with one piece, and an empty source."""
    try:
        await stream.prepare(request)
        while piece := source.read(_CHUNK):
            await stream.write(piece)
        await stream.write_eof()
    except ConnectionError:
        pass
    finally:
        source.close()
