"""Several processes as one gateway: each has its own sessions, on a port of its own.

A session belongs to the worker its id hashes to, and its URL leads there. Whichever worker is asked for another's
session passes the request on, so one address is enough; what concerns all is passed on to all. A request is passed on
byte by byte as it arrives: the session's own worker knows whether to read it.

What concerns all goes through the first worker, with which all others end: one that dies leaves nothing half done.
A pause is for all or for nobody: if one fails or is away, or the caller goes away, the others go on as before. A
resume, and the name of the weights, reach every worker that is there, and are an error if one is not: undoing them
would hold up agents, or misname what is sampled. Saying them again until they succeed is right in any case. A worker
that starts asks the first one how things are, for it may have been away when they changed.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import secrets
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from ..errors import GatewayFault
from .http.app import error_response
from .http.http_server import read_body
from .record.log import WeightState
from .wire.json_body import dump, read_json

logger = logging.getLogger(__name__)

_PASSED_ON = "X-Gateway-Worker"
_FOR, _ALL = "X-Gateway-For", "all"
"""Says that the first worker is to have all others do what it is asked."""
_FOR_ALL = {"/resume", "/drain", "/weights"}
_ASK_SECONDS = 5.0
_OWN_TO_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade"}
_JUDGED = {"origin", "sec-fetch-site"}
"""Headers by which the worker that took a request has let it in; the next one sees another Host."""
_UNPACKED = {"content-encoding"}  # of a request: its body has been
_NOT_OURS = {"Content-Type", "User-Agent"}  # to add to what a client has said


class Shards:
    """One worker among several."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        index: int,
        urls: Sequence[str],
        *,
        mark: str = "",
        paused: Callable[[], bool] = lambda: False,
        admit: Callable[[web.BaseRequest], None] = lambda request: None,
        ask_seconds: float = _ASK_SECONDS,
    ) -> None:
        """`handle` serves what is this worker's own; `urls` are those of all workers, `index` says which is this.

        `mark` is a secret of the workers: a request that carries it was passed on by one, and is not passed on again.
        `paused` says whether this worker is. `admit` raises a `GatewayFault` for a request without the admin key; a
        request that concerns all workers is not read before it. `ask_seconds` limits how long the others may take to
        report their state; an order may take as long as it needs.
        """
        self._handle_own = handle
        self._index = index
        self._urls = urls
        self._mark = mark.encode()
        self._paused = paused
        self._admit = admit
        self._ask_seconds = ask_seconds
        self._turn = itertools.count(index)
        self._client: aiohttp.ClientSession | None = None

    def owner(self, session_id: str) -> int:
        """The worker that has a session."""
        return zlib.crc32(session_id.encode("utf-8", "surrogatepass")) % len(self._urls)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve a request, or have it served."""
        given = request.headers.get(_PASSED_ON)
        passed = given is not None and hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._mark)
        if passed and (self._index or request.headers.get(_FOR) != _ALL):
            return await self._handle_own(request)
        try:
            return await self._handle(request)
        except GatewayFault as fault:  # a body that can't be read
            return error_response(request, fault)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if path.startswith("/sessions/"):
            owner = self.owner(path[len("/sessions/") :].partition("/")[0].partition(".")[0])
            if owner != self._index:
                return await self._pass_on(request, owner)
        elif path == "/sessions" and request.method == "POST":
            return await self._open(request)
        elif self._index and (path == "/pause" or path in _FOR_ALL):
            return await self._pass_on(request, 0)
        elif path == "/pause":
            return await self._pause(request)
        elif path in _FOR_ALL:
            failed = await self._tell_others(request, await self._read_admitted(request))
            own = await self._handle_own(request)
            return own if failed is None else failed
        elif path in ("/metrics", "/health") and request.method == "GET":
            return await self._sum(request, path)
        return await self._handle_own(request)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _read_admitted(self, request: web.BaseRequest) -> bytes:
        self._admit(request)
        return await read_body(request)

    async def ask_first(self) -> WeightState | None:
        """Which weights the first worker samples, and whether it is paused; None if it doesn't say, or this is it."""
        if self._index == 0:
            return None
        headers = {_PASSED_ON: self._mark.decode()}
        try:
            async with (
                asyncio.timeout(self._ask_seconds),
                self._connected().get(f"{self._urls[0]}/health", headers=headers) as answer,
            ):
                said = orjson.loads(await answer.read())
                return WeightState(said["weight_version"], said["status"] == "paused")
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            logger.warning("worker 0 does not say which weights are sampled: %s", error)
            return None

    def _others(self) -> list[int]:
        return [worker for worker in range(len(self._urls)) if worker != self._index]

    async def _open(self, request: web.BaseRequest) -> web.StreamResponse:
        """A session without an id gets one of the worker whose turn it is."""
        body = raw = await self._read_admitted(request)
        try:
            settings = read_json(raw) if raw.strip() else {}
        except GatewayFault:
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

    async def _pause(self, request: web.BaseRequest) -> web.StreamResponse:
        """All of them or none."""
        body, before = await self._read_admitted(request), self._paused()
        done = False
        try:
            answer = await self._tell_others(request, body) or await self._handle_own(request)
            done = answer.status < 400
            return answer
        finally:
            if not done and not before:
                await asyncio.shield(self._undo_pause(request))

    async def _undo_pause(self, request: web.BaseRequest) -> None:
        for failed in await asyncio.gather(*(self._tell(request, other, b"", "/resume") for other in self._others())):
            if failed is not None:
                logger.warning("a worker may be paused still: %s", failed.text)

    async def _tell_others(self, request: web.BaseRequest, body: bytes) -> web.Response | None:
        """Have all others do the same; what the first says that doesn't."""
        said = await asyncio.gather(*(self._tell(request, other, body) for other in self._others()))
        return next((failed for failed in said if failed is not None), None)

    async def _pass_on(self, request: web.BaseRequest, owner: int, body: bytes | None = None) -> web.StreamResponse:
        """Have another worker answer, piece by piece as it does; without a `body`, to the request's own bytes."""
        response = None
        try:
            async with self._send(request, owner, body) as answer:
                response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
                if not request.content.is_eof():  # refused before all of it was here
                    response.force_close()
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except aiohttp.ClientError:
            if response is None:
                broken = request.content.exception()
                fault = _away(owner) if broken is None else GatewayFault.invalid(f"the body can't be read: {broken}")
                return error_response(request, fault)
            if request.transport is not None:
                request.transport.abort()  # half an answer must not look like a whole one
            return response

    async def _tell(
        self, request: web.BaseRequest, worker: int, body: bytes, path: str | None = None
    ) -> web.Response | None:
        """Have another worker do the same, or what is at `path`; what it says if it doesn't, for all have to."""
        try:
            async with self._send(request, worker, body, path) as answer:
                said = await answer.read()
        except aiohttp.ClientError:
            return error_response(request, _away(worker))
        return None if answer.ok else web.Response(status=answer.status, body=said, headers=_kept(answer.headers))

    async def _ask(self, request: web.BaseRequest, worker: int) -> bytes:
        """What another worker says; one that says nothing in time is as good as away."""
        async with asyncio.timeout(self._ask_seconds), self._send(request, worker, b"") as answer:
            said: bytes = await answer.read()
            return said

    def _send(self, request: web.BaseRequest, worker: int, body: bytes | None, path: str | None = None) -> Any:
        headers = {**_kept(request.headers, _JUDGED), _PASSED_ON: self._mark.decode()}
        data: Any = body
        if body is not None:
            headers = _kept(headers, _UNPACKED)
        elif request.content.is_eof():
            data = request.content.read_nowait()
        else:
            data = request.content
            if request.content_length is not None:
                headers["Content-Length"] = str(request.content_length)
        if body is None and worker == 0:
            headers[_FOR] = _ALL
        url = URL(self._urls[worker] + (path or request.rel_url.raw_path_qs), encoded=True)
        return self._connected().request(request.method, url, data=data, headers=headers, skip_auto_headers=_NOT_OURS)

    def _connected(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
                auto_decompress=False,  # an answer is handed on as it comes
            )
        return self._client

    async def _sum(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Counts of all workers together."""
        own = await self._handle_own(request)
        assert isinstance(own, web.Response)
        if own.status != 200:
            return own
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
        summed["log_error"] = next((one["log_error"] for one in read if one.get("log_error")), None)
        bad = [one["status"] for one in read if one["status"] != "ok"]
        summed["status"] = "degraded" if len(read) < len(self._urls) else (bad or ["ok"])[0]
        return web.Response(body=orjson.dumps(summed | {"workers": len(read)}), content_type="application/json")


def _away(worker: int) -> GatewayFault:
    return GatewayFault(
        f"worker {worker} of the gateway is not there", status=503, code="worker_unavailable", retry_after=1
    )


def _kept(headers: Any, without: Set[str] = frozenset()) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OWN_TO_A_CONNECTION | without}
