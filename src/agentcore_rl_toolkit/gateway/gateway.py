"""Running a gateway: one launcher for the command line, for async trainers and for synchronous ones.

    with Gateway("vllm=http://127.0.0.1:8000", tokenizer="Qwen/Qwen3-8B") as gateway:
        session = gateway.open_session(input_id="row-1")
        …                                       # an agent calls session["base_url"]
        rows = gateway.trajectories(session["session_id"]).rows

It runs on its own event loop and thread, so that a trainer that computes for minutes blocks no agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from ..common.http_guard import RequestGuard, is_loopback, reachable_host
from ..common.object_repr import object_repr
from ..engine import make_servers, open_engine
from ..engine.base import Engine, EngineLoad
from ..engine.replicas import Replicas, loads_of
from ..errors import ConfigError, EngineError, GatewayFault
from .base import ADMIN_KEY as ADMIN_KEY
from .base import RolloutGateway
from .call.core import Core, GatewayLimits
from .http.gateway_app import App, error_response
from .http.http_server import http_server
from .record.log import Log, WeightState
from .record.session import read_settings
from .record.trajectory import Trajectories
from .render.capabilities import Abilities
from .render.families import History
from .render.renderer import ChatRenderer
from .render.tokenizer import Tokenizer, load_tokenizer
from .workers.handed_state import HandedState, WorkerState
from .workers.worker_router import WorkerRouter

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 5.0
BACKLOG = 4096  # connections that wait to be accepted


class Server:
    """A gateway's HTTP server on the running loop."""

    def __init__(
        self,
        core: Core,
        *,
        admin_key: str,
        host: str,
        port: int,
        public_url: str | None = None,
        allow_hosts: Sequence[str] = (),
        worker: int = 0,
        workers: int = 1,
        worker_urls: Sequence[str] = (),
        peers: Sequence[str] = (),
        peer_url: str = "",
        listens: socket.socket | None = None,
        handed: HandedState | None = None,
        make_app: Callable[..., App] = App,
    ) -> None:
        """Worker `worker` of `workers`, which listen on `port` and the ports after it, or at their `worker_urls`.

        `peers` are the addresses of all gateways that share sessions, `peer_url` is this one's among them.
        `listens` is a socket that is already bound: a supervisor that keeps it open loses no connection while a worker
        restarts. `handed` has the state of a worker in whose place this one is started.
        `make_app` makes what routes requests: in production, a `ProductionApp`. On loopback, the Host of a request must
        be loopback, the host of `public_url`, or one of `allow_hosts`.
        """
        self.core = core
        self._admin_key = admin_key
        here_only = is_loopback(host)
        self.app = make_app(core, admin_key=admin_key, url=lambda: self.url, trusts_own_user=here_only)
        public_name = urlsplit(public_url).hostname if public_url else None
        names = [*allow_hosts, *([public_name] if public_name else [])]
        self._guard = RequestGuard(names if here_only else None)
        self._host, self._port = host, port + worker
        self._socket, self._handed = listens, handed
        own_urls = [f"http://{reachable_host(host)}:{port + number}" for number in range(workers)]
        urls = list(worker_urls) or own_urls
        mark = hmac.new(admin_key.encode(), b"passed on by a worker", "sha256").hexdigest()
        router = WorkerRouter(
            self.app.handle,
            worker,
            urls,
            mark=mark,
            peers=peers,
            peer=peer_url,
            knows=core.sessions.has,
            paused=lambda: core.gate.paused,
            admit=self.app.check_admin,
            batch=self.app.batch,
        )
        self._router = router if workers > 1 or peers else None
        if self._router is not None:
            self.app.set_worker_urls(self._router.urls)
        self._announces = not worker
        self._public_url = public_url.rstrip("/") if public_url else None
        self._server: web.Server | None = None
        self._listening: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self._public_url or f"http://{reachable_host(self._host)}:{self._port}"

    async def start(self) -> None:
        if self._announces:
            self.core.abilities.log()
        if self._router is not None:
            await self._router.fetch_peers()
        handed = self._handed.read() if self._handed is not None else None
        before = await self._router.fetch_state() if self._router is not None else None
        before = before or (handed.weights if handed is not None else None)
        if before is not None:
            self.core.gate.begin_with(before)
        told = self.core.gate.changes
        await self.core.start()
        await self._take_engines(handed.engines if handed is not None else [])
        self.core.gate.on_change = self._hand_over
        limits = self.core.limits
        self._server = http_server(self._handle, max_body_bytes=limits.max_body_bytes, body_seconds=limits.body_seconds)
        try:
            self._listening = await self._listen(self._server)
        except OSError as error:
            await self.core.close()
            raise ConfigError(
                f"can't listen on {self._host}:{self._port}: {error}", hint="choose another port"
            ) from error
        self._port = self._listening.sockets[0].getsockname()[1]
        await self._catch_up(told)
        self._sweeper = asyncio.ensure_future(self._sweep_forever())

    async def _take_engines(self, handed: list[str]) -> None:
        """Sample from the replicas that the first worker samples from, or that this one's predecessor did."""
        engine = self.core.engine
        if not isinstance(engine, Replicas):
            return
        names = await self._router.fetch_engines(self._admin_key) if self._router is not None else []
        names = names or handed
        if names and set(names) != {replica.name for replica in engine.replicas}:
            await engine.change(make_servers(names))

    def _hand_over(self) -> None:
        if self._handed is None:
            return
        engine, gate = self.core.engine, self.core.gate
        names = [replica.name for replica in engine.replicas] if isinstance(engine, Replicas) else []
        self._handed.write(WorkerState(WeightState(gate.version, gate.paused), names))

    async def _listen(self, server: web.Server) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        if self._socket is not None:
            return await loop.create_server(server, sock=self._socket, backlog=BACKLOG)
        return await loop.create_server(server, self._host, self._port, backlog=BACKLOG)

    async def _catch_up(self, told: int) -> None:
        """Apply changes made between reading the first worker's state and listening, unless one arrived since."""
        now = await self._router.fetch_state() if self._router is not None else None
        if now is not None and self.core.gate.changes == told:
            with contextlib.suppress(EngineError):
                await self.core.gate.catch_up(now)

    async def close(self) -> None:
        """Refuse new connections, give calls in flight a few seconds to finish, and cancel the rest."""
        if self._listening is not None:
            self._listening.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.core.idle.wait(), CLOSING_SECONDS)
            await self._server.shutdown(0.1)
        if self._router is not None:
            await self._router.close()
        await self.core.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        refused = self._guard.refusal(request.headers)
        if refused is not None:
            self.core.faults["forbidden"] += 1
            return error_response(
                request, GatewayFault(refused.message, status=403, code="forbidden", hint=refused.hint)
            )
        return await (self._router or self.app).handle(request)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self.core.limits.sweep_seconds)
            try:
                self.core.sessions.sweep()
            except Exception:
                logger.exception("removing expired sessions failed; the gateway tries again later")


