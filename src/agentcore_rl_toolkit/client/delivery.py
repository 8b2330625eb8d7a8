"""How results come back: announced where they can be, looked for everywhere, delivered once.

Results that are waited for stand in one table by key. An announcement (from a thread that listens to the store) or
a look (one listing of the experiment, or one read per result, whichever is cheaper) finds them; the first to find
one takes it out of the table, so the other can't deliver it again. How often it looks adapts to how long rollouts
take. Lives on the client's loop; blocking calls run on threads.

A store that doesn't answer costs a look, never a result. What can't be read as a result is delivered as an error, to
its one rollout; so is a result that the store refuses to hand out for `PATIENCE` seconds. Without permission to list,
results are read one by one, and S3's "forbidden" then means "not there yet".
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..agent.result import Result, read_result
from ..errors import KeyNotFound, ResultUnreadable, StoreError, StoreForbidden, StoreUnavailable
from ..store import Store

logger = logging.getLogger(__name__)

Deliver = Callable[[dict[str, Any] | None, Exception | None], None]
"""Called once: with the result, or with why there is none."""

PATIENCE = 30.0
"""Seconds for which a store may refuse for good before it is believed: credentials are renewed, permissions spread."""
_SHORTEST, _LONGEST = 0.2, 10.0
_WITH_ANNOUNCEMENTS = 5.0
_SHARE = 0.1
_LISTED_AT_ONCE = 1000
_READS_PER_SECOND = 50
_THREADS = 16
_SAY_SECONDS = 30.0
_UNHEARD = 3
"""So many results that were found before any announcement was heard mean that none will be."""


@dataclass
class _Waiting:
    deliver: Deliver
    since: float
    announced: bool = False
    refused_since: float | None = None


class Delivery:
    """Delivers the results of one experiment."""

    def __init__(self, store: Store, exp_id: str, *, patience: float = PATIENCE) -> None:
        self.store, self._exp_id, self._patience = store, exp_id, patience
        self._waiting: dict[str, _Waiting] = {}
        self._typical: float | None = None
        self._listed = 0
        self._may_list = True
        self._unheard = 0
        self._loop = asyncio.get_running_loop()
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="results")
        self._looker: asyncio.Task[None] | None = None
        self._listener: threading.Thread | None = None
        self._anything = threading.Event()
        self._fetching: set[asyncio.Task[None]] = set()
        self._said: dict[str, float] = {}
        self._closed = False
        self.requests = 0
        """Requests made to the store so far, announcements not counted."""

    async def open(self) -> None:
        """Ask the store for anything at all, so that a wrong bucket, region or credential is an error at once."""
        try:
            await self.call(lambda: next(iter(self.store.keys(f"{self._exp_id}/")), None))
        except StoreForbidden as error:
            self._list_no_more(error)
        except StoreUnavailable as error:
            logger.warning("the store does not answer yet: %s", error)

    def expect(self, key: str, deliver: Deliver) -> None:
        """Wait for the result `key`."""
        self._waiting[key] = _Waiting(deliver, self._loop.time())
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

    # --- announcements -----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """On a thread of its own: hear announcements while there is something to wait for."""
        while not self._closed:
            self._anything.wait()
            if self._closed:
                return
            try:
                keys = self.store.announcements(self._exp_id, 1.0)
            except Exception as error:
                self._say("announcements could not be heard, results are looked for instead: %s", error)
                threading.Event().wait(1.0)
                continue
            if keys:
                self._loop.call_soon_threadsafe(self._announced, keys)

    def _announced(self, keys: list[str]) -> None:
        self._unheard = -1
        for key in keys:
            if key in self._waiting:
                self._waiting[key].announced = True
                task = self._loop.create_task(self._fetch(key))
                self._fetching.add(task)
                task.add_done_callback(self._fetching.discard)

    # --- looking -----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look for what is waited for, again and again until nothing is."""
        try:
            while self._waiting and not self._closed:
                await asyncio.sleep(self.interval())
                if self._waiting:
                    await self._look_once()
        except Exception as error:
            logger.exception("results can no longer be looked for")
            for key in list(self._waiting):
                self._deliver(key, None, StoreError(f"results can no longer be looked for: {error!r}"))

    def interval(self) -> float:
        """Seconds until the next look: a tenth of how long rollouts take, as far as that is known."""
        now = self._loop.time()
        oldest = min((waiting.since for waiting in self._waiting.values()), default=now)
        typical = self._typical if self._typical is not None else now - oldest
        seconds = min(max(_SHARE * typical, _SHORTEST), _LONGEST)
        if not self._may_list:
            seconds = max(seconds, len(self._waiting) / _READS_PER_SECOND)
        return max(seconds, _WITH_ANNOUNCEMENTS) if self.store.announces and self._unheard < _UNHEARD else seconds

    async def _look_once(self) -> None:
        waiting = list(self._waiting)
        if not self._may_list or len(waiting) <= 1 + self._listed // _LISTED_AT_ONCE:  # a listing would take more
            await asyncio.gather(*(self._fetch(key) for key in waiting))
            return
        try:
            found = await self.call(lambda: list(self.store.keys(f"{self._exp_id}/")))
        except StoreForbidden as error:
            self._list_no_more(error)
        except StoreUnavailable as error:
            self._say("results could not be looked for, and are again: %s", error)
        except Exception as error:
            self._refused(waiting, error)
        else:
            self._listed = len(found)
            self.requests += len(found) // _LISTED_AT_ONCE
            there = set(found) & self._waiting.keys()
            self._answered(key for key in waiting if key not in there)
            await asyncio.gather(*(self._fetch(key) for key in there))

    async def _fetch(self, key: str) -> None:
        """Deliver a result if it is there, or as an error if it is one that nobody can read."""
        try:
            result: Result = await self.call(read_result, self.store, key)
        except KeyNotFound:
            self._answered([key])
        except StoreUnavailable as error:
            self._say("a result could not be read, and is tried again: %s", error)
        except ResultUnreadable as error:
            self._deliver(key, None, error)
        except StoreForbidden as error:
            if self._may_list or (key in self._waiting and self._waiting[key].announced):
                self._refused([key], error)  # else it may not be there yet
        except Exception as error:
            self._refused([key], error)
        else:
            self._unheard += self._unheard >= 0
            self._deliver(key, result, None)

    def _deliver(self, key: str, result: Result | None, error: Exception | None) -> None:
        waiting = self._take(key)
        if waiting is None:
            return
        if result is not None:
            # What the rollout itself took, if it says so: how late it was found must not slow down the looking.
            waited = self._loop.time() - waiting.since
            seconds = min(max(result.seconds or waited, 0.0), waited)
            self._typical = seconds if self._typical is None else 0.9 * self._typical + 0.1 * seconds
        waiting.deliver(None if result is None else result.document, error)

    def _take(self, key: str) -> _Waiting | None:
        waiting = self._waiting.get(key)
        self.forget(key)
        return waiting

    # --- a store that refuses ----------------------------------------------------------------------------------------

    def _answered(self, keys: Iterable[str]) -> None:
        """The store has said that these are not there: whatever it refused before, it does so no longer."""
        for key in keys:
            if key in self._waiting:
                self._waiting[key].refused_since = None

    def _refused(self, keys: Iterable[str], error: Exception) -> None:
        """The store won't hand these out; after a while, that is what is delivered."""
        if self._closed:
            return
        self._say("results could not be read: %s", error)
        now = self._loop.time()
        for key in keys:
            waiting = self._waiting.get(key)
            if waiting is None:
                continue
            if waiting.refused_since is None:
                waiting.refused_since = now
            if now - waiting.refused_since >= self._patience:
                problem = error if isinstance(error, StoreError) else StoreError(f"{key} can't be read: {error!r}")
                self._deliver(key, None, problem)

    def _list_no_more(self, error: Exception) -> None:
        if self._may_list:
            self._may_list = False
            logger.warning(
                "results are read one by one, because they can't be listed: %s\nhint: allow s3:ListBucket. Without it, "
                "every look takes one request for each rollout, and a result that may not be read (s3:GetObject) looks "
                "like one that isn't there yet",
                error,
            )

    def _say(self, text: str, error: Exception) -> None:
        """Warn of it, but not at every look."""
        now = self._loop.time()
        if now - self._said.get(text, float("-inf")) >= _SAY_SECONDS:
            self._said[text] = now
            logger.warning(text, error, exc_info=None if isinstance(error, StoreError) else error)
