"""One try of one rollout of a batch: its session, a duplicate if it takes long, and its time limit.

The first good result counts. A duplicate is only ever a help: if it can't be started, or fails where the original
might not, the original goes on; and the other way round. Time is counted from when the runtime has taken the rollout
on, so waiting for a session of a full runtime uses none of it up.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

from ..agent.result import Result
from ..errors import RolloutCancelled
from ..types import INFRASTRUCTURE
from .in_flight import ClientCore, Flight

logger = logging.getLogger(__name__)

_Racer = asyncio.Task[tuple[dict[str, Any], str]]


class Attempt:
    """One try; `run` it once."""

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
        """The session it runs in; None if none was started."""
        return self._flights[0].id.session_id if self._flights else None

    async def run(self) -> tuple[dict[str, Any], str]:
        """The result and the session it is of; raises what went wrong, `asyncio.TimeoutError` if it took too long."""
        try:
            original = await self._start()
            return await asyncio.wait_for(self._race(original), self._timeout)
        finally:
            for flight in self._flights:
                if not flight.outcome.done():
                    self._core.end(flight, RolloutCancelled(f"{flight.id.result_key} was given up"))

    async def _start(self) -> Flight:
        flight = await self._core.start(self._payload, str(uuid.uuid4()), self._input_id, {})
        self._flights.append(flight)
        return flight

    async def _race(self, original: Flight) -> tuple[dict[str, Any], str]:
        racers: list[_Racer] = [asyncio.ensure_future(_result(original))]
        try:
            done, _ = await asyncio.wait(racers, timeout=self._hedge_after)
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
            logger.warning("a duplicate of a slow rollout could not be started, and the original goes on: %s", error)
            raise
        return await _result(flight)


async def _result(flight: Flight) -> tuple[dict[str, Any], str]:
    outcome = asyncio.wrap_future(flight.outcome)
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())  # the loser of a race is not missed
    return await asyncio.shield(outcome), flight.id.session_id


def _is_good(racer: _Racer) -> bool:
    """Whether it has a result that the other could not better."""
    if racer.cancelled() or racer.exception() is not None:
        return False
    return Result(racer.result()[0]).status not in INFRASTRUCTURE
