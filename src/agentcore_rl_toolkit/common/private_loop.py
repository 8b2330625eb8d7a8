"""A private event loop on a thread: async code for synchronous callers, and for async callers on other loops.

Whatever is written once as a coroutine runs here, whoever asks: a script, a notebook, several threads at once. Not a
forked process, though: a fork copies no threads, so nothing would ever run there, and saying so beats waiting.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import AgentCoreRLError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PrivateLoop:
    """An event loop on a daemon thread, started with the first coroutine."""

    def __init__(self, name: str, make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self._name = name
        self._make = make
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process: int | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether its thread is in another process, of which this one is a fork."""
        return self._process is not None and self._process != os.getpid()

    def check_process(self) -> None:
        """Raise if this is a forked process."""
        if self.is_elsewhere:
            raise AgentCoreRLError(
                f"this process is a fork of {self._process}, and a fork has no copy of its thread {self._name!r}",
                hint="make what uses it after the fork, or start processes with the method 'spawn'",
            )

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop itself."""
        self.check_process()  # before the lock, which may have been held when the process was forked
        with self._lock:
            if self._loop is None:
                self._loop = self._make()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name=self._name, daemon=True)
                self._process = os.getpid()
                self._thread.start()
            return self._loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine; gives a future that any thread may wait for."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop_for(coroutine))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for it. An interrupt cancels it and waits for its clean-up; a second one doesn't."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(f"a blocking call from the thread {self._name!r} would wait for itself")
        loop, future = self._loop_for(coroutine), None
        try:
            future = self.submit(coroutine)
            return future.result()
        except BaseException:
            if future is None or not future.done():
                ended = threading.Event()
                loop.call_soon_threadsafe(_cancel, coroutine, ended)
                ended.wait()
            raise

    def _loop_for(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        try:
            return self.loop
        except AgentCoreRLError:
            coroutine.close()
            raise

    async def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and await it on the caller's loop; cancelling one cancels the other."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def close(self) -> None:
        """End the thread. What still runs on the loop is cancelled. In a forked process, there is nothing to end."""
        if self.is_elsewhere:
            return
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
            self._process = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join()
            loop.close()


def _cancel(coroutine: Coroutine[Any, Any, Any], ended: threading.Event) -> None:
    """Cancel the coroutine's task, from its own loop, and tell when it has ended.

    Cancelling the future that stands for it would end that at once, whatever the task still has to clean up. And an
    interrupt may come before there is such a future: then the task is here all the same, or it will never be.
    """
    for task in asyncio.all_tasks():
        if task.get_coro() is coroutine:
            task.add_done_callback(lambda _: ended.set())
            task.cancel()
            return
    coroutine.close()
    ended.set()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, and nothing else: a task that calls `sys.exit()` ends itself alone."""
    while True:
        try:
            loop.run_forever()
        except BaseException:
            logger.exception("a task tried to end its thread, on which others run as well")
        else:
            return


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
