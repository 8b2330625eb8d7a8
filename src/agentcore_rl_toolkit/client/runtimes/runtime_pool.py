"""Sessions shared among several runtimes, each with its own quota; those that fail are left out and tried again.

A session waits here until a runtime can take it soon, so none waits at a runtime that is full or slow while another is
free. A runtime that has failed several times in a row gets no sessions for a while, and then one, on trial. What still
waits at it, and what it refused before anything could start, goes to another one. A session stays with its runtime
until it is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence

from ...errors import RuntimeFault
from .runtime_calls import RuntimeCalls

logger = logging.getLogger(__name__)

FAILURES = 3
"""Failures in a row after which a runtime is left out."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0
"""Seconds for which a failing runtime is left out; each failed trial doubles them."""
_AHEAD_SECONDS = 1.0
"""The seconds that a session may wait at a runtime to be sent; longer waits are the pool's."""
_REFUSED = frozenset({401, 403, 404})
"""Statuses with which a runtime refuses before it starts anything: missing permissions, a deleted runtime."""


class Health:
    """Whether one of several runtimes gets sessions. Pure: it reads no clock.

    >>> health = Health()
    >>> [health.failed(now=1.0) for _ in range(FAILURES)]
    [False, False, True]
    >>> health.takes(now=2.0), health.takes(now=1.0 + FIRST_PAUSE)
    (False, True)
    """

    def __init__(self) -> None:
        self._failures, self._pause = 0, FIRST_PAUSE
        self._on_trial = False
        self.left_out_until: float | None = None

    def takes(self, now: float) -> bool:
        """Whether it may have another session: always while it works, one at a time after it was left out."""
        return self.left_out_until is None or (now >= self.left_out_until and not self._on_trial)

    def started(self) -> None:
        """It has got a session."""
        self._on_trial = self._on_trial or self.left_out_until is not None

    def ended(self) -> None:
        """A session ended without saying whether the runtime works."""
        self._on_trial = False

    def succeeded(self) -> bool:
        """A session started. True if it had been left out."""
        was_out, self.left_out_until = self.left_out_until is not None, None
        self._failures, self._pause = 0, FIRST_PAUSE
        return was_out

    def failed(self, now: float) -> bool:
        """A session could not start. True if the runtime is left out from now on."""
        self._failures, self._on_trial = self._failures + 1, False
        if self._failures < FAILURES or (self.left_out_until is not None and now < self.left_out_until):
            return False
        if self.left_out_until is not None:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self.left_out_until = now + self._pause
        return True


class _Member:
    """One runtime of the pool."""

    def __init__(self, calls: RuntimeCalls) -> None:
        self.calls, self.health = calls, Health()
        self.waiting = 0
        """Sessions that it has got and not sent yet."""

    @property
    def wait(self) -> float:
        """Seconds until it would send one more session, by its rate."""
        return (self.waiting + 1) / (self.calls.rate or math.inf)

    def has_room(self, now: float) -> bool:
        most = max(1.0, _AHEAD_SECONDS * (self.calls.rate or math.inf))
        return self.waiting < most and self.health.takes(now)


class RuntimePool:
    """Invokes and stops sessions on the runtimes of one client. Lives on its event loop."""

    def __init__(self, runtimes: Sequence[RuntimeCalls]) -> None:
        self._members = [_Member(calls) for calls in runtimes]
        self._of: dict[str, _Member] = {}
        """Where each session runs."""
        self._queue: deque[asyncio.Future[None]] = deque()
        self._waking: asyncio.TimerHandle | None = None

    async def invoke(self, session_id: str, body: bytes, *, given_up: Callable[[], bool]) -> bytes | None:
        """Send `body` to a session, starting it; returns the answer, or None if the rollout was given up meanwhile."""
        if len(self._members) == 1:
            self._of[session_id] = self._members[0]
            return await self._members[0].calls.invoke(session_id, body, given_up=given_up)
        refusals = 0
        while True:
            member = self._of[session_id] = await self._next_member()
            try:
                answer = await self._send(member, session_id, body, given_up)
            except RuntimeFault as fault:
                refusals += 1
                if fault.status not in _REFUSED or refusals >= len(self._members):
                    raise
            else:
                if answer is not None or given_up():
                    return answer

    async def stop(self, session_id: str) -> None:
        """Stop a session if it may be running. Never fails."""
        member = self._of.pop(session_id, None)
        if member is not None:
            await member.calls.stop(session_id)
            self._wake()

    async def printed(self, session_id: str) -> str | None:
        """The end of what a session printed; None where its runtime doesn't say."""
        member = self._of.get(session_id)
        calls = [member.calls] if member is not None else [one.calls for one in self._members]
        for one in calls:
            if (text := await one.printed(session_id)) is not None:
                return text
        return None

    async def _send(self, member: _Member, session_id: str, body: bytes, given_up: Callable[[], bool]) -> bytes | None:
        is_trial, was_sent = member.health.left_out_until is not None, False

        def may_send() -> bool:
            """Whatever still waits at a runtime when it is left out goes to another."""
            nonlocal was_sent
            if member.health.left_out_until is not None and not is_trial and not was_sent:
                return False
            if not was_sent:
                was_sent, member.waiting = True, member.waiting - 1
                self._wake()
            return True

        member.waiting += 1
        member.health.started()
        try:
            answer = await member.calls.invoke(session_id, body, given_up=given_up, may_send=may_send)
        except RuntimeFault as fault:
            self._failed(member, fault)
            raise
        else:
            if answer is not None and member.health.succeeded():
                logger.warning("%s works again", member.calls.arn)
            return answer
        finally:
            if is_trial:
                member.health.ended()
            member.waiting -= not was_sent
            self._wake()

    def _failed(self, member: _Member, fault: RuntimeFault) -> None:
        """Count a failure, unless the agent itself is to blame."""
        if fault.reason == "agent" or fault.status in (400, 424):
            return
        now = asyncio.get_running_loop().time()
        if member.health.failed(now):
            seconds = (member.health.left_out_until or now) - now
            logger.warning(
                "%s gets no sessions, because starting them fails; it is tried again in %.0f s: %s",
                member.calls.arn,
                seconds,
                fault,
            )

    async def _next_member(self) -> _Member:
        """Wait, first come, first served, for a runtime that can take a session soon."""
        while self._queue or (member := self._best()) is None:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            self._wake()
            await turn
            if (member := self._best()) is not None:
                break
        assert member is not None
        return member

    def _best(self) -> _Member | None:
        now = asyncio.get_running_loop().time()
        free = [member for member in self._members if member.has_room(now)]
        return min(free, key=lambda member: (member.wait, member.calls.running), default=None)

    def _wake(self) -> None:
        """Wake the first in the queue if a runtime has room; else look again when one is due for a trial."""
        while self._queue and self._queue[0].done():
            self._queue.popleft()
        if not self._queue:
            return
        if self._best() is not None:
            self._queue.popleft().set_result(None)
            asyncio.get_running_loop().call_soon(self._wake)
        elif self._waking is None:
            now = asyncio.get_running_loop().time()
            due = [member.health.left_out_until for member in self._members if member.health.left_out_until]
            if due:
                self._waking = asyncio.get_running_loop().call_at(max(min(due), now + 0.1), self._wake_later)

    def _wake_later(self) -> None:
        self._waking = None
        self._wake()
