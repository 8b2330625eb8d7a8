"""Retries of store calls: exponential backoff with full jitter, bounded in time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import StoreUnavailable

T = TypeVar("T")

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0


def retry(
    call: Callable[[], T],
    *,
    seconds: float,
    on_retry: Callable[[StoreUnavailable, float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
    dice: Callable[[], float] = random.random,
) -> T:
    """Call until it succeeds, raises anything but `StoreUnavailable`, or `seconds` have passed.

    The delay before attempt n is random, at most `FIRST_DELAY`·2ⁿ and at most `LONGEST_DELAY`, so that sessions that
    failed together don't all retry at once. The last attempt comes at the deadline, not before it.
    """
    deadline = clock() + seconds
    ceiling = FIRST_DELAY
    while True:
        try:
            return call()
        except StoreUnavailable as error:
            left = deadline - clock()
            if left <= 0:
                raise
            delay = min(dice() * ceiling, left)
            if on_retry is not None:
                on_retry(error, delay)
        sleep(delay)
        ceiling = min(ceiling * 2, LONGEST_DELAY)
