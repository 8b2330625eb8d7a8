"""An event loop on its own thread, for plain test functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from agentcore_rl_toolkit.common.private_loop import PrivateLoop

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for synchronous callers."""

    def __init__(self) -> None:
        self._loop = PrivateLoop("tests")

    def run(self, coroutine: Coroutine[Any, Any, T], seconds: float = 60) -> T:
        return self._loop.run(asyncio.wait_for(coroutine, seconds))

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine, without waiting for it."""
        return self._loop.submit(coroutine)

    def collect(self, items: AsyncIterator[T], seconds: float = 60) -> list[T]:
        async def all_of_them() -> list[T]:
            return [item async for item in items]

        return self.run(all_of_them(), seconds)

    def close(self) -> None:
        self._loop.close()


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    try:
        yield thread
    finally:
        thread.close()
