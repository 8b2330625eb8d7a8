"""When the client may send the next request to a runtime: `Pacer` for its rate, `Admission` for its sessions.

Two different refusals: a throttle means that requests come too fast, "full" that every session is in use, however
slowly requests come. Both classes are pure: they never wait, send or read a clock. Callers ask for a time, wait for it
themselves, and report how the request went.
"""

from __future__ import annotations

import math
import threading

from ...errors import ConfigError

DECREASE = 0.5
"""The factor by which too many throttles lower the rate."""
THROTTLES = 5
"""This many throttles lower the rate, less those that successes have made up for."""
FORGIVEN = 0.12
"""The part of a throttle that one success makes up for: the pacer tolerates one throttle in nine requests."""
ROUND_TRIP = 1.0
"""Seconds after a decrease in which further throttles belong to requests already sent, and lower nothing."""
RECOVERY = 15.0
"""Seconds of successes at full load that bring half the rate back to all of it."""
LONGEST_HOLD = 60.0
"""The longest that one `retry_after` can hold up requests, in seconds."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 10.0
"""Seconds from a "full" until one more session is tried; the wait doubles while such tries are refused."""


class Pacer:
    """Hands out the times at which requests may start, at most `rate` a second, and learns from throttles.

    Additive increase, multiplicative decrease. A throttle now and then says nothing about the rate, so it costs only
    its own request; the rate falls when throttles come closer together. Clients on several threads may share a pacer.

    >>> pacer = Pacer(10)
    >>> [round(pacer.reserve(now=5.0), 3) for _ in range(3)]
    [5.0, 5.1, 5.2]
    >>> for _ in range(5):
    ...     pacer.throttled(now=5.3, retry_after=2)
    >>> pacer.rate, round(pacer.reserve(now=5.3), 3)
    (5.0, 7.5)

    A slot that was handed out keeps its time; throttles move only later ones. So callers in a queue reserve when it is
    their turn, not when they join.
    """

    def __init__(self, rate: float | None) -> None:
        """`rate` is in requests a second, None for no limit."""
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"the rate must be above 0 requests a second, not {rate!r}", hint="None means no limit")
        self.limit = math.inf if rate is None else float(rate)
        self._rate = self.limit
        self._too_fast = self.limit
        """The rate that led to the latest decrease; steps up are measured by it."""
        self._last = -math.inf
        """The latest slot."""
        self._recent = 0.0
        """Slots of late, each forgotten exponentially with a time constant of 1 s: the rate where none is set."""
        self._slowed = -math.inf
        self._throttles = 0.0
        self._lock = threading.Lock()

    @property
    def rate(self) -> float | None:
        """Requests per second at present, None for no limit."""
        return None if self._rate == math.inf else self._rate

    def reserve(self, now: float) -> float:
        """Take the next slot: the time, `now` or later, at which one request may be sent."""
        with self._lock:
            slot = max(now, self._last + 1 / self._rate)
            self._move_to(slot)
            self._recent += 1
            return slot

    def throttled(self, now: float, retry_after: float | None = None) -> None:
        """A request was refused because it came too soon.

        `THROTTLES` of them halve the rate, though not below one request a second or a sixteenth of the limit, whichever
        is less, and hold up requests for `retry_after` seconds.
        """
        with self._lock:
            if now - self._slowed >= ROUND_TRIP:
                self._throttles += 1
                if self._throttles < THROTTLES:
                    return
                self._slow_down(now)
            self._last = max(self._last, now + min(retry_after or 0.0, LONGEST_HOLD))

    def _slow_down(self, now: float) -> None:
        self._move_to(now)
        self._too_fast = max(1.0, self._recent) if self._rate == math.inf else self._rate
        self._rate = max(self._too_fast * DECREASE, min(1.0, self.limit / 16))
        self._slowed, self._throttles = now, 0.0

    def succeeded(self, now: float) -> None:
        """A request was accepted, which raises a lowered rate a little.

        The rate grows with successes, not with time. At twice the rate that was once too fast, pacing returns to the
        limit.
        """
        with self._lock:
            self._throttles = max(0.0, self._throttles - FORGIVEN)
            if self._rate != self.limit:
                self._rate += self._too_fast * (1 - DECREASE) / RECOVERY / self._rate
                if self._rate >= min(self.limit, 2 * self._too_fast):
                    self._rate = self.limit

    def _move_to(self, now: float) -> None:
        if now > self._last:
            self._recent *= math.exp(self._last - now)
            self._last = now


class Admission:
    """Permission to start sessions on a runtime with a limited number of them.

    After the first "full", it admits no more sessions than the runtime is known to hold. One that ends lets another
    start. Now and then it admits one more, because other clients may have left. Not thread-safe.

    >>> admission = Admission()
    >>> for name in "ab":
    ...     admission.start(name, now=0.0)
    >>> admission.accepted("a")
    >>> admission.refused("b", now=0.1)
    >>> admission.next_start(now=0.2)  # a second after the refusal
    1.1
    >>> admission.ended("a")
    >>> admission.next_start(now=0.3)  # at once: one has ended
    0.3
    """

    def __init__(self) -> None:
        self._starting: set[str] = set()
        self._running: set[str] = set()
        self._fits = math.inf
        """How many sessions are known to fit."""
        self._extra = 0
        """How many more may be tried."""
        self._try_at = -math.inf
        self._wait = FIRST_WAIT

    @property
    def running(self) -> int:
        """Sessions that the runtime has accepted and that have not ended."""
        return len(self._running)

    def next_start(self, now: float) -> float:
        """When the next session may be started: `now` or later."""
        return now if self._fits_another() else max(now, self._try_at)

    def start(self, session: str, now: float) -> None:
        """The client asks the runtime for a session."""
        if not self._fits_another():
            self._try_at = now + self._wait
            self._wait = min(2 * self._wait, LONGEST_WAIT)
        self._starting.add(session)

    def accepted(self, session: str) -> None:
        """The session runs. If that is more than were known to fit, two more may be tried, so tries double."""
        self._starting.discard(session)
        self._running.add(session)
        if len(self._running) > self._fits:
            self._fits = len(self._running)
            self._extra += 1
            self._wait = FIRST_WAIT

    def refused(self, session: str, now: float, retry_after: float | None = None) -> None:
        """The runtime is full."""
        self._starting.discard(session)
        self._fits, self._extra = len(self._running), 0
        self._try_at = max(self._try_at, now + max(FIRST_WAIT, min(retry_after or 0.0, LONGEST_WAIT)))

    def ended(self, session: str) -> None:
        """The session runs no longer, or never has."""
        self._starting.discard(session)
        self._running.discard(session)

    def _fits_another(self) -> bool:
        return len(self._starting) + len(self._running) < self._fits + self._extra
