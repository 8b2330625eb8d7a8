"""How results come back: announced where they can be, looked for everywhere, delivered once.

Results that are waited for stand in one table by key. An announcement (from a thread that listens to the store) or
a look (one listing of the experiment, or one read per result, whichever is cheaper) finds them; the first to find
one takes it out of the table, so the other can't deliver it again. How often it looks adapts to how long rollouts
take. An error of the store costs a look, never a result. Lives on the client's loop; blocking calls run on threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from ..errors import AgentCoreRLError, KeyNotFound, StoreError
from ..result import Result
from ..store import Store

logger = logging.getLogger(__name__)

Deliver = Callable[[dict[str, Any] | None, Exception | None], None]
"""Called once: with the result, or with why there is none."""

_SHORTEST, _LONGEST = 0.2, 10.0
_WITH_ANNOUNCEMENTS = 5.0
_SHARE = 0.1
_LISTED_AT_ONCE = 1000
_THREADS = 16


class Delivery:
    """Delivers the results of one experiment."""

    def __init__(self, store: Store, exp_id: str) -> None:
        self.store, self._exp_id = store, exp_id
        self._waiting: dict[str, tuple[Deliver, float]] = {}
        self._typical: float | None = None
        self._listed = 0
        self._loop = asyncio.get_running_loop()
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="results")
        self._looker: asyncio.Task[None] | None = None
        self._listener: threading.Thread | None = None
        self._anything = threading.Event()
        self._closed = False
        self.requests = 0
        """Requests made to the store so far, announcements not counted."""

    def expect(self, key: str, deliver: Deliver) -> None:
        """Wait for the result `key`."""
        self._waiting[key] = (deliver, self._loop.time())
        self._anything.set()
        if self._looker is None or self._looker.done():
            self._looker = self._loop.create_task(self._look())
        if self._listener is None and self.store.announces:
            self._listener = threading.Thread(target=self._listen, name="announcements", daemon=True)
            self._listener.start()

    def forget(self, key: str) -> None:
        """Wait for it no longer."""
        self._waiting.pop(key, None)
        if not self._waiting:
            self._anything.clear()

    async def close(self) -> None:
        """Stop waiting for anything."""
        self._closed = True
        self._anything.set()
        if self._looker is not None:
            self._looker.cancel()
        for key in list(self._waiting):
            self._take(key)
        if self._listener is not None:
            await asyncio.to_thread(self._listener.join)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.store.close()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a blocking call to the store on a thread."""
        self.requests += 1
        return await self._loop.run_in_executor(self._threads, function, *args)

    def _listen(self) -> None:
        """On a thread of its own: hear announcements while there is something to wait for."""
        while not self._closed:
            self._anything.wait()
            if self._closed:
                return
            try:
                keys = self.store.announcements(self._exp_id, 1.0)
            except AgentCoreRLError as error:
                logger.warning("announcements could not be heard: %s", error)
                threading.Event().wait(1.0)
                continue
            if keys:
                self._loop.call_soon_threadsafe(self._announced, keys)

    def _announced(self, keys: list[str]) -> None:
        for key in keys:
            if key in self._waiting:
                task = self._loop.create_task(self._fetch(key))
                task.add_done_callback(lambda _: None)

    async def _look(self) -> None:
        """Look for what is waited for, again and again until nothing is."""
        while self._waiting and not self._closed:
            await asyncio.sleep(self.interval())
            if not self._waiting:
                return
            try:
                await self._look_once()
            except AgentCoreRLError as error:
                logger.warning("results could not be looked for: %s", error)

    def interval(self) -> float:
        """Seconds until the next look: a tenth of how long rollouts take, as far as that is known."""
        now = self._loop.time()
        oldest = min((since for _, since in self._waiting.values()), default=now)
        typical = self._typical if self._typical is not None else now - oldest
        seconds = min(max(_SHARE * typical, _SHORTEST), _LONGEST)
        return max(seconds, _WITH_ANNOUNCEMENTS) if self.store.announces else seconds

    async def _look_once(self) -> None:
        waiting = list(self._waiting)
        if len(waiting) <= 1 + self._listed // _LISTED_AT_ONCE:  # a listing would take more requests
            await asyncio.gather(*(self._fetch(key) for key in waiting))
            return
        found = await self.call(lambda: list(self.store.keys(f"{self._exp_id}/")))
        self._listed = len(found)
        self.requests += len(found) // _LISTED_AT_ONCE
        await asyncio.gather(*(self._fetch(key) for key in found if key in self._waiting))

    async def _fetch(self, key: str) -> None:
        try:
            data = await self.call(self.store.get, key)
            document = json.loads(data)
            if not isinstance(document, dict):
                raise ValueError(f"a {type(document).__name__}, not an object")
        except KeyNotFound:
            return  # not there yet
        except StoreError as error:
            logger.warning("%s could not be read, and is tried again: %s", key, error)
            return
        except ValueError as error:
            problem = StoreError(f"the result {key} is not JSON as it should be: {error}")
            if (waiting := self._take(key)) is not None:
                waiting[0](None, problem)
            return
        if (waiting := self._take(key)) is not None:
            # What the rollout itself took, if it says so: how late it was found must not slow down the looking.
            seconds = Result(document).seconds or self._loop.time() - waiting[1]
            self._typical = seconds if self._typical is None else 0.9 * self._typical + 0.1 * seconds
            waiting[0](document, None)

    def _take(self, key: str) -> tuple[Deliver, float] | None:
        waiting = self._waiting.get(key)
        self.forget(key)
        return waiting
