"""Running one rollout function in the background, and seeing its one result into the store.

A sync function gets a thread of its own; async ones share one event loop on a thread of its own, so that neither can
hold up `/ping`. Whichever way a run ends first (it returns, it raises, the app shuts down) decides its result; the
result is then stored with retries and announced. Making the result runs the agent's code once more, and storing it
takes a thread: neither may keep it from being stored. Nothing starts before the first rollout, so that a process may be
forked until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..config import AgentCoreConfig
from ..errors import SessionLost, StoreError, StoreUnavailable
from ..store import Store
from ..store.retry import retry
from ..types import Status
from .logs import JsonLine
from .result import Result, ResultBuilder

logger = logging.getLogger(__name__)

_ANNOUNCE_SECONDS = 10.0


@dataclass(eq=False)
class RolloutRun:
    """One rollout on its way from the function to the store."""

    call: Callable[[], Any]
    """Calls the user's function; gives a value, an awaitable or a generator."""
    result: ResultBuilder
    store: Store
    on_stored: Callable[[], object]
    """Called once the result is stored, or given up and logged."""
    on_ended: Callable[[], object] = lambda: None
    """Called once the function has ended, before its result is stored."""

    document: Result | None = None
    stored: threading.Event = field(default_factory=threading.Event)
    task: asyncio.Task[None] | None = None
    _ended: threading.Lock = field(default_factory=threading.Lock)
    _given_up: threading.Lock = field(default_factory=threading.Lock)

    def end(self) -> bool:
        """Claim the right to decide the result; True for the first caller only."""
        return self._ended.acquire(blocking=False)

    def give_up(self) -> bool:
        """Claim the right to log that the result is not stored; True for the first caller only."""
        return self._given_up.acquire(blocking=False)


class RolloutRunner:
    """Runs rollouts, any number at a time."""

    def __init__(self, config: AgentCoreConfig) -> None:
        self._config = config
        self._live: set[RolloutRun] = set()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, run: RolloutRun, *, is_async: bool) -> None:
        """Start `run` in the background, under the caller's context variables."""
        with self._lock:
            self._live.add(run)
        context = contextvars.copy_context()
        try:
            if is_async:
                self._async_loop().call_soon_threadsafe(self._start_task, run, context=context)
            else:
                _thread(context.run, self._run_sync, run)
        except RuntimeError:  # there are too many threads
            with self._lock:
                self._live.discard(run)
            raise
        with contextlib.suppress(RuntimeError):
            _thread(run.store.prepare)  # while the function runs

    async def shutdown(self) -> None:
        """Store `session_lost` for what still runs, wait for what is being stored, log what could not be."""
        seconds = self._config.shutdown_seconds
        now = time.monotonic()
        with self._lock:
            runs = list(self._live)
        running = [run for run in runs if run.end()]
        for run in running:
            self._report_lost(run, seconds)
            if run.task is not None and self._loop is not None:
                self._loop.call_soon_threadsafe(run.task.cancel)  # lets the agent clean up
        for run in runs:
            if run not in running and not await _wait(run.stored, now + seconds / 2) and run.document is None:
                self._report_lost(run, seconds / 2)  # what the function returned does not let itself be read
        for run in runs:
            if not await _wait(run.stored, now + seconds):
                _log_unstored(run, f"the session ended before the store answered ({seconds:g} s)")

    def _report_lost(self, run: RolloutRun, seconds: float) -> None:
        lost = SessionLost("the session was stopped while the rollout was running")
        self._deliver_elsewhere(run, _later(run.result.failed, Status.SESSION_LOST, lost), seconds)

    def _start_task(self, run: RolloutRun) -> None:
        run.task = asyncio.get_running_loop().create_task(self._run_async(run))

    def _run_sync(self, run: RolloutRun) -> None:
        try:
            build = _later(run.result.returned, _drain(run.call()))
        except BaseException as error:  # SystemExit too: it must not pass for an end of the rollout
            build = _later(run.result.raised, error)
        _call_on_ended(run)
        if run.end():
            self._deliver(run, build, self._config.store_retry_seconds)

    async def _run_async(self, run: RolloutRun) -> None:
        try:
            build = _later(run.result.returned, await _drain_async(run.call()))
        except BaseException as error:
            build = _later(run.result.raised, error)
        _call_on_ended(run)
        if run.end():
            self._deliver_elsewhere(run, build, self._config.store_retry_seconds)

    def _deliver_elsewhere(self, run: RolloutRun, build: Callable[[], Result], seconds: float) -> None:
        """Deliver on a thread, because storing blocks and rollouts share the loop; here if none can be started."""
        try:
            _thread(contextvars.copy_context().run, self._deliver, run, build, seconds)
        except RuntimeError:
            self._deliver(run, build, seconds)

    def _deliver(self, run: RolloutRun, build: Callable[[], Result], seconds: float) -> None:
        """Store the result and announce it; what can't be stored is logged in full."""
        try:
            run.document = build()
            data, key = run.document.to_bytes(), run.result.id.result_key
            if retry(lambda: run.store.put_if_absent(key, data), seconds=seconds, on_retry=_log_retry):
                logger.info("stored %s (%s)", key, run.document.status.value)
            else:  # our own write whose answer got lost, or an earlier run of this session
                logger.info("%s was stored already", key)
            run.stored.set()
            self._announce(run, key)
        except Exception as error:
            _log_unstored(run, str(error))
        finally:
            run.stored.set()
            with self._lock:
                self._live.discard(run)
            run.on_stored()

    def _announce(self, run: RolloutRun, key: str) -> None:
        try:
            retry(lambda: run.store.announce(key), seconds=_ANNOUNCE_SECONDS, on_retry=_log_retry)
        except StoreError as error:
            logger.warning("%s is stored, but could not be announced: %s", key, error)

    def _async_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                try:
                    _thread(_run_forever, loop)
                except RuntimeError:
                    loop.close()
                    raise
                self._loop = loop
            return self._loop


