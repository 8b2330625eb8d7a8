"""One stream to a client: pieces as they are sampled, keep-alives while the engine is silent, one end.

The gateway drops a client that stops reading: its sampling would hold up a weight update.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from ...errors import GatewayFault
from ..record.session import CallAnswer, ChoiceOutcome, Session
from ..record.turn import Tokens
from ..wire.base import Exchange

if TYPE_CHECKING:
    from .gateway_app import App

logger = logging.getLogger(__name__)


class StreamSender:
    """One stream to a client. Its first bytes wait for the engine's first tokens: errors before keep their status."""

    def __init__(
        self, app: App, request: web.BaseRequest, session: Session, exchange: Exchange, stream_type: str
    ) -> None:
        self._app = app
        self._request = request
        self._session = session
        self._exchange = exchange
        self._response = _Stream(
            headers={"Content-Type": stream_type, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        self._writer: AbstractStreamWriter | None = None
        self._progress = WriteProgress()
        self._begun: set[int] = set()
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive_task: asyncio.Task[None] | None = None

    async def run(self, fingerprint: bytes, size: int, retried: bool) -> web.StreamResponse:
        core = self._app.core
        answer: CallAnswer | None = None
        self._watch()
        try:
            answer = await core.answer(
                self._session,
                self._exchange.call,
                fingerprint,
                size=size,
                retried=retried,
                stream=True,
                piece=self._piece,
                begin=self._exchange.begin,
            )
            rest = [self._finish(choice, outcome) for choice, outcome in enumerate(answer.outcomes)]
            await self._end(b"".join(rest) + self._exchange.end(answer))
            core.recorder.mark_delivered(self._session, answer)
        except GatewayFault as fault:
            if not self._response.prepared:
                raise
            core.faults[fault.code] += 1
            await self._end(self._exchange.fail(fault))
        except (asyncio.CancelledError, ConnectionError):
            if answer is not None:
                core.recorder.mark_undelivered(self._session, answer)
            raise
        except Exception as error:
            if not self._response.prepared:
                raise
            await self._end(self._exchange.fail(self._app.failed(self._request, error)))
        finally:
            if self._timer is not None:
                self._timer.cancel()
        return self._response

    async def _piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> None:
        self._begun.add(choice)
        await self._send(self._exchange.piece(choice, reasoning, content, tokens))

    def _finish(self, choice: int, outcome: ChoiceOutcome) -> bytes:
        reply = outcome.reply
        if choice in self._begun:
            rest = outcome.rest
        else:  # all at once, or the replay of a recorded answer
            rest = (reply.reasoning, reply.content, outcome.tokens)
        return self._exchange.piece(choice, *rest) + self._exchange.finish(choice, outcome)

    async def _send(self, data: bytes) -> None:
        if not self._response.prepared:
            self._writer = await self._response.prepare(self._request)
        self._last = time.monotonic()
        await self._response.write(data)

    async def _end(self, data: bytes) -> None:
        if not self._response.prepared:
            self._writer = await self._response.prepare(self._request)
        await self._response.write_eof(data)

    def _watch(self) -> None:
        """Send keep-alives while the engine is busy, and drop a client that stopped reading."""
        limits = self._app.core.limits
        silent, stalled = limits.keep_alive_seconds, limits.stalled_seconds
        if self._timer is not None:
            now = time.monotonic()
            self._drop_stalled(stalled, now)
            if silent and now - self._last >= silent:
                self._keep_alive_task = asyncio.ensure_future(self._keep_alive())
        self._timer = asyncio.get_running_loop().call_later(min(silent or stalled, stalled), self._watch)

    def _drop_stalled(self, seconds: float, now: float) -> None:
        transport = self._request.transport
        if self._writer is None or transport is None:
            return
        waited = self._progress.waited(now, self._writer.output_size, transport.get_write_buffer_size())
        if waited >= seconds:
            logger.info("dropped a client of session %s that read nothing for %.0f s", self._session.id, waited)
            transport.abort()

    async def _keep_alive(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._send(self._exchange.keep_alive())


class WriteProgress:
    """Whether the client still reads what is written."""

    def __init__(self) -> None:
        self._sent: int | None = None
        self._since = 0.0

    def waited(self, now: float, written: int, left: int) -> float:
        """For how many seconds the client has read nothing; `left` bytes of those `written` are still to be sent."""
        sent = written - left
        if not left or sent != self._sent:
            self._sent, self._since = sent, now
        return now - self._since


class _Stream(web.StreamResponse):
    """Headers go out with the first piece, not in a packet of their own."""

    _send_headers_immediately = False