class Gateway(RolloutGateway):
    """A gateway in this process, on its own thread. Use it in `with` or `async with`."""

    def __init__(
        self,
        engine: Engine | str,
        *,
        tokenizer: Any = None,
        renderer: str = "auto",
        history: History = "exact",
        template: dict[str, Any] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        public_url: str | None = None,
        allow_hosts: Sequence[str] = (),
        admin_key: str | None = None,
        log: str | os.PathLike[str] | None = None,
        limits: GatewayLimits | None = None,
        routes: bool = False,
        side_calls: Mapping[str, Any] | None = None,
        images: bool = True,
    ) -> None:
        """`engine` is an engine or how to reach one (`vllm=http://…`); `tokenizer` a folder, a hub id or one loaded.

        `side_calls` rules out calls from training, in sessions without rules of their own: `{"model": "*haiku*"}`.
        Without `images`, a model that can see reads placeholders: for trainers that can't train on images.
        """
        super().__init__("gateway")
        loaded = _tokenizer(tokenizer)
        self._engine = open_engine(engine, tokenizer=loaded.full) if isinstance(engine, str) else engine
        self._renderer = ChatRenderer(loaded, renderer=renderer, history=history, template=template)
        self._log = log
        self._settings: dict[str, Any] = {
            "limits": limits,
            "routes": routes,
            "side_calls": side_calls,
            "images": images,
        }
        self._where: dict[str, Any] = {"host": host, "port": port, "public_url": public_url, "allow_hosts": allow_hosts}
        self.admin_key = admin_key or os.environ.get(ADMIN_KEY) or secrets.token_urlsafe(24)
        self._server: Server | None = None

    def __repr__(self) -> str:
        return object_repr(self, type(self._engine).__name__, url=self.url if self._server else None)

    @property
    def url(self) -> str:
        return self._running.url

    @property
    def core(self) -> Core:
        """The gateway without HTTP; its loop is not the caller's."""
        return self._running.core

    @property
    def abilities(self) -> Abilities:
        return self.core.abilities

    @property
    def model(self) -> str | None:
        return next(iter(self.core.info.models), None)

    def pause(self) -> None:
        self._loop.run(self.core.gate.pause())

    def drain(self) -> None:
        self._loop.run(self.core.gate.drain())

    def resume(self, weight_version: str | None = None) -> None:
        if weight_version is not None:
            self.core.gate.name_weights(weight_version)
        self._loop.run(self.core.gate.resume())

    def metrics(self) -> dict[str, int]:
        return self._loop.run(self._count())

    async def engine_loads_async(self) -> dict[str, EngineLoad]:
        return await self._loop.run_async(loads_of(self.core.engine))

    @property
    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError("the gateway is not running; use it in a `with` block")
        return self._server

    async def _start(self) -> None:
        log = Log(self._log) if self._log is not None else None
        core = Core(self._engine, self._renderer, log=log, **self._settings)
        server = Server(core, admin_key=self.admin_key, **self._where)
        await server.start()
        self._server = server

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def _open(self, settings: dict[str, Any]) -> dict[str, Any]:
        return self._running.app.urls(self.core.sessions.open(read_settings(settings)))

    async def _fold(self, session_id: str) -> Trajectories:
        return self.core.trajectories(self.core.sessions.get(session_id))

    async def _delete(self, session_id: str) -> None:
        self.core.sessions.delete(session_id)

    async def _count(self) -> dict[str, int]:
        return self.core.metrics()


def _tokenizer(tokenizer: Any) -> Tokenizer:
    if tokenizer is None:
        raise ConfigError("the gateway needs the model's tokenizer", hint="pass tokenizer=<a folder or a hub id>")
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    return load_tokenizer(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else Tokenizer(tokenizer)
