"""Several processes as one gateway: each has its own sessions, on its own port.

A session belongs to the worker that its id hashes to, and its URL leads there. A worker forwards requests for another
worker's session, byte by byte as they arrive, so one address is enough: only the owner decides whether to read them.
Several gateways behind one address share sessions the same way. A gateway that joins owns its share of new sessions;
sessions that were open before are found where they are.

Operations on all workers go through the first one. The others end with it, or `--restart` starts it again meanwhile.
A pause holds for all workers or for none: if one worker fails or the caller disconnects, the others resume. A resume
and a new weight version reach every running worker and fail if one is missing, because undoing them would block agents
or misname samples; repeating them until they succeed is safe. A worker that starts asks the first one for the current
state, which may have changed while it was away; the first one has its predecessor's (`handed_state.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from ...errors import ConfigError, GatewayFault
from ..base import ADMIN_KEY
from ..http.gateway_app import error_response
from ..http.http_server import read_body
from ..record.log import WeightState
from ..remote.frames import MEDIA, MOST_SESSIONS, BatchAnswer, FrameReader, PackedFault, pack
from ..wire.json_body import dump, read_json
from .membership import Membership
from .session_places import HAS, SessionPlaces
from .worker_links import WorkerLinks, unavailable

logger = logging.getLogger(__name__)

_FOR_ALL = {("POST", "/resume"), ("POST", "/drain"), ("PUT", "/weights"), ("PUT", "/engines")}
_STATE_SECONDS = 5.0


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
        batch: Callable[[str, Any], AsyncIterator[bytes]] | None = None,
        state_seconds: float = _STATE_SECONDS,
    ) -> None:
        """`handle` serves this worker's own requests; `urls` are those of all workers, `index` is this worker's.

        `peers` are the addresses of several gateways that share sessions, the one at `peer` is this one. `knows` tells
        whether this worker has a session: after a gateway has joined, it may be one that the owner doesn't have.
        `mark` is a secret of the workers: a request that carries it was forwarded by one, and is not forwarded again.
        `paused` returns whether this worker is paused. `admit` raises a `GatewayFault` for a request without the admin
        key, before the body of an operation on all workers is read. `batch` gives the frames that answer a batch
        operation on this worker's own sessions. `state_seconds` limits how long the others may take
        to report their state; other operations may take as long as they need.
        """
        self._handle_own = handle
        self._members = Membership(urls, index, peers=peers, peer=peer)
        self._links = WorkerLinks(self._members, mark=mark, ask_seconds=state_seconds)
        self._places = SessionPlaces(self._members, self._links, knows)
        self._paused = paused
        self._admit = admit
        self._batch = batch
        self._turn = itertools.count(index)

    def owner(self, session_id: str) -> int:
        """The worker that owns a session."""
        return self._members.owner(session_id)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve a request, or forward it."""
        try:
            if not self._links.comes_from_worker(request):
                return await self._handle(request)
            for_all = self._links.is_for_all(request)
            if request.path.startswith(HAS):
                return web.Response(status=200 if self._places.knows(request.path[len(HAS) :]) else 404)
            if request.path == "/peers" and not for_all:
                body = await read_body(request)
                return self._change_peers(body) if body.strip() else self._tell_peers()
            if for_all and self._members.is_first:
                return await self._handle(request)
            return await self._handle_own(request)
        except GatewayFault as fault:  # a body that can't be read
            return error_response(request, fault)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if path.startswith("/sessions/"):
            owner = await self._places.locate(path[len("/sessions/") :].partition("/")[0].partition(".")[0])
            if owner != self._members.index:
                return await self._links.relay(request, owner)
        elif path == "/sessions" and request.method == "POST":
            return await self._open(request)
        elif self._members.index != self._members.first and (
            path in ("/pause", "/peers") or (request.method, path) in _FOR_ALL
        ):
            return await self._links.relay(request, self._members.first)
        elif path == "/peers" and request.method == "PUT":
            return await self._tell_members(request, await self._read_admitted(request))
        elif path == "/peers" and request.method == "GET":
            self._admit(request)
            return self._tell_peers()
        elif path == "/pause":
            return await self._pause(request)
        elif (request.method, path) in _FOR_ALL:
            failed = await self._links.forward_to_others(request, await self._read_admitted(request))
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
        return self._members.urls

    async def close(self) -> None:
        await self._links.close()

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
        members = self._members
        asked = members.others if members.is_first else [members.first]
        for other in asked if members.peers or not members.is_first else []:
            try:
                status, answer = await self._links.ask(other, path, headers=headers)
                said: dict[str, Any] = orjson.loads(answer)
            except (OSError, ValueError) as error:
                logger.warning("worker %d did not answer %s: %s", other, path, error)
                continue
            if status in (401, 409) and members.peers:
                raise ConfigError(
                    f"the gateway at {members.urls[other]} does not share its sessions with this one",
                    hint=f"start all of them with --peers, and with the same {ADMIN_KEY}",
                )
            if key in said:
                return said
        return None

    async def fetch_peers(self) -> None:
        """Take over the peers that another gateway knows, if one answers: they may have changed since the start."""
        said = await self._ask_first("/peers", "peers") if self._members.peers else None
        if said is not None:
            self._members.take_over(said)
            self._places.forget()

    async def _tell_members(self, request: web.BaseRequest, body: bytes) -> web.Response:
        """Change the peers of all gateways. One that is no longer named need not answer: it may have died."""
        asked, others = self._members.read(body), self._members.others
        said = await asyncio.gather(*(self._links.forward(request, other, body) for other in others))
        for other, failed in zip(others, said, strict=True):
            gateway = self._members[other].name.rpartition("/")[0]
            if failed is not None and gateway in (*asked.peers, *asked.leaving):
                return failed
        return self._change_peers(body)

    def _change_peers(self, body: bytes) -> web.Response:
        self._members.change(self._members.read(body))
        self._places.forget()
        logger.warning("sharing sessions with %s", ", ".join(self._members.peers))
        return self._tell_peers()

    def _tell_peers(self) -> web.Response:
        return web.Response(body=orjson.dumps(self._members.describe()), content_type="application/json")

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
        owner = self.owner(session_id) if isinstance(session_id, str) else self._members.index
        if owner == self._members.index and body is raw:
            return await self._handle_own(request)
        return await self._links.relay(request, owner, body)

    async def _split(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send each worker its sessions of a batch, all at once, and relay their frames as they arrive."""
        parts = await self._parts(read_json(await self._read_admitted(request)))
        if set(parts) <= {self._members.index}:  # also a body that can't be read
            return await self._handle_own(request)
        response = web.StreamResponse(headers={"Content-Type": MEDIA})
        await response.prepare(request)
        await asyncio.gather(*(self._answer_part(request, response, owner, part) for owner, part in parts.items()))
        await response.write_eof()
        return response

    async def _answer_part(
        self, request: web.BaseRequest, response: web.StreamResponse, owner: int, part: dict[str, Any]
    ) -> None:
        """Write the frames of one worker, each whole. Sessions that it leaves out have a fault."""
        answered = 0
        frames = self._fetch_frames(request, owner, part)
        if owner == self._members.index and self._batch is not None:
            frames = self._batch(request.path.rstrip("/"), part)
        try:
            async for frame in frames:
                answered += 1
                await response.write(frame)
        except aiohttp.ClientError as error:
            logger.warning("worker %d did not answer a whole batch: %s", owner, error)
        fault = PackedFault.of(unavailable(owner))
        for name in _names(part)[answered:]:
            await response.write(pack(BatchAnswer(name, fault)))

    async def _fetch_frames(self, request: web.BaseRequest, owner: int, part: dict[str, Any]) -> AsyncIterator[bytes]:
        reader = FrameReader()
        async with self._links.send(request, owner, dump(part)) as answer:
            answer.raise_for_status()
            async for piece in answer.content.iter_any():
                for frame in reader.split(piece):
                    yield frame

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
            opens = key == "sessions" and not (self._members.peers and self._places.knows(name))
            place = self.owner(name) if opens else await self._places.locate(name)
            parts.setdefault(place, {key: []})[key].append(item)
        return parts

    async def _pause(self, request: web.BaseRequest) -> web.StreamResponse:
        """Pause all workers, or none."""
        body, before = await self._read_admitted(request), self._paused()
        done = False
        try:
            answer = await self._links.forward_to_others(request, body) or await self._handle_own(request)
            done = answer.status < 400
            return answer
        finally:
            if not done and not before:
                await asyncio.shield(self._undo_pause(request))

    async def _undo_pause(self, request: web.BaseRequest) -> None:
        for failed in await asyncio.gather(
            *(self._links.forward(request, other, b"", "/resume") for other in self._members.others)
        ):
            if failed is not None:
                logger.warning("a worker may still be paused: %s", failed.text)

    async def _sum(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answer with the sums of all workers' figures, or all their sessions."""
        own = await self._handle_own(request)
        assert isinstance(own, web.Response)
        if own.status != 200:
            return own
        assert isinstance(own.body, bytes)
        others = await asyncio.gather(
            *(self._links.fetch(request, other) for other in self._members.others), return_exceptions=True
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
        summed["status"] = "degraded" if len(read) < len(self._members.urls) else (bad or ["ok"])[0]
        return web.Response(body=orjson.dumps(summed | {"workers": len(read)}), content_type="application/json")


def _names(part: dict[str, Any]) -> list[str]:
    return [one if isinstance(one, str) else one["session_id"] for items in part.values() for one in items]
