"""The batch operations of a gateway: open, fold and delete many sessions in one request.

Each answers with one frame for each session (`frames.py`), as soon as it has it. A repeated request does no harm:
opening a session again with the same settings gives the same session, and a repeated delete succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from aiohttp import web

from ...errors import GatewayFault
from ..call.core import Core
from ..http.http_server import Handler, read_body
from ..record.session import Session, read_settings
from ..wire.fields import parse
from ..wire.json_body import read_json
from .frames import MEDIA, MOST_SESSIONS, BatchAnswer, PackedFault, PackedTrajectories, pack

logger = logging.getLogger(__name__)


class OpenBatchRequest(msgspec.Struct):
    """Sessions to open, with the settings of `POST /sessions`. Each brings its id."""

    sessions: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MOST_SESSIONS)]


class BatchRequest(msgspec.Struct):
    """The ids of sessions."""

    session_ids: Annotated[list[str], msgspec.Meta(max_length=MOST_SESSIONS)]


class BatchOperations:
    def __init__(self, core: Core, urls: Callable[[Session], dict[str, Any]]) -> None:
        """`urls` gives what an agent needs to know of a session."""
        self._core, self._urls = core, urls

    async def open(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = parse(read_json(await read_body(request)), OpenBatchRequest).sessions
        for settings in asked:
            if not isinstance(settings.get("session_id"), str):
                raise GatewayFault.invalid("each session of a batch needs a session_id", param="session_id")
        return await self._send(request, asked, lambda one: one["session_id"], self._open)

    async def fold(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = parse(read_json(await read_body(request)), BatchRequest).session_ids
        return await self._send(request, asked, str, self._fold)

    async def delete(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = parse(read_json(await read_body(request)), BatchRequest).session_ids
        return await self._send(request, asked, str, self._delete)

    def handlers(self) -> dict[str, Handler]:
        """By the names of `openapi.OPERATIONS`."""
        return {"openSessions": self.open, "foldSessions": self.fold, "deleteSessions": self.delete}

    async def _send(
        self,
        request: web.BaseRequest,
        asked: list[Any],
        name: Callable[[Any], str],
        answer: Callable[[Any], BatchAnswer],
    ) -> web.StreamResponse:
        """A frame for each; other requests run in between."""
        response = web.StreamResponse(headers={"Content-Type": MEDIA})
        await response.prepare(request)
        for one in asked:
            try:
                frame = pack(answer(one))
            except GatewayFault as fault:
                self._core.faults[fault.code] += 1
                frame = pack(BatchAnswer(name(one), PackedFault.of(fault)))
            except Exception:  # one session costs the others nothing
                logger.exception("session %s of a batch failed", name(one))
                failed = GatewayFault("the gateway failed on this session; its log has the reason")
                frame = pack(BatchAnswer(name(one), PackedFault.of(failed)))
            await response.write(frame)
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    def _open(self, settings: dict[str, Any]) -> BatchAnswer:
        session = self._core.sessions.open_once(read_settings(settings))
        return BatchAnswer(session.id, session=self._urls(session))

    def _fold(self, session_id: str) -> BatchAnswer:
        folded = self._core.trajectories(self._core.sessions.get(session_id))
        return BatchAnswer(session_id, trajectories=PackedTrajectories.of(folded))

    def _delete(self, session_id: str) -> BatchAnswer:
        self._core.sessions.delete(session_id)
        return BatchAnswer(session_id)
