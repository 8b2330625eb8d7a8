"""Trying again: exponential backoff with full jitter, bounded in time.

Pure but for the clock, the sleep and the dice, which are arguments.
"""

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
    """Call until it succeeds, fails for good, or `seconds` have passed; then raise its last error.

    Only `StoreUnavailable` is tried again. The wait before attempt n is drawn from 0 to `FIRST_DELAY`·2ⁿ, capped at
    `LONGEST_DELAY`, so that many sessions that failed together don't come back together. The last attempt
    comes at the deadline, not before it.
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
