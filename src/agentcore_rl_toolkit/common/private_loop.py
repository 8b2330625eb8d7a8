"""A private event loop on a thread, for synchronous callers and for async callers on other loops.

Any number of threads may use it. A forked process may not: a fork copies no threads, so a call there raises instead of
waiting for ever.
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
        self._closing = threading.Event()
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
        """The loop itself, running."""
        self.check_process()  # before the lock, which another thread may have held when the process was forked
        with self._lock:
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return self._loop

    def _start(self) -> None:
        loop, self._closing = self._make(), threading.Event()
        self._thread = threading.Thread(target=_run, args=(loop, self._closing), name=self._name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the process has too many threads
            loop.close()
            raise
        self._loop, self._process = loop, os.getpid()

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

    async def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and await it on the caller's loop; cancelling one cancels the other."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def close(self) -> None:
        """Cancel what still runs on the loop, and end the thread. Does nothing in a forked process."""
        if self.is_elsewhere:
            return
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
            self._process = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        self._closing.set()
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join()
            loop.close()

    def _loop_for(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        try:
            return self.loop
        except (AgentCoreRLError, RuntimeError):
            coroutine.close()
            raise


def _cancel(coroutine: Coroutine[Any, Any, Any], ended: threading.Event) -> None:
    """Cancel the coroutine's task, on its own loop, and set `ended` when the task has ended.

    Cancelling its concurrent future instead would end that future at once, before the task has cleaned up. If an
    interrupt came before the task existed, there is only the coroutine to close.
    """
    for task in asyncio.all_tasks():
        if task.get_coro() is coroutine:
            task.add_done_callback(lambda _: ended.set())
            task.cancel()
            return
    coroutine.close()
    ended.set()


def _run(loop: asyncio.AbstractEventLoop, closing: threading.Event) -> None:
    """Run the loop until `close`: a task that calls `sys.exit()` or `loop.stop()` must not end the others."""
    while not closing.is_set():
        try:
            loop.run_forever()
        except BaseException:
            logger.exception("a task tried to end its thread, which other tasks share")


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def run_alone(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, which ends with it: what `asyncio.run` does, on `new_loop`."""
    loop = new_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(_cancel_others())
        loop.close()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's event loop if it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
