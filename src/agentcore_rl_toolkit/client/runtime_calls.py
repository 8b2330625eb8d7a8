"""Calls to a runtime: each in its turn, tried again where that helps, and none the worse for what a runtime does.

Whatever a runtime raises comes out as a `RuntimeFault`, so that it costs one rollout and not the client. Throttles are
waited out, and so is a full runtime, for as long as it takes. Refuses to read an answer of more than a megabyte: an app
that takes a rollout on says so in a hundred bytes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from ..errors import AgentCoreRLError, RuntimeFault
from ..runtime import Runtime
from .request_queue import SharedPacer, Turns

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRYABLE = frozenset({"RetryableConflictException", "ConflictException", "InternalServerException"})
_LONGEST_BACKOFF = 20.0
_LONGEST_ANSWER = 1 << 20
_LONGEST_TEXT = 4000
_ANSWER_SECONDS = 300.0  # starting a session includes importing the agent


class RuntimeCalls:
    """Invokes and stops sessions of one runtime."""

    def __init__(self, runtime: Runtime, pacer: SharedPacer, *, attempts: int) -> None:
        self._runtime, self._pacer, self._attempts = runtime, pacer, attempts
        self._turns = Turns(pacer)
        self._sent: set[str] = set()
        """Sessions that may be running: a request to start them was sent, and not refused."""

    async def invoke(self, session_id: str, body: bytes, *, given_up: Callable[[], bool]) -> bytes | None:
        """Send `body` to a session, starting it; gives the answer, or None if it was given up meanwhile."""
        failures = throttles = 0
        while True:
            await self._turns.wait_to_invoke(session_id)
            try:
                answer = await self._send(session_id, body)
            except RuntimeFault as fault:
                if fault.throttled:
                    throttles += 1
                    self._pacer.throttled(fault.retry_after)
                elif fault.code in _RETRYABLE and failures + 1 < self._attempts:
                    failures += 1
                elif not fault.full:
                    raise
                if given_up():
                    return None
                if not fault.full:  # then its turn comes when there is a session for it
                    await asyncio.sleep(_backoff(failures + throttles, fault.retry_after))
            else:
                self._pacer.succeeded()
                return answer

    async def _send(self, session_id: str, body: bytes) -> bytes:
        known = session_id in self._sent
        self._sent.add(session_id)
        try:
            answer = await self._ask(session_id, body)
        except BaseException as error:
            fault = error if isinstance(error, RuntimeFault) else RuntimeFault("")
            if fault.full:
                self._turns.refused(session_id, fault.retry_after)
            else:
                self._turns.ended(session_id)
            if (fault.full or fault.throttled) and not known:
                self._sent.discard(session_id)
            else:
                self._sent.add(session_id)  # a stop may have come and gone meanwhile
            raise
        self._sent.add(session_id)
        self._turns.accepted(session_id)
        return answer

    async def stop(self, session_id: str) -> None:
        """Stop a session if it may be running. Never fails: one that can't be stopped is logged, and idles out."""
        try:
            if session_id in self._sent:
                await self._stop(session_id)
        finally:
            self._sent.discard(session_id)
            self._turns.ended(session_id)

    async def _stop(self, session_id: str) -> None:
        failures = throttles = 0
        while failures < self._attempts:
            await self._turns.wait_to_stop()
            try:
                await _contained(lambda: self._runtime.stop(session_id))
            except AgentCoreRLError as error:
                fault = error if isinstance(error, RuntimeFault) else RuntimeFault(str(error), code="")
                if fault.code == "ResourceNotFoundException":
                    return
                if fault.throttled:
                    throttles += 1
                    self._pacer.throttled(fault.retry_after)
                elif fault.code in _RETRYABLE:
                    failures += 1
                else:
                    logger.warning("session %s could not be stopped: %s", session_id, fault)
                    return
                await asyncio.sleep(_backoff(failures + throttles, fault.retry_after))
            else:
                self._pacer.succeeded()
                return
        logger.warning("session %s could not be stopped in %d attempts", session_id, failures)

    async def _ask(self, session_id: str, body: bytes) -> bytes:
        try:
            return await asyncio.wait_for(_contained(lambda: self._answer(session_id, body)), _ANSWER_SECONDS)
        except asyncio.TimeoutError:
            raise RuntimeFault(f"the runtime did not answer within {_ANSWER_SECONDS:g} s") from None

    async def _answer(self, session_id: str, body: bytes) -> bytes:
        """The app's whole answer."""
        invocation, data = await self._runtime.invoke(session_id, body), b""
        async for chunk in invocation.body:
            data += chunk
            if len(data) > _LONGEST_ANSWER:
                if isinstance(invocation.body, AsyncGenerator):
                    await invocation.body.aclose()
                said = f"the agent's answer is longer than {_LONGEST_ANSWER:,} bytes"
                raise RuntimeFault(said, code="RuntimeClientError", reason="agent")
        return data


async def _contained(call: Callable[[], Awaitable[T]]) -> T:
    """The result of a runtime's call; anything it raises that isn't ours, as a fault.

    It runs in a task of its own: a runtime may let out the `CancelledError` of something it has cancelled itself, which
    must not pass for a cancellation of the rollout.
    """
    task = asyncio.ensure_future(_guarded(call))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    if task.cancelled():
        said = "the runtime raised CancelledError, though the client had not cancelled the call"
        raise RuntimeFault(said, code="RuntimeClientError")
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


def _backoff(attempt: int, at_least: float | None) -> float:
    ceiling: float = min(0.5 * 2**attempt, _LONGEST_BACKOFF)
    return max(random.random() * ceiling, min(at_least or 0.0, _LONGEST_BACKOFF))
