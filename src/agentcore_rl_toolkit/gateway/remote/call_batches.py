"""Sends calls that many callers make at the same time together, and retries them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from ...errors import GatewayFault

logger = logging.getLogger(__name__)

_AT_A_TIME = 4
"""Requests of one kind in flight; later calls wait and share the next request."""
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0


@dataclass(eq=False)
class BatchedCall:
    item: Any
    session_id: str
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class CallBatches:
    """Calls of one kind. The first is sent alone at once; calls that arrive while it is in flight are sent together."""

    def __init__(self, send: Callable[[list[BatchedCall]], Awaitable[None]], most: int) -> None:
        """`send` sends up to `most` calls, and sets their answers; one that it leaves open was not answered."""
        self._send, self._most = send, most
        self._waiting: deque[BatchedCall] = deque()
        self._sending: set[asyncio.Task[None]] = set()

    async def call(self, item: Any, session_id: str) -> Any:
        call = BatchedCall(item, session_id)
        self._waiting.append(call)
        self._start()
        return await call.answer

    def _start(self) -> None:
        if self._waiting and len(self._sending) < _AT_A_TIME:
            task = asyncio.ensure_future(self._run())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _run(self) -> None:
        while self._waiting:
            calls = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            calls = [call for call in calls if not call.answer.done()]  # its caller has gone
            problem: GatewayFault | None = unreachable("it left a session out of its answer")
            try:
                await self._send(calls)
            except GatewayFault as fault:
                problem = fault
            except BaseException:  # the client is being closed
                problem = None
                raise
            finally:
                for call in calls:
                    if call.answer.done():
                        continue
                    if problem is None:
                        call.answer.cancel()
                    else:
                        call.answer.set_exception(problem)


class Patience:
    """Retries calls while a gateway is away, for up to `seconds`, and logs when it goes and comes back."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url, self.seconds = url, seconds
        self._since: float | None = None
        """When it was seen to be away."""

    async def retry(self, call: Callable[[], Awaitable[Any]], gone_is_done: bool = False) -> Any:
        """The call's answer. With `gone_is_done`, a session that is gone at a later try went with an earlier one."""
        clock = asyncio.get_running_loop().time
        end, wait, tried = clock() + self.seconds, _FIRST_WAIT, False
        while True:
            try:
                answer = await call()
            except GatewayFault as fault:
                if gone_is_done and tried and fault.code in ("session_closed", "session_unknown"):
                    return None
                if not passes(fault) or clock() >= end:
                    raise
                self._away(fault, clock())
                pause = wait if fault.retry_after is None else max(wait, min(fault.retry_after, _LONGEST_WAIT))
                await asyncio.sleep(min(pause, max(0.0, end - clock())))
                wait, tried = min(2 * wait, _LONGEST_WAIT), True
            else:
                self._here(clock())
                return answer

    def _away(self, fault: GatewayFault, now: float) -> None:
        if self._since is None:
            self._since = now
            logger.warning("%s; trying again for up to %.0f s: sessions continue", fault.message, self.seconds)

    def _here(self, now: float) -> None:
        if self._since is not None:
            logger.warning("the gateway at %s answers again, after %.1f s", self._url, now - self._since)
            self._since = None


def unreachable(why: str, url: str = "", *, code: str = "gateway_unreachable") -> GatewayFault:
    """The fault of a request that the gateway did not answer."""
    where = f"the gateway at {url}" if url else "the gateway"
    return GatewayFault(f"{where} did not answer: {why}", status=503, code=code)


def passes(fault: GatewayFault) -> bool:
    """Whether another try may help: the gateway is away, restarts, or has too much to do."""
    return fault.status in (429, 502, 503, 504)
