"""How results come back: announced where the store can, looked for everywhere, delivered once.

Expected results are in one table by key. An announcement (heard on a thread) or a look finds them; the first to find
one removes it from the table, so nothing delivers it again. A look asks for the keys that are missing, and never lists
what is old. How often the client looks follows how long rollouts take. Announcements of results that others expect are
left to them.

A store that doesn't answer costs a look, never a result. A result that can't be read, or that the store refuses to hand
out for `PATIENCE` seconds, is an error of its one rollout. Without permission to list, results are read one by one, and
S3's "forbidden" then means "not there yet". Lives on the client's loop; blocking calls run on threads.
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
"""Called once: with the result, or with an error."""

PATIENCE = 30.0
"""Seconds of refusals that the client tolerates: credentials are renewed, permissions spread."""
_SHORTEST, _LONGEST, _LONGEST_HEARD = 0.2, 10.0, 60.0
_SHARE = 0.1
_FOUND_AT_ONCE = 1000
_READS_PER_SECOND = 50
_THREADS = 32
_MOST_LISTENERS = 4
_FULL = 10
"""This many announcements at once mean that more are waiting: SQS hands out no more in one answer."""
_WARN_SECONDS = 30.0
_UNHEARD = 3
"""After this many results that no announcement preceded, the client expects none to come."""


@dataclass
class _Expected:
    deliver: Deliver
    since: float
    announced: bool = False
    unread: bool = False
    """Announced, and not found or not handed out."""
    refused_since: float | None = None


def look_interval(rollout_seconds: float, longest: float = _LONGEST) -> float:
    """Seconds between two looks: a tenth of what rollouts take, within bounds.

    >>> look_interval(1.0), look_interval(20.0), look_interval(3600.0)
    (0.2, 2.0, 10.0)
    """
    return min(max(_SHARE * rollout_seconds, _SHORTEST), longest)


class Delivery:
    """Delivers the results of one experiment."""

    announced_interval = 5.0
    """Seconds between two looks, at least, while the store announces results."""

    def __init__(self, store: Store, exp_id: str, *, patience: float | None = None) -> None:
        self.store, self._exp_id = store, exp_id
        self._patience = PATIENCE if patience is None else patience
        self._expected: dict[str, _Expected] = {}
        self._typical: float | None = None
        """Seconds that a rollout takes, as far as known."""
        self._reads = 0
        """Results that the latest look had to read one by one."""
        self._may_list = True
        self.heard = False
        """Whether any announcement has come."""
        self._unheard = 0
        self._all_heard = True
        """Whether each result since the last announcement was announced, and nothing failed: then looks can be rare."""
        self._loop = asyncio.get_running_loop()
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="results")
        self._looking: asyncio.Task[None] | None = None
        self._listeners: list[threading.Thread] = []
        self._is_expecting = threading.Event()
        self._fetching: set[asyncio.Task[None]] = set()
        self._warned: dict[str, float] = {}
        self._closed = False

    async def open(self) -> None:
        """List the store once, so that a wrong bucket, region or credential is an error at once."""
        try:
            await self.call(lambda: next(iter(self.store.keys(f"{self._exp_id}/")), None))
        except StoreForbidden as error:
            self._stop_listing(error)
        except StoreUnavailable as error:
            logger.warning("the store does not answer yet: %s", error)

    def expect(self, key: str, deliver: Deliver) -> None:
        """Wait for the result `key`."""
        self._expected[key] = _Expected(deliver, self._loop.time())
        self._is_expecting.set()
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self._keep_looking())
        if not self._listeners and self.store.announces:
            self._add_listener()

    def forget(self, key: str) -> _Expected | None:
        """Stop waiting for a result."""
        expected = self._expected.pop(key, None)
        if not self._expected:
            self._is_expecting.clear()
        return expected

    async def close(self) -> None:
        """Stop waiting for anything."""
        self._closed = True
        self._expected.clear()
        self._is_expecting.set()
        if self._looking is not None:
            self._looking.cancel()
        self.store.stop_waiting()
        for listener in list(self._listeners):
            await asyncio.to_thread(listener.join)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.store.close()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a blocking call to the store on a thread."""
        return await self._loop.run_in_executor(self._threads, function, *args)

    # --- announcements -----------------------------------------------------------------------------------------------

    def _add_listener(self) -> None:
        listener = threading.Thread(
            target=self._listen, args=(bool(self._listeners),), name="announcements", daemon=True
        )
        self._listeners.append(listener)
        listener.start()

    def _listen(self, helps: bool) -> None:
        """On its own thread: hear announcements while results are expected. A helper ends when it hears none."""
        while not self._closed:
            self._is_expecting.wait()
            if self._closed:
                return
            try:
                keys = self.store.announcements(self._exp_id, 1.0, self._expected.__contains__)
            except Exception as error:
                self._warn("announcements could not be heard; the client looks for results instead: %s", error)
                threading.Event().wait(1.0)
                continue
            if keys:
                self._loop.call_soon_threadsafe(self._announced, keys)
            elif helps:
                self._listeners.remove(threading.current_thread())
                return

    def _announced(self, keys: list[str]) -> None:
        self.heard = self._all_heard = True
        if len(keys) == _FULL and len(self._listeners) < _MOST_LISTENERS and not self._closed:
            self._add_listener()
        for key in keys:
            if key in self._expected:
                self._expected[key].announced = True
                task = self._loop.create_task(self._fetch(key))
                self._fetching.add(task)
                task.add_done_callback(self._fetching.discard)

    # --- looking -----------------------------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        try:
            while self._expected and not self._closed:
                await asyncio.sleep(self.interval())
                if self._expected:
                    await self.look()
        except Exception as error:
            logger.exception("the client can no longer look for results")
            for key in list(self._expected):
                self._deliver(key, None, StoreError(f"the client can no longer look for results: {error!r}"))

    def interval(self) -> float:
        """Seconds until the next look."""
        now = self._loop.time()
        oldest = min((expected.since for expected in self._expected.values()), default=now)
        relies_on_announcements = self.store.announces and (self.heard or self._unheard < _UNHEARD)
        rare = relies_on_announcements and self._all_heard and not any(one.unread for one in self._expected.values())
        age = now - oldest if self._typical is None else self._typical
        seconds = look_interval(age, _LONGEST_HEARD if rare else _LONGEST)
        seconds = max(seconds, (self._reads if self._may_list else len(self._expected)) / _READS_PER_SECOND)
        return max(seconds, self.announced_interval) if relies_on_announcements else seconds

    async def look(self) -> None:
        """Look once for every expected result."""
        keys = sorted(self._expected)
        parts = [keys[start : start + _FOUND_AT_ONCE] for start in range(0, len(keys), _FOUND_AT_ONCE)]
        self._reads = sum(await asyncio.gather(*map(self._look_for, parts)))

    async def _look_for(self, keys: list[str]) -> int:
        """Deliver what is there of `keys`, which are in order; returns how many had to be read to know."""
        there, unknown = set[str](), keys
        if self._may_list:
            try:
                there, unknown = await self.call(self.store.find, keys)
            except StoreForbidden as error:
                self._stop_listing(error)
            except StoreUnavailable as error:
                self._warn("the store did not answer a look for results; the client looks again: %s", error)
                return 0
            except Exception as error:
                self._refused(keys, error)
                return 0
        self._answered(set(keys).difference(there, unknown))
        await asyncio.gather(*(self._fetch(key) for key in (*there, *unknown)))
        return len(unknown)

    async def _fetch(self, key: str) -> None:
        """Deliver a result if it is there, or an error if it can't be read."""
        try:
            result: Result = await self.call(read_result, self.store, key)
        except KeyNotFound:
            self._answered([key])
        except StoreUnavailable as error:
            self._warn("the store did not hand out a result; the client tries again: %s", error)
        except ResultUnreadable as error:
            self._deliver(key, None, error)
        except StoreForbidden as error:
            if self._may_list or (key in self._expected and self._expected[key].announced):
                self._refused([key], error)  # else it may not be there yet
        except Exception as error:
            self._refused([key], error)
        else:
            self._unheard += 1
            self._all_heard &= key not in self._expected or self._expected[key].announced
            self._deliver(key, result, None)
        if key in self._expected:
            self._expected[key].unread = self._expected[key].announced

    def _deliver(self, key: str, result: Result | None, error: Exception | None) -> None:
        expected = self.forget(key)
        if expected is None:
            return
        if result is not None:
            # What the rollout itself took, if it says so: a late look must not make later looks rarer.
            waited = self._loop.time() - expected.since
            seconds = min(max(result.seconds or waited, 0.0), waited)
            self._typical = seconds if self._typical is None else 0.9 * self._typical + 0.1 * seconds
        expected.deliver(None if result is None else result.document, error)

    # --- a store that refuses ----------------------------------------------------------------------------------------

    def _answered(self, keys: Iterable[str]) -> None:
        """The store says that these are not there, so it no longer refuses."""
        for key in keys:
            if key in self._expected:
                self._expected[key].refused_since = None

    def _refused(self, keys: Iterable[str], error: Exception) -> None:
        """The store won't hand these out; after `PATIENCE` seconds, the error is delivered."""
        if self._closed:
            return
        self._warn("results could not be read: %s", error)
        now = self._loop.time()
        for key in keys:
            expected = self._expected.get(key)
            if expected is None:
                continue
            if expected.refused_since is None:
                expected.refused_since = now
            if now - expected.refused_since >= self._patience:
                problem = error if isinstance(error, StoreError) else StoreError(f"{key} can't be read: {error!r}")
                self._deliver(key, None, problem)

    def _stop_listing(self, error: Exception) -> None:
        if self._may_list:
            self._may_list = False
            logger.warning(
                "the client reads results one by one, because it may not list them: %s\nhint: allow s3:ListBucket. "
                "Without it, every look takes one request for each rollout, and a result that may not be read "
                "(s3:GetObject) looks like one that isn't there yet",
                error,
            )

    def _warn(self, text: str, error: Exception) -> None:
        """Log a warning, but not at every look."""
        self._all_heard = False
        now = self._loop.time()
        if now - self._warned.get(text, float("-inf")) >= _WARN_SECONDS:
            self._warned[text] = now
            logger.warning(text, error, exc_info=None if isinstance(error, StoreError) else error)
