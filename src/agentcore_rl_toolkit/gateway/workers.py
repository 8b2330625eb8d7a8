"""Several processes as one gateway: each has its own sessions, on its own port.

A session belongs to the worker that its id hashes to, and its URL leads there. A worker forwards requests for another
worker's session, byte by byte as they arrive, so one address is enough: only the owner decides whether to read them.
Several gateways behind one address share sessions the same way. A gateway that joins owns its share of new sessions;
sessions that were open before are found where they are.

Operations on all workers go through the first one. The others end with it, so its death leaves nothing half done.
A pause holds for all workers or for none: if one worker fails or the caller disconnects, the others resume. A resume
and a new weight version reach every running worker and fail if one is missing, because undoing them would block agents
or misname samples; repeating them until they succeed is safe. A worker that starts asks the first one for the current
state, which may have changed while it was away.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import math
import secrets
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from ..errors import ConfigError, GatewayFault
from .base import ADMIN_KEY
from .http.gateway_app import error_response
from .http.http_server import read_body
from .http.openapi import PeersRequest
from .record.log import WeightState
from .remote.frames import MEDIA, MOST_SESSIONS, BatchAnswer, PackedFault, pack
from .remote.members import check_peers, of_gateways, of_workers
from .wire.fields import parse
from .wire.json_body import dump, read_json

logger = logging.getLogger(__name__)

_FORWARDED = "X-Gateway-Worker"
_FOR, _ALL = "X-Gateway-For", "all"
"""Tells the first worker to forward the operation to all others."""
_FOR_ALL = {("POST", "/resume"), ("POST", "/drain"), ("PUT", "/weights"), ("PUT", "/engines")}
_STATE_SECONDS = 5.0
_HAS = "/members/has/"
"""Asked by one member of another: whether it has a session."""
_FOUND_SECONDS, _MISSING_SECONDS, _MOST_FOUND = 60.0, 5.0, 10_000
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade"}
_CHECKED = {"origin", "sec-fetch-site"}
"""Headers that the receiving worker has checked already; the next one sees another Host."""
_UNPACKED = {"content-encoding"}  # the request's body is decompressed by now
_NO_DEFAULTS = {"Content-Type", "User-Agent"}  # aiohttp must not add these to a client's request


class WorkerRouter:
    """Routes the requests of one worker: to itself, to their owner, or to all workers."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        index: int,
        urls: Sequence[str],
        *,
        mark: str = "",
        peers: Sequence[str] = (),
        peer: str = "",
        knows: Callable[[str], bool] = lambda session_id: True,
        paused: Callable[[], bool] = lambda: False,
        admit: Callable[[web.BaseRequest], None] = lambda request: None,
        state_seconds: float = _STATE_SECONDS,
    ) -> None:
        """`handle` serves this worker's own requests; `urls` are those of all workers, `index` is this worker's.

        `peers` are the addresses of several gateways that share sessions, the one at `peer` is this one. `knows` tells
        whether this worker has a session: after a gateway has joined, it may be one that the owner doesn't have.
        `mark` is a secret of the workers: a request that carries it was forwarded by one, and is not forwarded again.
        `paused` returns whether this worker is paused. `admit` raises a `GatewayFault` for a request without the admin
        key, before the body of an operation on all workers is read. `state_seconds` limits how long the others may take
        to report their state; other operations may take as long as they need.
        """
        self._handle_own = handle
        self._own_urls, self._own_index, self._peer = urls, index, peer
        self._peers, self._leaving = list(peers), list[str]()
        self._knows = knows
        self._found: OrderedDict[str, tuple[int | None, float]] = OrderedDict()
        """Where sessions were found that their owners don't have, and until when that counts."""
        self._take_members()
        self._mark = mark.encode()
        self._paused = paused
        self._admit = admit
        self._state_seconds = state_seconds
        self._turn = itertools.count(index)
        self._client: aiohttp.ClientSession | None = None

    def owner(self, session_id: str) -> int:
        """The worker that owns a session."""
        return self._members.owner(session_id)

    def _take_members(self) -> None:
        if self._peers:
            self._members = of_gateways(self._peers, self._peer, self._own_urls, self._own_index, self._leaving)
        else:
            self._members = of_workers(self._own_urls, self._own_index)
        self._index, self._first = self._members.index, self._members.first
        self._urls = [member.url for member in self._members.members] if self._peers else self._own_urls
        self._found.clear()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve a request, or forward it."""
        given = request.headers.get(_FORWARDED)
        passed = given is not None and hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._mark)
        try:
            if passed and request.path.startswith(_HAS):
                return web.Response(status=200 if self._knows(request.path[len(_HAS) :]) else 404)
            if passed and request.path == "/peers" and request.headers.get(_FOR) != _ALL:
                body = await read_body(request)
                return self._change_peers(body) if body.strip() else self._tell_peers()
            if passed and (self._index != self._first or request.headers.get(_FOR) != _ALL):
                return await self._handle_own(request)
            return await self._handle(request)
        except GatewayFault as fault:  # a body that can't be read
            return error_response(request, fault)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if path.startswith("/sessions/"):
            owner = await self._locate(path[len("/sessions/") :].partition("/")[0].partition(".")[0])
            if owner != self._index:
                return await self._proxy(request, owner)
        elif path == "/sessions" and request.method == "POST":
            return await self._open(request)
        elif self._index != self._first and (path in ("/pause", "/peers") or (request.method, path) in _FOR_ALL):
            return await self._proxy(request, self._first)
        elif path == "/peers" and request.method == "PUT":
            return await self._tell_members(request, await self._read_admitted(request))
        elif path == "/peers" and request.method == "GET":
            self._admit(request)
            return self._tell_peers()
        elif path == "/pause":
            return await self._pause(request)
        elif (request.method, path) in _FOR_ALL:
            failed = await self._forward_to_others(request, await self._read_admitted(request))
            own = await self._handle_own(request)
            return own if failed is None else failed
        elif path.startswith("/batch/") and request.method == "POST":
            return await self._split(request)
        elif path in ("/metrics", "/health", "/sessions") and request.method == "GET":
            return await self._sum(request, path)
        return await self._handle_own(request)

    @property
    def urls(self) -> Sequence[str]:
        """The addresses of all workers."""
        return self._urls

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _read_admitted(self, request: web.BaseRequest) -> bytes:
        self._admit(request)
        return await read_body(request)

    async def fetch_state(self) -> WeightState | None:
        """The first worker's weights and pause; None if it does not answer, or if this is the first worker."""
        said = await self._ask_first("/health", "weight_version")
        return None if said is None else WeightState(said["weight_version"], said["status"] == "paused")

    async def fetch_engines(self, admin_key: str) -> list[str]:
        """The names of the replicas that the first worker samples from; none if it doesn't say."""
        said = await self._ask_first("/engines", "engines", {"Authorization": f"Bearer {admin_key}"})
        return [] if said is None else [one["name"] for one in said["engines"]]

    async def _ask_first(self, path: str, key: str, headers: dict[str, str] | None = None) -> dict[str, Any] | None:
        """What the first worker answers, if it has `key`; None if it does not, or if this is the first worker."""
        sent = {_FORWARDED: self._mark.decode(), **(headers or {})}
        asked = self._others() if self._index == self._first else [self._first]
        for other in asked if self._peers or self._index != self._first else []:
            try:
                async with (
                    asyncio.timeout(self._state_seconds),
                    self._connected().get(self._urls[other] + path, headers=sent) as answer,
                ):
                    refused = answer.status in (401, 409)
                    said: dict[str, Any] = orjson.loads(await answer.read())
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                logger.warning("worker %d did not answer %s: %s", other, path, error)
                continue
            if refused and self._peers:
                raise ConfigError(
                    f"the gateway at {self._urls[other]} does not share its sessions with this one",
                    hint=f"start all of them with --peers, and with the same {ADMIN_KEY}",
                )
            if key in said:
                return said
        return None

    async def fetch_peers(self) -> None:
        """Take over the peers that another gateway knows, if one answers: they may have changed since the start."""
        said = await self._ask_first("/peers", "peers") if self._peers else None
        if said is not None:
            if said["workers"] != (own := len(self._own_urls)):
                text = f"another gateway has {said['workers']} workers, and this one {own}"
                raise ConfigError(text, hint="start all of them with the same --workers")
            self._peers, self._leaving = said["peers"], said["leaving"]
            self._take_members()

    async def _tell_members(self, request: web.BaseRequest, body: bytes) -> web.Response:
        """Change the peers of all gateways. One that is no longer named need not answer: it may have died."""
        asked, others = self._read_peers(body), self._others()
        said = await asyncio.gather(*(self._forward(request, other, body) for other in others))
        for other, failed in zip(others, said, strict=True):
            gateway = self._members.members[other].name.rpartition("/")[0]
            if failed is not None and gateway in (*asked.peers, *asked.leaving):
                return failed
        return self._change_peers(body)

    def _change_peers(self, body: bytes) -> web.Response:
        """Share sessions with these gateways from now on."""
        asked = self._read_peers(body)
        self._peers, self._leaving = asked.peers, asked.leaving
        self._take_members()
        logger.warning("sharing sessions with %s", ", ".join(self._peers))
        return self._tell_peers()

    def _read_peers(self, body: bytes) -> PeersRequest:
        if not self._peers:
            text = "this gateway has no peers"
            raise GatewayFault(text, status=409, code="no_peers", hint="start it with --peers and --peer-url")
        asked = parse(read_json(body), PeersRequest)
        try:
            named = check_peers([*asked.peers, *asked.leaving])
        except ConfigError as error:
            raise GatewayFault.invalid(str(error), param="peers") from None
        return PeersRequest(named[: len(asked.peers)], named[len(asked.peers) :])

    def _tell_peers(self) -> web.Response:
        told = orjson.dumps({"peers": self._peers, "leaving": self._leaving, "workers": len(self._own_urls)})
        return web.Response(body=told, content_type="application/json")

    async def _locate(self, session_id: str) -> int:
        """Who has a session: this worker, its owner, or the gateway that owned it before another one joined."""
        owner = self.owner(session_id)
        if not self._peers or self._knows(session_id):
            return self._index if self._peers else owner
        now = asyncio.get_running_loop().time()
        found, until = self._found.get(session_id, (None, -math.inf))
        if until < now:
            found = await self._find(session_id)
            self._found[session_id] = found, now + (_FOUND_SECONDS if found is not None else _MISSING_SECONDS)
            while len(self._found) > _MOST_FOUND:
                self._found.popitem(last=False)
        return owner if found is None else found

    async def _find(self, session_id: str) -> int | None:
        """Ask the owner, and only if it doesn't have the session all others."""
        owner = self.owner(session_id)
        if owner != self._index and await self._has(owner, session_id):
            return owner
        others = [other for other in self._others() if other != owner]
        having = await asyncio.gather(*(self._has(other, session_id) for other in others))
        return next((other for other, has in zip(others, having, strict=True) if has), None)

    async def _has(self, worker: int, session_id: str) -> bool:
        url = URL(f"{self._urls[worker]}{_HAS}{quote(session_id, safe='')}", encoded=True)
        try:
            async with (
                asyncio.timeout(self._state_seconds),
                self._connected().get(url, headers={_FORWARDED: self._mark.decode()}) as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _others(self) -> list[int]:
        return [worker for worker in range(len(self._urls)) if worker != self._index]

    async def _open(self, request: web.BaseRequest) -> web.StreamResponse:
        """Open a session. Without an id, it gets one that belongs to the next worker in turn."""
        body = raw = await self._read_admitted(request)
        try:
            settings = read_json(raw) if raw.strip() else {}
        except GatewayFault:
            return await self._handle_own(request)
        session_id = settings.get("session_id")
        if session_id is None:
            owner = next(self._turn) % self._members.owners
            session_id = secrets.token_hex(12)
            while self.owner(session_id) != owner:
                session_id = secrets.token_hex(12)
            body = dump(settings | {"session_id": session_id})
        owner = self.owner(session_id) if isinstance(session_id, str) else self._index
        if owner == self._index and body is raw:
            return await self._handle_own(request)
        return await self._proxy(request, owner, body)

    async def _split(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send each worker its sessions of a batch, and relay their frames as they arrive."""
        parts = await self._parts(read_json(await self._read_admitted(request)))
        if set(parts) <= {self._index}:  # also a body that can't be read
            return await self._handle_own(request)
        response = web.StreamResponse(headers={"Content-Type": MEDIA})
        await response.prepare(request)
        for owner, part in parts.items():
            relayed = 0
            try:
                async with self._send(request, owner, dump(part)) as answer:
                    answer.raise_for_status()
                    async for piece in answer.content.iter_any():
                        relayed += len(piece)
                        await response.write(piece)
            except aiohttp.ClientError:
                if relayed and request.transport is not None:
                    request.transport.abort()  # a frame may be cut in half
                    return response
                fault = PackedFault.of(_unavailable(owner))
                for name in _names(part):
                    await response.write(pack(BatchAnswer(name, fault)))
        await response.write_eof()
        return response

    async def _parts(self, body: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """A batch's body for each worker that owns some of its sessions; empty for a body that will be refused."""
        parts: dict[int, dict[str, Any]] = {}
        key, items = next(((key, body[key]) for key in ("sessions", "session_ids") if key in body), ("", None))
        if not isinstance(items, list) or len(items) > MOST_SESSIONS:
            return {}
        for item in items:
            name = item.get("session_id") if isinstance(item, dict) else item
            if not isinstance(name, str):
                return {}
            opens = key == "sessions" and not (self._peers and self._knows(name))
            place = self.owner(name) if opens else await self._locate(name)
            parts.setdefault(place, {key: []})[key].append(item)
        return parts

    async def _pause(self, request: web.BaseRequest) -> web.StreamResponse:
        """Pause all workers, or none."""
        body, before = await self._read_admitted(request), self._paused()
        done = False
        try:
            answer = await self._forward_to_others(request, body) or await self._handle_own(request)
            done = answer.status < 400
            return answer
        finally:
            if not done and not before:
                await asyncio.shield(self._undo_pause(request))

    async def _undo_pause(self, request: web.BaseRequest) -> None:
        for failed in await asyncio.gather(
            *(self._forward(request, other, b"", "/resume") for other in self._others())
        ):
            if failed is not None:
                logger.warning("a worker may still be paused: %s", failed.text)

    async def _forward_to_others(self, request: web.BaseRequest, body: bytes) -> web.Response | None:
        """Forward the operation to all others; returns the first failure."""
        said = await asyncio.gather(*(self._forward(request, other, body) for other in self._others()))
        return next((failed for failed in said if failed is not None), None)

    async def _proxy(self, request: web.BaseRequest, owner: int, body: bytes | None = None) -> web.StreamResponse:
        """Relay another worker's answer as it arrives. Without a `body`, the request's own bytes are forwarded."""
        response = None
        try:
            async with self._send(request, owner, body) as answer:
                response = web.StreamResponse(status=answer.status, headers=_forwarded(answer.headers))
                if not request.content.is_eof():  # refused before all of it arrived
                    response.force_close()
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except aiohttp.ClientError:
            if response is None:
                broken = request.content.exception()
                fault = (
                    _unavailable(owner) if broken is None else GatewayFault.invalid(f"the body can't be read: {broken}")
                )
                return error_response(request, fault)
            if request.transport is not None:
                request.transport.abort()  # a truncated answer must not look complete
            return response

    async def _forward(
        self, request: web.BaseRequest, worker: int, body: bytes, path: str | None = None
    ) -> web.Response | None:
        """Forward the operation, or the one at `path`, to another worker; returns its answer if it fails."""
        try:
            async with self._send(request, worker, body, path) as answer:
                said = await answer.read()
        except aiohttp.ClientError:
            return error_response(request, _unavailable(worker))
        return None if answer.ok else web.Response(status=answer.status, body=said, headers=_forwarded(answer.headers))

    async def _fetch_state(self, request: web.BaseRequest, worker: int) -> bytes:
        """Another worker's answer, within `state_seconds`."""
        async with asyncio.timeout(self._state_seconds), self._send(request, worker, b"") as answer:
            said: bytes = await answer.read()
            return said

    def _send(self, request: web.BaseRequest, worker: int, body: bytes | None, path: str | None = None) -> Any:
        headers = {**_forwarded(request.headers, _CHECKED), _FORWARDED: self._mark.decode()}
        data: Any = body
        if body is not None:
            headers = _forwarded(headers, _UNPACKED)
        elif request.content.is_eof():
            data = request.content.read_nowait()
        else:
            data = request.content
            if request.content_length is not None:
                headers["Content-Length"] = str(request.content_length)
        if body is None and worker == self._first:
            headers[_FOR] = _ALL
        url = URL(self._urls[worker] + (path or request.rel_url.raw_path_qs), encoded=True)
        return self._connected().request(
            request.method, url, data=data, headers=headers, skip_auto_headers=_NO_DEFAULTS
        )

    def _connected(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
                auto_decompress=False,  # answers are relayed unchanged
            )
        return self._client

    async def _sum(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answer with the sums of all workers' figures, or all their sessions."""
        own = await self._handle_own(request)
        assert isinstance(own, web.Response)
        if own.status != 200:
            return own
        assert isinstance(own.body, bytes)
        others = await asyncio.gather(
            *(self._fetch_state(request, other) for other in self._others()), return_exceptions=True
        )
        answers = [own.body, *(answer for answer in others if isinstance(answer, bytes))]
        if path == "/metrics":
            counts: Counter[str] = Counter()
            for answer in answers:
                for line in answer.decode().splitlines():
                    name, _, value = line.rpartition(" ")
                    counts[name] += int(value)
            return web.Response(text="".join(f"{name} {value}\n" for name, value in counts.items()))
        read = [orjson.loads(answer) for answer in answers]
        if path == "/sessions":
            listed = sorted((one for part in read for one in part["sessions"]), key=lambda one: -one["created_at"])
            return web.Response(body=orjson.dumps({"sessions": listed}), content_type="application/json")
        counted = ("sessions", "in_flight", "log_failures", "log_damaged")
        summed = read[0] | {name: sum(one[name] for one in read) for name in counted}
        summed["replicas_well"] = min(one["replicas_well"] for one in read)
        summed["log_error"] = next((one["log_error"] for one in read if one.get("log_error")), None)
        bad = [one["status"] for one in read if one["status"] != "ok"]
        summed["status"] = "degraded" if len(read) < len(self._urls) else (bad or ["ok"])[0]
        return web.Response(body=orjson.dumps(summed | {"workers": len(read)}), content_type="application/json")


def _names(part: dict[str, Any]) -> list[str]:
    return [one if isinstance(one, str) else one["session_id"] for items in part.values() for one in items]


def _unavailable(worker: int) -> GatewayFault:
    return GatewayFault(
        f"worker {worker} of the gateway does not answer", status=503, code="worker_unavailable", retry_after=1
    )


def _forwarded(headers: Any, without: Set[str] = frozenset()) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP | without}
