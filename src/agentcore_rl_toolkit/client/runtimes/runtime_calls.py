"""Calls to a runtime: queued, paced, tried again where that helps, and contained if a runtime misbehaves.

Stops go before invokes, because they free the sessions that invokes may wait for; among each, first come, first
served. The client waits out throttles and a full runtime, without a time limit. Every exception of a runtime becomes
a `RuntimeFault`, so it costs one rollout and not the client. Refuses to read an answer of more than a megabyte: an
app accepts a rollout in a hundred bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ...errors import AgentCoreRLError, RuntimeFault
from ...runtime import Runtime
from ...runtime.base import LONGEST_PRINTED, KeepsOutput
from .pacing import Admission, Pacer

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRYABLE = frozenset({"RetryableConflictException", "ConflictException", "InternalServerException"})
_LONGEST_BACKOFF = 20.0
_LONGEST_ANSWER = 1 << 20
_LONGEST_TEXT = 4000
_ANSWER_SECONDS = 300.0  # starting a session includes importing the agent
_WARN_SECONDS = 60.0
CATCH_UP = 0.5
"""Seconds of slots that a process that was held up makes up for."""


class RequestQueue:
    """The queue in front of one runtime, on one event loop."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer, self._admission = pacer, Admission()
        self._stops: deque[asyncio.Future[None]] = deque()
        self._invokes: deque[tuple[asyncio.Future[None], str]] = deque()
        self._changed = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._slot: float | None = None
        """The latest slot, if requests have been waiting ever since."""
        self._warned_at = float("-inf")

    async def wait_to_stop(self) -> None:
        """Return when a stop may be sent."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stops.append(turn)
        self._serve()
        await turn

    async def wait_to_invoke(self, session_id: str) -> None:
        """Return when an invoke may be sent. The caller reports how it went: `accepted`, `refused` or `ended`."""
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
        self._admission.accepted(session_id)
        self._changed.set()

    def refused(self, session_id: str, retry_after: float | None) -> None:
        """The runtime is full."""
        now = _now()
        self._admission.refused(session_id, now, retry_after)
        if now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            running = self._admission.running
            logger.warning("the runtime is full; this client runs %d sessions and starts others as they end", running)

    def ended(self, session_id: str) -> None:
        """The session runs no longer, or never has."""
        self._admission.ended(session_id)
        self._changed.set()

    @property
    def running(self) -> int:
        """Sessions that run, as far as this client knows."""
        return self._admission.running

    def _serve(self) -> None:
        self._changed.set()
        if self._serving is None or self._serving.done():
            self._serving = asyncio.get_running_loop().create_task(self._serve_all())

    async def _serve_all(self) -> None:
        try:
            self._slot = None
            while self._has_waiting():
                await self._serve_one()
        except Exception as error:
            logger.exception("the client can no longer pace its requests")
            for turn in (*self._stops, *(turn for turn, _ in self._invokes)):
                if not turn.done():
                    turn.set_exception(RuntimeFault(f"the client can no longer pace its requests: {error!r}"))

    async def _serve_one(self) -> None:
        pause = 0.0 if self._stops else self._admission.next_start(_now()) - _now()
        if pause > 0:
            self._slot = None
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause)
            return
        # A slot that this process could not use in time is made up for; else a busy process would never fill a quota.
        asked = _now() if self._slot is None else max(self._slot, _now() - CATCH_UP)
        self._slot = self._pacer.reserve(asked)
        if (pause := self._slot - _now()) > 0:
            await asyncio.sleep(pause)
        self._grant()

    def _has_waiting(self) -> bool:
        """Whether any request waits; drops those that were cancelled."""
        while self._stops and self._stops[0].done():
            self._stops.popleft()
        while self._invokes and self._invokes[0][0].done():
            self._invokes.popleft()
        return bool(self._stops or self._invokes)

    def _grant(self) -> None:
        """Give the slot that is due to the next request, if it may be used by now. A stop that came late gets it."""
        if not self._has_waiting():
            return
        if self._stops:
            self._stops.popleft().set_result(None)
        elif self._admission.next_start(now := _now()) <= now:
            turn, session_id = self._invokes.popleft()
            self._admission.start(session_id, now)
            turn.set_result(None)


@dataclass
class RuntimeUsage:
    """What one client has used of one runtime so far."""

    sessions: int = 0
    """Sessions that the runtime accepted."""
    session_seconds: float = 0.0
    """Seconds from the accepted invoke to the stop, of all sessions that were stopped."""
    invokes: int = 0
    stops: int = 0
    throttles: int = 0
    failures: int = 0
    """Requests that failed otherwise."""


class RuntimeCalls:
    """Invokes and stops sessions of one runtime."""

    def __init__(self, runtime: Runtime, pacer: Pacer, *, attempts: int, at_once: int = 1024) -> None:
        """`at_once` requests of each kind wait for their answers; others wait here, where they cost little."""
        self._runtime, self._pacer, self._attempts = runtime, pacer, attempts
        self._room, self._room_to_stop = asyncio.Semaphore(at_once), asyncio.Semaphore(at_once)
        self._queue = RequestQueue(pacer)
        self._sent: set[str] = set()
        """Sessions that may be running: a request to start them was sent, and not refused."""
        self._since: dict[str, float] = {}
        """When each session that runs was accepted."""
        self.usage = RuntimeUsage()

    @property
    def arn(self) -> str:
        return self._runtime.arn

    @property
    def rate(self) -> float | None:
        """Requests a second at present, None for no limit."""
        return self._pacer.rate

    @property
    def running(self) -> int:
        """Sessions that the runtime has accepted and that have not ended."""
        return self._queue.running

    async def invoke(
        self,
        session_id: str,
        body: bytes,
        *,
        given_up: Callable[[], bool],
        may_send: Callable[[], bool] = lambda: True,
    ) -> bytes | None:
        """Send `body` to a session, starting it; returns the answer, or None if the rollout was given up meanwhile.

        `may_send` is asked when its turn has come, and at each retry; if not, it sends nothing and returns None.
        """
        retries = _Retries(self._pacer, self._attempts)
        while True:
            await self._queue.wait_to_invoke(session_id)
            if not may_send():
                self._queue.ended(session_id)
                return None
            self.usage.invokes += 1
            try:
                answer = await self._send(session_id, body)
            except RuntimeFault as fault:
                self._count(fault)
                if not retries.allows(fault) and not fault.full:
                    raise
                if given_up():
                    return None
                if not fault.full:  # else its turn comes when a session has ended
                    await retries.pause(fault)
            else:
                self._pacer.succeeded(_now())
                if session_id not in self._since:
                    self.usage.sessions += 1
                    self._since[session_id] = _now()
                return answer

    async def _send(self, session_id: str, body: bytes) -> bytes:
        was_sent = session_id in self._sent
        self._sent.add(session_id)
        try:
            answer = await self._ask(session_id, body)
        except BaseException as error:
            fault = error if isinstance(error, RuntimeFault) else RuntimeFault("")
            if fault.full:
                self._queue.refused(session_id, fault.retry_after)
            else:
                self._queue.ended(session_id)
            if (fault.full or fault.throttled) and not was_sent:
                self._sent.discard(session_id)
            else:
                self._sent.add(session_id)  # a stop may have come and gone meanwhile
            raise
        self._sent.add(session_id)
        self._queue.accepted(session_id)
        return answer

    async def stop(self, session_id: str) -> None:
        """Stop a session if it may be running. Never fails: one that can't be stopped is logged, and idles out."""
        try:
            if session_id in self._sent:
                await self._stop(session_id)
        except AgentCoreRLError as error:
            logger.warning("session %s could not be stopped: %s", session_id, error)
        finally:
            self._sent.discard(session_id)
            self._queue.ended(session_id)
            if (since := self._since.pop(session_id, None)) is not None:
                self.usage.session_seconds += _now() - since

    async def printed(self, session_id: str) -> str | None:
        """The end of what a session printed, of bounded size. None where the runtime doesn't say, or fails to."""
        try:
            data = await _contained(lambda: self._read_output(session_id))
        except AgentCoreRLError as error:
            logger.warning("what session %s printed could not be read: %s", session_id, error)
            return None
        if data is None:
            return None
        text = data[-LONGEST_PRINTED:].decode(errors="replace")
        return text.encode()[-LONGEST_PRINTED:].decode(errors="ignore")  # a replaced byte takes three

    async def _read_output(self, session_id: str) -> bytes | None:
        data = await self._runtime.printed(session_id) if isinstance(self._runtime, KeepsOutput) else None
        if data is not None and not isinstance(data, bytes):
            raise RuntimeFault(f"the runtime answered with {type(data).__name__}, not with bytes")
        return data

    async def _stop(self, session_id: str) -> None:
        retries = _Retries(self._pacer, self._attempts)
        while True:
            await self._queue.wait_to_stop()
            self.usage.stops += 1
            try:
                async with self._room_to_stop:
                    await _contained(lambda: self._runtime.stop(session_id))
            except RuntimeFault as fault:
                if fault.code == "ResourceNotFoundException":
                    return
                self._count(fault)
                if not retries.allows(fault):
                    raise
                await retries.pause(fault)
            else:
                self._pacer.succeeded(_now())
                return

    def _count(self, fault: RuntimeFault) -> None:
        if fault.throttled:
            self.usage.throttles += 1
        else:
            self.usage.failures += not fault.full

    async def _ask(self, session_id: str, body: bytes) -> bytes:
        async with self._room:
            return await _contained(lambda: self._answer(session_id, body), _ANSWER_SECONDS)

    async def _answer(self, session_id: str, body: bytes) -> bytes:
        """The app's whole answer."""
        invocation, data = await self._runtime.invoke(session_id, body), b""
        async for chunk in invocation.body:
            data += chunk
            if len(data) > _LONGEST_ANSWER:
                if isinstance(invocation.body, AsyncGenerator):
                    await invocation.body.aclose()
                text = f"the agent's answer is longer than {_LONGEST_ANSWER:,} bytes"
                raise RuntimeFault(text, code="RuntimeClientError", reason="agent")
        return data


