"""Outages: whether the infrastructure is down, how long to wait before the next try, and when to give up.

A session that was lost or an engine that failed says nothing about the agent or the row, so it is no failure of the
run; it starts an outage, which ends with the first rollout that ends in any other way. While it lasts, new rollouts
wait longer and longer. All of it costs a row one refill, however many of its rollouts failed. What looks like an outage
may also be one row that brings its sessions down while others work: then each of its failures counts. Pure: it reads no
clock, and is not thread-safe.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ..types import Status

DOWN = frozenset({Status.SESSION_LOST, Status.ENGINE_ERROR})
"""What an outage looks like from the end of a rollout."""
_SAYS_NOTHING = frozenset({Status.TIMEOUT, Status.CANCELLED})
_SHARE = 0.25
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_MUCH_LONGER = 2.0


class Outage:
    """Keeps track of the rollouts of one run.

    >>> outage = Outage(dice=lambda: 1.0)
    >>> outage.started("session", now=0.0)
    >>> outage.ended("session", "row", Status.SESSION_LOST, now=1.0)
    >>> outage.wait(now=1.0), outage.wait(now=41.0), outage.wait(now=1000.0)
    (0.5, 10.0, 30.0)
    >>> outage.seconds(now=41.0)
    40.0
    """

    def __init__(self, dice: Callable[[], float] = random.random) -> None:
        self._dice = dice
        self.number = 0
        """Counts outages: the present one's, or the next one's."""
        self._running: dict[str, float] = {}
        self._since: float | None = None
        self._rows: set[str] = set()
        """Rows whose rollouts have failed in this outage."""
        self._slowest = 0.0
        """The longest that one of them took to fail."""

    def started(self, session_id: str, now: float) -> None:
        """A rollout is on its way."""
        self._running[session_id] = now

    def left(self, session_id: str) -> None:
        """It was cancelled."""
        self._running.pop(session_id, None)

    def ended(self, session_id: str, row: str, status: Status, now: float) -> None:
        """It has ended, in one way or another."""
        began = self._running.pop(session_id, now)
        if status in DOWN:
            self._since = now if self._since is None else self._since
            self._slowest = max(self._slowest, now - began)
            self._rows.add(row)
        elif status not in _SAYS_NOTHING:
            self.number += self._since is not None
            self._since, self._slowest = None, 0.0
            self._rows.clear()

    def wait(self, now: float) -> float:
        """Seconds to wait before another rollout is started: a quarter of how long it has been down, at random less."""
        if self._since is None:
            return 0.0
        ceiling = min(max(_SHARE * (now - self._since), _FIRST_WAIT), _LONGEST_WAIT)
        return ceiling * (0.5 + 0.5 * self._dice())

    def is_of_the_row(self, row: str, now: float, *, patience: float) -> bool:
        """Whether failures of the present outage are likely a row's own doing: for some time it has lasted, and others
        work, or no other row has failed."""
        if self._since is None or now - self._since < patience:
            return False
        return self._others_work(now) or self._rows <= {row}

    def seconds(self, now: float) -> float:
        """How long every rollout has failed of the infrastructure."""
        return 0.0 if self._since is None or self._others_work(now) else now - self._since

    def _others_work(self, now: float) -> bool:
        """Whether one is running that has lasted much longer than those that failed: it is likely to be fine."""
        return any(now - began > _MUCH_LONGER * self._slowest + 1 for began in self._running.values())
