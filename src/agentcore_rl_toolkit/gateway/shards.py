"""Several processes as one gateway: each has its own sessions, on a port of its own.

A session belongs to the worker its id hashes to, and its URL leads there. Whichever worker is asked for another's
session passes the request on, so one address is enough; what concerns all is passed on to all.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from .app import refusal
from .faults import Fault
from .wire.body import dump, read_json

_PASSED_ON = "X-Gateway-Worker"
_FOR_ALL = {"/pause", "/resume", "/drain", "/weights"}
_ASK_SECONDS = 5.0
_OWN_TO_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade"}


class Shards:
    """One worker among several."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        index: int,
        urls: Sequence[str],
        *,
        ask_seconds: float = _ASK_SECONDS,
    ) -> None:
        """`handle` serves what is this worker's own; `urls` are those of all workers, `index` says which is this.

        `ask_seconds` is what the others have to say how they are; what they are told to do takes as long as it does.
        """
        self._handle_own = handle
        self._index = index
        self._urls = urls
        self._ask_seconds = ask_seconds
        self._turn = itertools.count(index)
        self._client: aiohttp.ClientSession | None = None

    def owner(self, session_id: str) -> int:
        """The worker that has a session."""
        return zlib.crc32(session_id.encode("utf-8", "surrogatepass")) % len(self._urls)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve a request, or have it served."""
        if _PASSED_ON in request.headers:
            return await self._handle_own(request)
        path = request.path.rstrip("/")
        if path.startswith("/sessions/"):
            owner = self.owner(path[len("/sessions/") :].partition("/")[0].partition(".")[0])
            if owner != self._index:
                return await self._pass_on(request, owner, await request.read())
        elif path == "/sessions" and request.method == "POST":
            return await self._open(request)
        elif path in _FOR_ALL:
            body = await request.read()
            for failed in await asyncio.gather(*(self._tell(request, other, body) for other in self._others())):
                if failed is not None:
                    return failed
        elif path in ("/metrics", "/health") and request.method == "GET":
            return await self._sum(request, path)
        return await self._handle_own(request)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def _others(self) -> list[int]:
        return [worker for worker in range(len(self._urls)) if worker != self._index]

    async def _open(self, request: web.BaseRequest) -> web.StreamResponse:
        """A session without an id gets one of the worker whose turn it is."""
        raw = await request.read()
        body = raw
        try:
            settings = read_json(raw) if raw.strip() else {}
        except Fault:
            return await self._handle_own(request)
        session_id = settings.get("session_id")
        if session_id is None:
            owner = next(self._turn) % len(self._urls)
            session_id = secrets.token_hex(12)
            while self.owner(session_id) != owner:
                session_id = secrets.token_hex(12)
            body = dump(settings | {"session_id": session_id})
        owner = self.owner(session_id) if isinstance(session_id, str) else self._index
        if owner == self._index and body is raw:
            return await self._handle_own(request)
        return await self._pass_on(request, owner, body)

    async def _pass_on(self, request: web.BaseRequest, owner: int, body: bytes) -> web.StreamResponse:
        """Have another worker answer, piece by piece as it does."""
        response = None
        try:
            async with self._send(request, owner, body) as answer:
                response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except aiohttp.ClientError:
            if response is None:
                return refusal(request, _away(owner))
            if request.transport is not None:
                request.transport.abort()  # half an answer must not look like a whole one
            return response

    async def _tell(self, request: web.BaseRequest, worker: int, body: bytes) -> web.Response | None:
        """Have another worker do the same; what it says if it doesn't, for all have to."""
        try:
            async with self._send(request, worker, body) as answer:
                said = await answer.read()
        except aiohttp.ClientError:
            return refusal(request, _away(worker))
        return None if answer.ok else web.Response(status=answer.status, body=said, headers=_kept(answer.headers))

    async def _ask(self, request: web.BaseRequest, worker: int) -> bytes:
        """What another worker says; one that says nothing in time is as good as away."""
        async with asyncio.timeout(self._ask_seconds), self._send(request, worker, b"") as answer:
            said: bytes = await answer.read()
            return said

    def _send(self, request: web.BaseRequest, worker: int, body: bytes) -> Any:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=5)
            )
        headers = {**_kept(request.headers), _PASSED_ON: str(self._index)}
        url = URL(self._urls[worker] + request.raw_path, encoded=True)
        return self._client.request(request.method, url, data=body, headers=headers)

    async def _sum(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Counts of all workers together."""
        own = await self._handle_own(request)
        assert isinstance(own, web.Response)
        assert isinstance(own.body, bytes)
        others = await asyncio.gather(*(self._ask(request, other) for other in self._others()), return_exceptions=True)
        answers = [own.body, *(answer for answer in others if isinstance(answer, bytes))]
        if path == "/metrics":
            counts: Counter[str] = Counter()
            for answer in answers:
                for line in answer.decode().splitlines():
                    name, _, value = line.rpartition(" ")
                    counts[name] += int(value)
            return web.Response(text="".join(f"{name} {value}\n" for name, value in counts.items()))
        read = [orjson.loads(answer) for answer in answers]
        counted = ("sessions", "in_flight", "log_failures", "log_damaged")
        summed = read[0] | {name: sum(one[name] for one in read) for name in counted}
        summed["replicas_well"] = min(one["replicas_well"] for one in read)
        bad = [one["status"] for one in read if one["status"] != "ok"]
        summed["status"] = "degraded" if len(read) < len(self._urls) else (bad or ["ok"])[0]
        return web.Response(body=orjson.dumps(summed | {"workers": len(read)}), content_type="application/json")


def _away(worker: int) -> Fault:
    return Fault(503, "worker_unavailable", f"worker {worker} of the gateway is not there", retry_after=1)


def _kept(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OWN_TO_A_CONNECTION}
