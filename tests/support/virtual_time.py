"""An event loop whose clock jumps to the next timer instead of waiting for it: hours pass in milliseconds.

For coroutines that only sleep and wait for each other. One that waits for a thread or a socket would wait in vain.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready: list[Any] = super().select(0)
        self.now += 1e-9  # as a real clock does, even if nobody waits
        if not ready:
            assert timeout is not None, "nothing will ever happen"
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at 0 seconds."""

    def __init__(self) -> None:
        self.clock = _Selector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def run_virtual(coroutine: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """What a coroutine gives, and how many seconds it took on its own clock."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coroutine), loop.time()
    finally:
        left = asyncio.all_tasks(loop)  # a task that is never ended complains in the middle of a later test
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()


def virtual_clock() -> float:
    """The clock of the running loop."""
    return asyncio.get_running_loop().time()


def stall(seconds: float) -> None:
    """Let time pass while nothing on the loop may run, as a busy process does."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.clock.now += seconds
