"""Where sessions store their results: one loopback port of the runtime, and nothing but their own results.

A session sees none of the host's files. Through this port it stores the results of the rollouts it has accepted, each
once, in the store that the request named, a directory (`store/session_store.py`) or a bucket of the runtime's S3; and
it reads and announces them. An unguessable key in the URL says which session it is. All of it is bounded: the size of
a result, the bytes that are held for all sessions together, and a session's requests per second.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from ...hosting.pending_rollouts import AcceptedRollouts, place_of
from ..server.http_log import http_logger
from ..server.local_s3 import LocalS3, decoded_body, s3_refusal
from .egress import TokenBucket

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CHUNK = 1 << 16
_MOST_HELD = 1 << 30
_BODY_SECONDS = 120
_REQUESTS_PER_SECOND, _BURST = 20, 200


@dataclass
class _Admitted:
    rollouts: AcceptedRollouts
    announced: set[str] = field(default_factory=set)
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    bucket: TokenBucket = field(default_factory=lambda: TokenBucket(_REQUESTS_PER_SECOND, _BURST))


@dataclass
class _Held:
    size: int = 0


_GUARD = RequestGuard([])


@web.middleware
async def _no_web_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    refusal = _GUARD.refusal(request.headers)
    return await handler(request) if refusal is None else web.Response(status=403, text=refusal.message)


def _directory(store: str | None) -> str | None:
    """The directory of an accepted rollout's store: its caller's words count, a session's lead elsewhere."""
    return None if store is None else directory_of(store)


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
        """Listen."""
        app = web.Application(middlewares=[_no_web_pages])
        app.router.add_route("*", "/{session}/store/{key:.*}", self._handle)
        app.router.add_route("*", "/{session}/s3/{bucket}/{key:.*}", self._handle_s3)
        self._runner = web.AppRunner(app, access_log=None, auto_decompress=False, logger=http_logger())
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    def admit(self, rollouts: AcceptedRollouts) -> str:
        """Let a session in; gives its URL, which is also its key."""
        key = secrets.token_urlsafe(24)
        self._sessions[key] = _Admitted(rollouts)
        return f"http://127.0.0.1:{self.port}/{key}"

    def dismiss(self, url: str) -> None:
        """Let it in no longer."""
        self._sessions.pop(url.rsplit("/", 1)[-1], None)

    async def _handle(self, request: web.Request) -> web.Response:
        """A directory of the host, as `store/session_store.py` asks for it."""
        name, key = request.query.get("store", ""), request.match_info["key"]
        session = self._sessions.get(request.match_info["session"])
        if session is None:
            return web.Response(status=403, text="this session has ended")
        if session.bucket.take(time.monotonic()) > 0:
            return web.Response(status=503, text="too many requests")
        if not key:
            keys = await asyncio.to_thread(self._own_keys, session, name, request.query.get("prefix", ""))
            return web.Response(text="\n".join(keys))
        place = place_of(name, key)
        directory = _directory(session.rollouts.store_of(place))
        if directory is None:
            return web.Response(status=403, text="a session may store nothing but the results of its own rollouts")
        try:
            return await self._do(request, session, directory, key, place)
        except StoreUnavailable as error:
            return web.Response(status=503, text=str(error))
        except AgentCoreRLError as error:
            return web.Response(status=400, text=str(error))

    async def _do(self, request: web.Request, session: _Admitted, directory: str, key: str, place: str) -> web.Response:
        store = self._store(directory)
        if request.method == "PUT":
            async with self._body(request, session) as data:
                stored = await asyncio.to_thread(store.put_if_absent, key, data)
            session.rollouts.was_stored(place)
            return web.Response(status=201 if stored else 409)
        if request.method == "POST":
            if place not in session.announced and await asyncio.to_thread(store.exists, key):
                session.announced.add(place)
                await asyncio.to_thread(store.announce, key)
            return web.Response(status=204)
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405)
        try:
            return web.Response(body=await asyncio.to_thread(store.get, key))
        except KeyNotFound:
            return web.Response(status=404)

    def _own_keys(self, session: _Admitted, name: str, prefix: str) -> list[str]:
        own = [(_directory(store), key) for store, key in session.rollouts.results_in(name) if key.startswith(prefix)]
        return sorted(key for directory, key in own if directory is not None and self._store(directory).exists(key))

    async def _handle_s3(self, request: web.Request) -> web.StreamResponse:
        """A bucket of the runtime's own S3, as far as a session needs it: objects that are its results."""
        bucket, key = request.match_info["bucket"], request.match_info["key"]
        session = self._sessions.get(request.match_info["session"])
        place = place_of(bucket, key)
        if session is None or session.rollouts.store_of(place) is None:
            return s3_refusal(403, "AccessDenied", "a session may use no objects but the results of its own rollouts")
        if session.bucket.take(time.monotonic()) > 0:
            return s3_refusal(503, "SlowDown", "too many requests")
        if request.method in ("GET", "HEAD"):
            inner = request.rel_url.raw_path_qs.split("/s3/", 1)[1]
            return await self._s3.handle(request.clone(rel_url="/" + inner))
        if request.method != "PUT":
            return s3_refusal(405, "MethodNotAllowed", f"a session may not {request.method} its results")
        try:
            async with self._body(request, session) as data:
                etag = await self._s3.put(bucket, key, decoded_body(data, request.headers), only_if_absent=True)
        except S3Error as error:
            if error.status == 412:
                session.rollouts.was_stored(place)
            return s3_refusal(error.status, error.code, str(error))
        except StoreUnavailable as error:
            return s3_refusal(503, "ServiceUnavailable", str(error))
        session.rollouts.was_stored(place)
        return web.Response(headers={"ETag": etag})

    @contextlib.asynccontextmanager
    async def _body(self, request: web.Request, session: _Admitted) -> AsyncIterator[bytes]:
        """A request's body, while it counts towards what is held for all sessions."""
        if (request.content_length or 0) > LARGEST_RESULT:
            raise web.HTTPRequestEntityTooLarge(LARGEST_RESULT, request.content_length or 0)
        held = _Held()
        async with session.storing:
            try:
                yield await asyncio.wait_for(self._read(request, held), _BODY_SECONDS)
            except asyncio.TimeoutError:
                raise web.HTTPRequestTimeout from None
            finally:
                self._held -= held.size

    async def _read(self, request: web.Request, held: _Held) -> bytes:
        chunks: list[bytes] = []
        async for chunk in request.content.iter_chunked(_CHUNK):
            chunks.append(chunk)
            held.size += len(chunk)
            self._held += len(chunk)
            if held.size > LARGEST_RESULT:
                raise web.HTTPRequestEntityTooLarge(LARGEST_RESULT, held.size)
            if self._held > _MOST_HELD:
                raise StoreUnavailable("too many results are being stored at once")
        return b"".join(chunks)

    def _store(self, path: str) -> LocalStore:
        path = str(Path(path).resolve())
        if path not in self._stores:
            self._stores[path] = LocalStore(path)
        return self._stores[path]
