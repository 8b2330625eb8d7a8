"""The batch operations of a gateway: open, fold and delete many sessions in one request.

Each answers with one frame for each session (`frames.py`), as soon as it has it. A repeated request does no harm:
opening a session again with the same settings gives the same session, and a repeated delete succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
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

    def handlers(self) -> dict[str, Handler]:
        """By the names of `openapi.OPERATIONS`."""
        return dict.fromkeys(("openSessions", "foldSessions", "deleteSessions"), self._answer)

    def frames(self, path: str, body: Any) -> AsyncIterator[bytes]:
        """A frame for each session of `body`, in their order; other requests run in between."""
        if path == "/batch/open":
            asked = parse(body, OpenBatchRequest).sessions
            for settings in asked:
                if not isinstance(settings.get("session_id"), str):
                    raise GatewayFault.invalid("each session of a batch needs a session_id", param="session_id")
            return self._frames(asked, lambda one: one["session_id"], self._open)
        ids = parse(body, BatchRequest).session_ids
        return self._frames(ids, str, self._fold if path == "/batch/fold" else self._delete)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        frames = self.frames(request.path.rstrip("/"), read_json(await read_body(request)))
        response = web.StreamResponse(headers={"Content-Type": MEDIA})
        await response.prepare(request)
        async for frame in frames:
            await response.write(frame)
        await response.write_eof()
        return response

    async def _frames(
        self, asked: list[Any], name: Callable[[Any], str], answer: Callable[[Any], BatchAnswer]
    ) -> AsyncIterator[bytes]:
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
            yield frame
            await asyncio.sleep(0)

    def _open(self, settings: dict[str, Any]) -> BatchAnswer:
        session = self._core.sessions.open_once(read_settings(settings))
        return BatchAnswer(session.id, session=self._urls(session))

    def _fold(self, session_id: str) -> BatchAnswer:
        folded = self._core.trajectories(self._core.sessions.get(session_id))
        return BatchAnswer(session_id, trajectories=PackedTrajectories.of(folded))

    def _delete(self, session_id: str) -> BatchAnswer:
        self._core.sessions.delete(session_id)
        return BatchAnswer(session_id)