class _Retries:
    """How often one request is tried again: throttles without limit, other passing faults `attempts` times in all."""

    def __init__(self, pacer: Pacer, attempts: int) -> None:
        self._pacer, self._attempts = pacer, attempts
        self._failures = self._throttles = 0

    def allows(self, fault: RuntimeFault) -> bool:
        if fault.throttled:
            self._throttles += 1
            self._pacer.throttled(_now(), fault.retry_after)
            return True
        self._failures += fault.code in _RETRYABLE
        return fault.code in _RETRYABLE and self._failures < self._attempts

    async def pause(self, fault: RuntimeFault) -> None:
        ceiling: float = min(0.5 * 2 ** (self._failures + self._throttles), _LONGEST_BACKOFF)
        await asyncio.sleep(max(random.random() * ceiling, min(fault.retry_after or 0.0, _LONGEST_BACKOFF)))


async def _contained(call: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
    """Call a runtime; any exception that isn't ours becomes a fault.

    It runs in its own task: a runtime may leak the `CancelledError` of something that it cancelled, which is not a
    cancellation of the rollout.
    """
    task = asyncio.ensure_future(_guarded(call))
    try:
        await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        raise RuntimeFault(f"the runtime did not answer within {seconds:g} s")
    if task.cancelled():
        text = "the runtime raised CancelledError, though the client had not cancelled the call"
        raise RuntimeFault(text, code="RuntimeClientError")
    return task.result()


async def _guarded(call: Callable[[], Awaitable[T]]) -> T:
    try:
        return await call()
    except (AgentCoreRLError, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit too, which would end the loop that everything runs on
        text = "".join(traceback.format_exception_only(error)).strip()[:_LONGEST_TEXT]
        code = "InternalServerException" if isinstance(error, OSError) else "RuntimeClientError"
        raise RuntimeFault(f"the runtime raised {text}", code=code) from error


def _now() -> float:
    return asyncio.get_running_loop().time()
