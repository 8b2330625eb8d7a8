"""How many sessions run at the same time: a number, or as many as keep the engines full without preemption.

`SessionLimit` is pure: it is told the engines' load every few seconds, and says how many sessions may run. Sessions
need more of the cache as they grow older, so each one that ends lets two start at most: the limit doubles in the time
that a session takes. It falls when the fullest cache has no more room. A session that runs is never ended for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, Protocol

from ..errors import ConfigError, GatewayFault

logger = logging.getLogger(__name__)

Concurrency = int | Literal["auto"]

FIRST = 32
"""Sessions for each engine at first, and in all where none tells its load."""
LOAD_SECONDS = 5.0
"""Seconds between two looks at the load."""
_FULL, _TOO_FULL = 0.85, 0.9
"""The share of a cache that is to be used, and from which on there are too many sessions."""
_IN_USE = 0.9
"""The share of the limit that must run before it grows: more would not run either, as in a runtime that is full."""
_QUEUED = 0.5
"""Requests that may wait for each one that is sampled."""
_CAREFUL = 10
"""Beyond the number that an engine could not hold, this many sessions must end before one more starts."""
_MOST = 100_000


class Load(Protocol):
    """How busy an engine is."""

    @property
    def kv_used(self) -> float: ...

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def preempted(self) -> int: ...


class SessionLimit:
    """The most sessions at a time.

    >>> SessionLimit(8).most
    8
    >>> SessionLimit("auto").most
    32
    """

    def __init__(self, concurrency: Concurrency) -> None:
        self.follows_load = concurrency == "auto"
        self.most = check_concurrency(concurrency)
        self._ceiling = math.inf
        """The limit above which an engine gave up requests."""
        self._preempted: dict[str, int] = {}
        self._ended, self._known = 0, False

    def observe(self, loads: Mapping[str, Load], running: int, ended: int) -> None:
        """Take in the load of each engine, while so many sessions run and so many have ended since the start."""
        since, self._ended = max(0, ended - self._ended), ended
        gave_up = self._count_preempted(loads)
        if not self.follows_load or not loads:
            return
        if not self._known:
            self._known, self.most = True, FIRST * len(loads)
        needed = max(map(_needed, loads.values()))
        sampled, queued = (sum(getattr(load, name) for load in loads.values()) for name in ("running", "waiting"))
        fits = running * _FULL / needed if needed else math.inf
        if gave_up:
            self._ceiling = _FULL * running
            self._fall(self._ceiling)
        elif needed > _TOO_FULL:
            self._fall(fits)
        elif queued > _QUEUED * max(1, sampled):
            self._fall(running * (1 + _QUEUED) * sampled / (sampled + queued))
        elif not queued and running >= _IN_USE * self.most:
            grown = self.most + (since if self.most < self._ceiling else since // _CAREFUL)
            self.most = max(self.most, int(min(grown, fits, _MOST)))

    def _fall(self, most: float) -> None:
        self.most = max(1, min(self.most, int(most)))

    def _count_preempted(self, loads: Mapping[str, Load]) -> bool:
        """Whether an engine that was there before has given up requests since."""
        before, self._preempted = self._preempted, {name: load.preempted for name, load in loads.items()}
        return any(before.get(name, math.inf) < count for name, count in self._preempted.items())


def _needed(load: Load) -> float:
    """The share of a cache that its requests need, those in the queue too."""
    each = load.kv_used / load.running if load.running else 0.0
    return load.kv_used + load.waiting * each


def check_concurrency(concurrency: object, name: str = "concurrency") -> int:
    """How many sessions run at first; a `ConfigError` for anything but a number or `auto`. `name` is the setting.

    >>> check_concurrency("auto"), check_concurrency(100)
    (32, 100)
    """
    if concurrency == "auto":
        return FIRST
    if not isinstance(concurrency, int) or isinstance(concurrency, bool):
        raise ConfigError(f"{name} must be a number or auto, not {concurrency!r}")
    if concurrency < 1:
        raise ConfigError(f"{name} must be at least 1, not {concurrency}")
    return concurrency


async def follow_load(
    limit: SessionLimit,
    ask: Callable[[], Awaitable[Mapping[str, Load]]],
    sessions: Callable[[], tuple[int, int]],
    changed: Callable[[], object],
) -> None:
    """Tell `limit` the load every few seconds, until cancelled.

    `ask` raises a `GatewayFault` if the load can't be known; `sessions` gives how many run, and how many have ended.
    """
    warned = False
    while limit.follows_load:
        await asyncio.sleep(LOAD_SECONDS)
        try:
            loads = await ask()
        except GatewayFault as fault:
            logger.info("the engines' load is not known: %s", fault)
            continue
        if not loads and not warned:
            warned = True
            logger.warning("the engines don't tell their load: %d sessions run at the same time", limit.most)
        before = limit.most
        limit.observe(loads, *sessions())
        if limit.most != before:
            fullest = max(load.kv_used for load in loads.values())
            logger.info(
                "up to %d sessions from now on, after %d: a cache is %.0f %% full", limit.most, before, 100 * fullest
            )
            changed()
