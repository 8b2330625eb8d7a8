"""A private event loop on a thread: async code for synchronous callers, and for async callers on other loops.

Whatever is written once as a coroutine runs here, whoever asks: a script, a notebook, several threads at once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class PrivateLoop:
    """An event loop on a daemon thread, started with the first coroutine."""

    def __init__(self, name: str, make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self._name = name
        self._make = make
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop itself."""
        with self._lock:
            if self._loop is None:
                self._loop = self._make()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine; gives a future that any thread may wait for."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for it here. An interrupt cancels it, and waits for its clean-up."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(f"a blocking call from the thread {self._name!r} would wait for itself")
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and await it on the caller's loop; cancelling one cancels the other."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def close(self) -> None:
        """End the thread. What still runs on the loop is cancelled."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join()
            loop.close()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
