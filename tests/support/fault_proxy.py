"""An HTTP proxy that fails on purpose, to stand between a client and a real server.

It can refuse with a status, cut the connection before the request reaches the server, cut it after the server did the
work (the answer is lost: the hardest case), delay a request, send it twice, or take it and never answer; and it can be
down altogether for a while. Seeded, and it counts.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import ClientResponse, ClientSession, ClientTimeout, TCPConnector, web

_REFUSALS = {
    "unavailable": (503, "ServiceUnavailableException"),
    "error": (500, "InternalServerException"),
    "throttled": (429, "ThrottlingException"),
}
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "proxy-connection", "trailer"}


FAULTS = ("unavailable", "cut before", "cut after")
MORE_FAULTS = (*FAULTS, "error", "delayed", "twice")


class FaultProxy:
    """Forwards to `upstream`, failing a `rate` of the requests."""

    def __init__(
        self, upstream: str, *, rate: float = 0.0, seed: int = 0, faults: tuple[str, ...] = FAULTS, **few: int
    ) -> None:
        """`few`: further faults, each injected that many times, for those that would slow a test down."""
        self.upstream = upstream.rstrip("/")
        self.rate, self.faults, self.few = rate, faults, few
        self.down = False
        self.counts: Counter[str] = Counter()
        self.url = ""
        self._dice = random.Random(seed)
        self._session: ClientSession | None = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.counts["requests"] += 1
        fault = self._choose()
        self.counts[fault] += 1
        if fault == "down" or fault == "cut before":
            return _cut(request)
        if fault in _REFUSALS:
            status, code = _REFUSALS[fault]
            headers = {"x-amzn-ErrorType": code}
            return web.json_response({"message": "fault injected"}, status=status, headers=headers)
        if fault == "hang":
            await self._closing.wait()
            return _cut(request)
        if fault == "delayed":
            await asyncio.sleep(self._dice.random())
        if fault == "twice":
            self._second = asyncio.ensure_future(self._forward(request, body))
        answer, content = await self._forward(request, body)
        if fault == "cut after":
            return _cut(request)
        return _copy(request, answer, content)

    async def _forward(self, request: web.Request, body: bytes) -> tuple[ClientResponse, bytes]:
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = self.upstream + request.raw_path
        async with self._session.request(
            request.method, _raw(url), data=body, headers=headers, allow_redirects=False
        ) as answer:
            return answer, await answer.read()

    def _choose(self) -> str:
        if self.down:
            return "down"
        if self._dice.random() >= self.rate:
            return "passed"
        due = [fault for fault, count in self.few.items() if self.counts[fault] < count]
        if due and self._dice.random() < 0.2:
            return self._dice.choice(due)
        return self._dice.choice(self.faults)

    @contextmanager
    def serving(self) -> Iterator[FaultProxy]:
        """Serve on a free loopback port, on its own thread."""
        loop = asyncio.new_event_loop()
        runner = web.AppRunner(self._app())

        async def start() -> None:
            self._closing = asyncio.Event()
            self._session = ClientSession(
                connector=TCPConnector(limit=0), timeout=ClientTimeout(total=60), auto_decompress=False
            )
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

        async def stop() -> None:
            self._closing.set()
            await runner.cleanup()
            assert self._session is not None
            await self._session.close()

        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app


class WithoutListBucket(FaultProxy):
    """S3 as somebody sees it who may read and write objects, but not list them: what isn't there is forbidden, too."""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.counts["requests"] += 1
        lists = request.method == "GET" and "list-type" in request.query
        if not lists:
            answer, content = await self._forward(request, body)
            if answer.status != 404:
                return _copy(request, answer, content)
        self.counts["listed" if lists else "missing"] += 1
        told = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        return web.Response(status=403, text=told, content_type="application/xml")


def _raw(url: str) -> object:
    """The URL exactly as it came: a signature covers every byte of it."""
    from yarl import URL

    return URL(url, encoded=True)


def _copy(request: web.Request, answer: ClientResponse, content: bytes) -> web.Response:
    response = web.Response(status=answer.status, body=content)
    dropped = _HOP_BY_HOP | {"content-length", "content-type"}
    response.headers.extend([(n, v) for n, v in answer.headers.items() if n.lower() not in dropped])
    if "Content-Type" in answer.headers:
        response.headers["Content-Type"] = answer.headers["Content-Type"]
    if request.method == "HEAD":
        response.headers["Content-Length"] = answer.headers.get("Content-Length", "0")
    return response


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:  # else the client was faster
        request.transport.abort()
    return web.Response(status=500)
