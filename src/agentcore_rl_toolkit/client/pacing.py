"""Pacing: when the next request to a runtime may be sent.

Between the client and the runtime's quota; invoke and stop share one `Pacer`. It is a token bucket that learns from
throttles: additive increase, multiplicative decrease. A throttle now and then says nothing about the rate, so it costs
no more than its own request; only when they come closer together is the rate lowered. A runtime whose sessions are all
in use is no matter of the rate either, and is left to `admission.py`.

Pure: it never waits, sends or reads a clock. Callers ask for a slot, wait for it themselves, and say how the request
went. It holds a few numbers, no queue, and is not thread-safe.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from ..errors import ConfigError

JITTER = 0.02
"""Longest random delay of a start, in slots. Where `burst` is 1 it is lost: 1 % of the quota, at worst 2 %."""
DECREASE = 0.5
"""What too many throttles leave of the rate."""
THROTTLES = 5
"""So many throttles lower the rate, less those that successes have made up for."""
FORGIVEN = 0.12
"""How much of a throttle one success makes up for: one throttle in nine requests is put up with."""
ROUND_TRIP = 1.0
"""Seconds after a decrease in which further throttles belong to the same burst of requests, and lower nothing."""
RECOVERY = 15.0
"""Seconds of successes at full load from half the rate to all of it."""
LONGEST_HOLD = 60.0
"""The most a single `retry_after` can hold the line."""


class Pacer:
    """Hands out the times at which requests may start, first come, first served.

    In no window, however long, are there more than `rate` · window + `burst` of them.

    >>> pacer = Pacer(10, jitter=0)
    >>> [round(pacer.reserve(now=5.0), 3) for _ in range(3)]
    [5.0, 5.1, 5.2]
    >>> for _ in range(5):
    ...     pacer.throttled(now=5.3, retry_after=2)
    >>> pacer.rate, round(pacer.reserve(now=5.3), 3)
    (5.0, 7.5)

    **A slot that was handed out keeps its time**, whatever happens later: throttles and holds move the ones that are
    reserved after them. So callers that wait in line reserve when their turn comes, not when they join the line.
    """

    __slots__ = (
        "__weakref__",
        "_burst",
        "_debt",
        "_dice",
        "_jitter",
        "_last",
        "_limit",
        "_rate",
        "_recent",
        "_reference",
        "_slowed",
        "_throttles",
    )

    def __init__(
        self,
        rate: float | None,
        *,
        burst: float = 1,
        jitter: float = JITTER,
        dice: Callable[[], float] = random.random,
    ) -> None:
        """`rate` is in requests per second, None for no limit; `burst` of them may go at once after a pause.

        Each start is delayed by up to `jitter` slots, at random. That costs nothing where `burst` is at least
        1 + `jitter`.
        """
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"the rate must be above 0 requests a second, not {rate!r}", hint="None means no limit")
        if not 1 <= burst < math.inf:
            raise ConfigError(f"burst must be at least 1 request, not {burst!r}")
        if not 0 <= jitter <= 1:
            raise ConfigError(f"jitter must be from 0 to 1 slots, not {jitter!r}")
        self._limit = math.inf if rate is None else float(rate)
        self._burst, self._jitter, self._dice = burst, jitter, dice
        self._rate = self._limit
        # The rate that was too much, by which steps up are measured.
        self._reference = self._limit
        # Requests not yet paid for at time `_last`, the latest slot handed out. Paid off at `_rate`, `burst` at most.
        self._debt, self._last = 0.0, -math.inf
        # Without a limit: how many slots were handed out, each forgotten exponentially with a time constant of 1 s.
        self._recent = 0.0
        self._slowed = -math.inf
        self._throttles = 0.0

    @property
    def rate(self) -> float | None:
        """Requests per second at present, None for no limit."""
        return None if self._rate == math.inf else self._rate

    def reserve(self, now: float) -> float:
        """Take the next slot: the time, `now` or later, at which one request may be sent."""
        slot = max(now, self._last)
        if self._rate != math.inf:
            affordable = self._last + max(0.0, self._debt - (self._burst - 1)) / self._rate
            slot = max(slot, affordable) + self._jitter * self._dice() / self._rate
        self._move_to(slot)
        self._debt += 1
        self._recent += 1
        return slot

    def throttled(self, now: float, retry_after: float | None = None) -> None:
        """A request was refused because it came too soon; the runtime may have said how many seconds to wait.

        Once there were `THROTTLES`, halves the rate, though not below one request a second or a sixteenth of the
        limit, whichever is less, and holds the line for `retry_after`. What had been saved up for a burst is gone: the
        other side's bucket is empty too. Throttles of the round trip after that belong to requests already sent.
        """
        if now - self._slowed >= ROUND_TRIP:
            self._throttles += 1
            if self._throttles < THROTTLES:
                return
            self._slow_down(now)
        hold = now + min(retry_after or 0.0, LONGEST_HOLD)
        if retry_after is not None and hold > self._last:
            self._last, self._debt = hold, self._burst

    def _slow_down(self, now: float) -> None:
        self._move_to(now)
        self._reference = max(1.0, self._recent) if self._rate == math.inf else self._rate
        self._rate = max(self._reference * DECREASE, min(1.0, self._limit / 16))
        self._debt, self._slowed, self._throttles = self._burst, now, 0.0

    def succeeded(self, now: float) -> None:
        """A request was accepted. Raises a lowered rate a little, and lifts a limit that has turned out to be none.

        A step is worth one slot's share of `RECOVERY`, so that the rate grows with successes and not with time. At
        twice the rate that was once too much, pacing returns to the limit.
        """
        self._throttles = max(0.0, self._throttles - FORGIVEN)
        if self._rate == self._limit:
            return
        self._move_to(now)
        self._rate += self._reference * (1 - DECREASE) / RECOVERY / self._rate
        if self._rate >= min(self._limit, 2 * self._reference):
            self._rate = self._limit

    def _move_to(self, now: float) -> None:
        """Pay off the debt, and forget, for the time that has passed since the latest slot."""
        passed = now - self._last
        if passed > 0:
            self._debt = max(0.0, self._debt - self._rate * passed)
            self._recent *= math.exp(-passed)
            self._last = now
