"""Admission: when another session may be asked for, on a runtime that has only so many.

Beside the pacer: a full runtime refuses invokes however slowly they come, and asking all the same takes requests from
the stops that would make it less full. So once it has refused one, no more sessions are asked for than it is known to
hold. One that ends lets another start; and now and then one more is tried, in case other clients have left. Pure: it
never waits, sends or reads a clock, and is not thread-safe.
"""

from __future__ import annotations

import math

FIRST_WAIT = 1.0
"""Seconds from a refusal until one more session is tried than is known to fit."""
LONGEST_WAIT = 10.0
"""The most that wait doubles to, while such tries are refused."""


class Admission:
    """Hands out permission to start sessions.

    >>> admission = Admission()
    >>> for name in "abc":
    ...     admission.start(name, now=0.0)
    >>> admission.accepted("a", now=0.1)
    >>> admission.refused("b", now=0.1)
    >>> admission.refused("c", now=0.1)
    >>> admission.at(now=0.2)  # a second after the refusal
    1.1
    >>> admission.ended("a")
    >>> admission.at(now=0.3)  # at once: one has ended
    0.3
    """

    def __init__(self) -> None:
        self._starting: set[str] = set()
        self._running: set[str] = set()
        self._fits = math.inf
        """So many sessions are known to fit."""
        self._more = 0
        """How many more may be tried: others seem to have left."""
        self._try_at = -math.inf
        self._wait = FIRST_WAIT

    @property
    def running(self) -> int:
        """Sessions that the runtime has accepted and that have not ended."""
        return len(self._running)

    def at(self, now: float) -> float:
        """When the next session may be started: `now` or later."""
        return now if self._fits_another() else max(now, self._try_at)

    def start(self, session: str, now: float) -> None:
        """It is being asked for."""
        if not self._fits_another():
            self._try_at = now + self._wait
            self._wait = min(2 * self._wait, LONGEST_WAIT)
        self._starting.add(session)

    def accepted(self, session: str, now: float) -> None:
        """It runs. If that is more than were known to fit, two more may be tried: so they double each round trip."""
        self._starting.discard(session)
        self._running.add(session)
        if len(self._running) > self._fits:
            self._fits = len(self._running)
            self._more += 1
            self._wait = FIRST_WAIT

    def refused(self, session: str, now: float, retry_after: float | None = None) -> None:
        """The runtime is full."""
        self._starting.discard(session)
        self._fits, self._more = len(self._running), 0
        self._try_at = max(self._try_at, now + max(FIRST_WAIT, min(retry_after or 0.0, LONGEST_WAIT)))

    def ended(self, session: str) -> None:
        """It runs no longer, or never has."""
        self._starting.discard(session)
        self._running.discard(session)

    def _fits_another(self) -> bool:
        return len(self._starting) + len(self._running) < self._fits + self._more
