"""One session of a batch's rollout, with a duplicate if it takes long and a time limit; and what failures amount to.

The first good result counts. A duplicate can only help: if it can't start, or is lost, the original still counts, and
the other way round. The time limit starts when the runtime has accepted the rollout, so waiting for a full runtime
uses none of it.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
import uuid
from typing import Any

from ..agent.result import Result
from ..errors import AgentCoreRLError, RolloutCancelled, RuntimeFault, StoreMisconfigured
from ..types import INFRASTRUCTURE, Status
from .in_flight import ClientCore, Flight

logger = logging.getLogger(__name__)

_Racer = asyncio.Task[tuple[dict[str, Any], str]]


def failure_of(error: Exception, input_id: str) -> tuple[Status, str]:
    """The status and message of a rollout that raised `error`. A misconfigured store is raised again: every other
    rollout would fail as well.

    >>> failure_of(RuntimeFault("busy", code="ThrottlingException"), "row-1")
    (<Status.SESSION_LOST: 'session_lost'>, 'busy')
    """
    if isinstance(error, StoreMisconfigured):
        raise error
    if isinstance(error, asyncio.TimeoutError):
        return Status.TIMEOUT, str(error)
    if isinstance(error, RuntimeFault):
        own = error.status in (400, 401, 403, 404) or error.reason == "agent"
        return Status.AGENT_ERROR if own else Status.SESSION_LOST, str(error)
    if isinstance(error, AgentCoreRLError):
        return Status.AGENT_ERROR, str(error)
    logger.error("a rollout of %s failed unexpectedly", input_id, exc_info=error)
    return Status.AGENT_ERROR, "".join(traceback.format_exception_only(error)).strip()


class Attempt:
    """One attempt; `run` it once."""

    def __init__(
        self,
        core: ClientCore,
        payload: dict[str, Any],
        input_id: str,
        *,
        timeout: float | None,
        hedge_after: float | None,
    ) -> None:
        self._core, self._payload, self._input_id = core, payload, input_id
        self._timeout, self._hedge_after = timeout, hedge_after
        self._flights: list[Flight] = []

    @property
    def session_id(self) -> str | None:
        """The original's session; None if it could not start."""
        return self._flights[0].id.session_id if self._flights else None

    async def run(self) -> tuple[dict[str, Any], str]:
        """The result and its session. Raises what went wrong, `asyncio.TimeoutError` after the time limit."""
        try:
            original = await self._start()
            if self._hedge_after is None:
                return await self._alone(original)
            try:
                return await asyncio.wait_for(self._race(original), self._timeout)
            except asyncio.TimeoutError:
                raise self._timed_out() from None
        finally:
            for flight in self._flights:
                if not flight.outcome.done():
                    self._core.end(flight, RolloutCancelled(f"{flight.id.result_key} was given up"))

    async def _alone(self, flight: Flight) -> tuple[dict[str, Any], str]:
        """The same without a race, in no further task: thousands may wait here."""
        outcome = _awaited(flight)
        await asyncio.wait([outcome], timeout=self._timeout)
        if not outcome.done():
            raise self._timed_out()
        return outcome.result(), flight.id.session_id

    def _timed_out(self) -> asyncio.TimeoutError:
        return asyncio.TimeoutError(f"no result after {self._timeout:g} s; the session was stopped")

    async def _start(self) -> Flight:
        flight = await self._core.start(self._payload, str(uuid.uuid4()), self._input_id, {})
        self._flights.append(flight)
        return flight

    async def _race(self, original: Flight) -> tuple[dict[str, Any], str]:
        racers: list[_Racer] = [asyncio.ensure_future(_result(original))]
        try:
            done, waiting = await asyncio.wait(racers, timeout=self._hedge_after)
            if not done:
                racers.append(asyncio.ensure_future(self._duplicate()))
                waiting = set(racers)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for racer in done:
                    if _is_good(racer):
                        return racer.result()
            return racers[0].result()
        finally:
            for racer in racers:
                racer.cancel()
            await asyncio.gather(*racers, return_exceptions=True)

    async def _duplicate(self) -> tuple[dict[str, Any], str]:
        try:
            flight = await self._start()
        except Exception as error:
            logger.warning("a slow rollout's duplicate could not start; the original still runs: %s", error)
            raise
        return await _result(flight)


def _awaited(flight: Flight) -> asyncio.Future[dict[str, Any]]:
    outcome = asyncio.wrap_future(flight.outcome)
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())  # the loser's error is not missed
    return outcome


async def _result(flight: Flight) -> tuple[dict[str, Any], str]:
    return await asyncio.shield(_awaited(flight)), flight.id.session_id


def _is_good(racer: _Racer) -> bool:
    """Whether it has a result that the other session could not better."""
    if racer.cancelled() or racer.exception() is not None:
        return False
    return Result(racer.result()[0]).status not in INFRASTRUCTURE
