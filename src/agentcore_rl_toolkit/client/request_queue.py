"""Turns: who sends the next request to the runtime, and when.

Stops go before invokes, because they end what invokes may be waiting for; among each, first come, first served. A slot
of the pacer is given away only when it is due, so that a stop that comes meanwhile gets it. An invoke also has to be
admitted. Lives on one event loop; the pacer may be shared with clients on others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from ..errors import RuntimeFault
from .admission import Admission
from .pacing import Pacer

logger = logging.getLogger(__name__)

_SAY_SECONDS = 60.0


class SharedPacer:
    """A pacer for clients on several threads, with a clock."""

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._pacer = Pacer(rate)
        self._lock = threading.Lock()
        self.limit = rate
        self.clock = clock

    def reserve(self) -> float:
        """Take the next slot; gives the seconds until it is due."""
        with self._lock:
            now = self.clock()
            return max(0.0, self._pacer.reserve(now) - now)

    def throttled(self, retry_after: float | None) -> None:
        with self._lock:
            self._pacer.throttled(self.clock(), retry_after)

    def succeeded(self) -> None:
        with self._lock:
            self._pacer.succeeded(self.clock())


class Turns:
    """The line in front of one runtime."""

    def __init__(self, pacer: SharedPacer) -> None:
        self._pacer, self._clock = pacer, pacer.clock
        self._admission = Admission()
        self._stops: deque[asyncio.Future[None]] = deque()
        self._invokes: deque[tuple[asyncio.Future[None], str]] = deque()
        self._changed = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._said_at = float("-inf")

    async def wait_to_stop(self) -> None:
        """Return when a stop may be sent."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stops.append(turn)
        self._serve()
        await turn

    async def wait_to_invoke(self, session_id: str) -> None:
        """Return when an invoke of that session may be sent. Say afterwards what came of it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._invokes.append((turn, session_id))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.ended(session_id)
            raise

    def accepted(self, session_id: str) -> None:
        """The session runs."""
        self._admission.accepted(session_id, self._clock())
        self._changed.set()

    def refused(self, session_id: str, retry_after: float | None) -> None:
        """The runtime has no session left for it."""
        self._admission.refused(session_id, self._clock(), retry_after)
        if self._clock() - self._said_at >= _SAY_SECONDS:
            self._said_at = self._clock()
            running = self._admission.running
            logger.warning("the runtime is full; %d sessions of this client run, others start as they end", running)

    def ended(self, session_id: str) -> None:
        """The session runs no longer, or never has."""
        self._admission.ended(session_id)
        self._changed.set()

    def _serve(self) -> None:
        self._changed.set()
        if self._serving is None or self._serving.done():
            self._serving = asyncio.get_running_loop().create_task(self._serve_all())

    async def _serve_all(self) -> None:
        try:
            while self._somebody_waits():
                await self._serve_one()
        except Exception as error:
            logger.exception("requests to the runtime can no longer be paced")
            for turn in (*self._stops, *(turn for turn, _ in self._invokes)):
                if not turn.done():
                    turn.set_exception(RuntimeFault(f"requests can no longer be paced: {error!r}"))

    async def _serve_one(self) -> None:
        pause = 0.0 if self._stops else self._admission.at(self._clock()) - self._clock()
        if pause > 0:
            self._changed.clear()
            await _wait(self._changed, pause)
            return
        pause = self._pacer.reserve()
        if pause > 0:
            await asyncio.sleep(pause)
        self._grant()

    def _somebody_waits(self) -> bool:
        """Whether anybody still does: some may have been cancelled."""
        while self._stops and self._stops[0].done():
            self._stops.popleft()
        while self._invokes and self._invokes[0][0].done():
            self._invokes.popleft()
        return bool(self._stops or self._invokes)

    def _grant(self) -> None:
        """Give the slot that is due to the next one, if it may be used by now."""
        if not self._somebody_waits():
            return
        if self._stops:
            self._stops.popleft().set_result(None)
        elif self._admission.at(now := self._clock()) <= now:
            turn, session_id = self._invokes.popleft()
            self._admission.start(session_id, now)
            turn.set_result(None)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        return
