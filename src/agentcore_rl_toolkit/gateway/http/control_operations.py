"""The gateway's control operations: sessions, weights, engines and figures. Only the admin key opens most of them."""

from __future__ import annotations

import dataclasses
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from ...engine import make_servers
from ...engine.channel.channel_engine import ChannelEngine
from ...engine.replicas import Replicas, loads_of
from ...errors import ConfigError, GatewayFault
from ..base import METRIC
from ..call.core import Core
from ..record.session import Session, read_settings
from ..record.trajectory import Trajectories
from ..remote.batch_operations import BatchOperations
from ..remote.engine_link import accept_engine
from ..wire.fields import parse
from ..wire.json_body import dump, read_json
from .exports import row_fields, send_list, turn_fields, wants_packed
from .http_server import Handler, read_body
from .openapi import EnginesRequest, WeightsRequest, openapi

SessionHandler = Callable[[web.BaseRequest, Session], Awaitable[web.StreamResponse]]
_MOST_LISTED = 1000


class ControlOperations:
    """Answers control requests from a `Core`."""

    def __init__(self, core: Core, url: Callable[[], str]) -> None:
        """`url` returns the gateway's address, for the URLs given to agents."""
        self._core, self._url = core, url
        self.batches = BatchOperations(core, self.urls)
        self.worker_urls: Sequence[str] = ()
        """The addresses of all workers, if there are several."""

    def handlers(self) -> dict[str, Handler]:
        """By the names of `openapi.OPERATIONS`."""
        return {
            "health": self._health,
            "metrics": self._metrics,
            "openapi": self._openapi,
            "openSession": self._open,
            "listSessions": self._list_sessions,
            "pause": self._pause,
            "resume": self._resume,
            "drain": self._drain,
            "setWeightVersion": self._set_weights,
            "readAbilities": self._read_abilities,
            "connectEngine": self._connect_engine,
            "listEngines": self._list_engines,
            "changeEngines": self._change_engines,
            "listPeers": self._refuse_peers,
            "changePeers": self._refuse_peers,
            **self.batches.handlers(),
        }

    def session_handlers(self) -> dict[str, SessionHandler]:
        """Those of one session, by the same names."""
        return {
            "describeSession": self._describe,
            "deleteSession": self._delete,
            "closeSession": self._close,
            "readTurns": self._turns,
            "readTrajectories": self._trajectories,
            "putResult": self._put_result,
            "pushResult": self._put_result,
        }

    async def _open(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await read_body(request)
        session = self._core.sessions.open(read_settings(read_json(raw) if raw.strip() else {}))
        return json_response(dump(self.urls(session)), status=201)

    def urls(self, session: Session) -> dict[str, Any]:
        base = f"{self._url()}/sessions/{session.id}.{session.key}"
        return {
            "session_id": session.id,
            "base_url": f"{base}/v1",
            "anthropic_base_url": base,
            "bedrock_endpoint_url": base,
            "google_base_url": base,
            "result_url": f"{base}/result",
            "model": session.settings.model or next(iter(self._core.info.models), None),
            "expires_at": time.time() + session.idle_until_expired,
        }

    async def _describe(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        state = {
            "created_at": session.created,
            "closed": session.closed,
            "turns": len(session.tree.turns),
            "in_flight": session.in_flight,
            "result": session.result,
        }
        return json_response(dump(self.urls(session) | msgspec.to_builtins(session.settings) | state))

    async def _list_sessions(self, request: web.BaseRequest) -> web.StreamResponse:
        return json_response(dump({"sessions": self._core.sessions.latest(_MOST_LISTED)}))

    async def _delete(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        self._core.sessions.delete(session.id)
        return json_response(dump({"session_id": session.id, "deleted": True}))

    async def _close(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        self._core.sessions.end(session)
        return json_response(dump({"session_id": session.id, "closed": True}))

    async def _turns(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        packed = wants_packed(request)
        about = {"damaged": True} if session.damaged else {}
        fields = (turn_fields(turn, packed) for turn in list(session.tree.turns))
        return await send_list(request, "turns", fields, about, packed)

    async def _trajectories(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        packed = wants_packed(request)
        folded: Trajectories = self._core.trajectories(session)
        about = {
            "session_id": session.id,
            "group_id": session.settings.group_id,
            "input_id": session.settings.input_id,
            "metadata": session.settings.metadata,
            "in_flight": session.in_flight,
            "result": session.result,
            "fidelity": msgspec.to_builtins(folded.fidelity),
        }
        if folded.images:
            about["images"] = {name: b64encode(data).decode() for name, data in folded.images.items()}
        return await send_list(request, "rows", (row_fields(row, packed) for row in folded.rows), about, packed)

    async def _put_result(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        raw = await read_body(request)
        self._core.sessions.put_result(session, read_json(raw))
        return json_response(dump({"session_id": session.id}))

    async def _pause(self, request: web.BaseRequest) -> web.StreamResponse:
        await self._core.gate.pause()
        return await self._health(request)

    async def _resume(self, request: web.BaseRequest) -> web.StreamResponse:
        await self._core.gate.resume()
        return await self._health(request)

    async def _drain(self, request: web.BaseRequest) -> web.StreamResponse:
        await self._core.gate.drain()
        return await self._health(request)

    async def _set_weights(self, request: web.BaseRequest) -> web.StreamResponse:
        body = parse(read_json(await read_body(request)), WeightsRequest)
        self._core.gate.name_weights(str(body.version))
        return await self._health(request)

    async def _health(self, request: web.BaseRequest) -> web.StreamResponse:
        return json_response(dump(await self._core.health()))

    async def _read_abilities(self, request: web.BaseRequest) -> web.StreamResponse:
        core = self._core
        abilities = msgspec.to_builtins(core.abilities)
        shown = {"images": core.renderer.vision is not None, "routes": core.routes, "models": core.info.models}
        engine = {"wants_engine": isinstance(core.engine, ChannelEngine), "workers": list(self.worker_urls)}
        return json_response(dump(abilities | shown | engine))

    async def _connect_engine(self, request: web.BaseRequest) -> web.StreamResponse:
        return await accept_engine(request, self._core.engine, self._core.refresh_info)

    async def _refuse_peers(self, request: web.BaseRequest) -> web.StreamResponse:
        """The router of a gateway that has peers answers in its place."""
        hint = "start it with --peers and --peer-url"
        raise GatewayFault("this gateway has no peers", status=409, code="no_peers", hint=hint)

    async def _list_engines(self, request: web.BaseRequest) -> web.StreamResponse:
        engine = self._core.engine
        if isinstance(engine, Replicas):
            return json_response(dump({"engines": engine.describe()}))
        single = {"name": "", "healthy": True, "in_flight": self._core.in_flight}
        loads = [dataclasses.asdict(load) for load in (await loads_of(engine)).values()]
        return json_response(dump({"engines": [single | load for load in loads]}))

    async def _change_engines(self, request: web.BaseRequest) -> web.StreamResponse:
        body, engine = parse(read_json(await read_body(request)), EnginesRequest), self._core.engine
        if not isinstance(engine, Replicas):
            raise GatewayFault("this gateway's engine is not a server", status=409, code="engine_not_changeable")
        try:
            await engine.change(make_servers(body.engines))
        except ConfigError as error:
            raise GatewayFault.invalid(str(error), param="engines") from None
        self._core.gate.on_change()
        await self._core.refresh_info()
        return await self._list_engines(request)

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        lines = [f"{METRIC}{name} {value}" for name, value in self._core.metrics().items()]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def _openapi(self, request: web.BaseRequest) -> web.StreamResponse:
        return json_response(dump(openapi()))


def json_response(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