def _thread(function: Callable[..., Any], *args: Any) -> None:
    # A daemon: an agent that hangs must not keep the process from ending.
    threading.Thread(target=function, args=args, name="rollout", daemon=True).start()


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop on, whatever an agent does to it: a task of its own that exits, or `loop.stop()`."""
    while not loop.is_closed():
        try:
            loop.run_forever()
        except BaseException:
            logger.warning("the agent interrupted the event loop of its rollouts", exc_info=True)


async def _wait(event: threading.Event, deadline: float) -> bool:
    """Whether the event is set by then. It polls, because there may be no thread to wait in."""
    while not event.is_set() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return event.is_set()


def _call_on_ended(run: RolloutRun) -> None:
    try:
        run.on_ended()
    except BaseException:  # the agent may have done anything to the process's environment
        logger.exception("could not clean up after %s", run.result.id.result_key)


def _later(build: Callable[..., Result], *args: Any) -> Callable[[], Result]:
    """`build(*args, now)`, to be called off the event loop."""
    now = time.time()
    return lambda: build(*args, now)


def _drain(value: Any) -> Any:
    """Run a generator to its end; its result is what it returns, or else the last thing it yields."""
    if not inspect.isgenerator(value):
        return value
    last = None
    while True:
        try:
            last = next(value)
        except StopIteration as end:
            return last if end.value is None else end.value


async def _drain_async(value: Any) -> Any:
    if inspect.isasyncgen(value):
        last = None
        async for item in value:
            last = item
        return last
    return await _drain_async(await value) if inspect.isawaitable(value) else _drain(value)


def _log_retry(error: StoreUnavailable, delay: float) -> None:
    logger.warning("%s; trying again in %.2f s", error, delay)


def _log_unstored(run: RolloutRun, reason: str) -> None:
    if not run.give_up():
        return
    document = run.document.document if run.document is not None else None
    line = {
        "event": "result_not_stored",
        "key": run.result.id.result_key,
        "reason": run.result.redact(reason),
    }
    logger.error(JsonLine(line | {"document": document}))
