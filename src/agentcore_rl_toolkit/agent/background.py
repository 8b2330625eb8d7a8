"""Runs a rollout's function in the background, and delivers its one result to the store.

Each sync function gets a thread; async ones share one event loop on a separate thread, so that neither kind can block
`/ping`. A run ends when the function returns, when it raises, or when the app shuts down; the first of these decides
the result. The result is then stored, with retries, and announced. No thread starts before the first rollout, so that a
process can be forked until then.
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
from typing import Any, Protocol

from ..common.private_loop import PrivateLoop
from ..config import AgentCoreConfig
from ..errors import SessionLost, StoreError, StoreUnavailable
from ..store.retry import retry
from ..types import Status
from .logs import JsonLine
from .result import Result, ResultBuilder

logger = logging.getLogger(__name__)

_ANNOUNCE_SECONDS = 10.0


class Destination(Protocol):
    """Receives a result: a `Store`, or `JobFeedback`."""

    def prepare(self) -> None:
        """Do slow preparations early."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Deliver the result; `StoreUnavailable` means that another try may help."""

    def announce(self, key: str) -> None:
        """Tell readers that the result is stored."""


@dataclass(eq=False)
class BackgroundRun:
    """One rollout on its way from the function to the store."""

    call: Callable[[], Any]
    """Calls the user's function; gives a value, an awaitable or a generator."""
    builder: ResultBuilder
    store: Destination
    on_stored: Callable[[], object] = lambda: None
    """Called once the result is stored, or given up and logged."""
    on_ended: Callable[[], object] = lambda: None
    """Called once the function has ended, before its result is stored."""
    retry_seconds: float | None = None
    """How long storing is retried; None for the config's `store_retry_seconds`."""

    result: Result | None = None
    stored: threading.Event = field(default_factory=threading.Event)
    task: asyncio.Task[None] | None = None
    _ended: threading.Lock = field(default_factory=threading.Lock)
    _logged: threading.Lock = field(default_factory=threading.Lock)

    @property
    def key(self) -> str:
        return self.builder.id.result_key

    async def ended(self) -> dict[str, Any]:
        """Wait until the result is stored or given up; returns the answer."""
        while not await _wait(self.stored, time.monotonic() + 60):
            pass
        return self.answer

    @property
    def answer(self) -> dict[str, Any]:
        """The status and the rewards of the result."""
        if self.result is None:
            return {"status": Status.SESSION_LOST.value}
        rewards = self.result.rewards if self.result.status is Status.COMPLETED else None
        return {"status": self.result.status.value, "rewards": rewards, "error": self.result.failure}

    def claim_end(self) -> bool:
        """Claim the right to decide the result; True for the first caller only."""
        return self._ended.acquire(blocking=False)

    def log_unstored(self, reason: str) -> None:
        """Log the whole result, once, because it could not be stored."""
        if self._logged.acquire(blocking=False):
            document = None if self.result is None else self.result.document
            fields = {"event": "result_not_stored", "key": self.key, "reason": self.builder.redact(reason)}
            logger.error(JsonLine(fields | {"document": document}))


class BackgroundRunner:
    def __init__(self, config: AgentCoreConfig) -> None:
        self._config = config
        self._live: set[BackgroundRun] = set()
        self._lock = threading.Lock()
        self._loop = PrivateLoop("rollouts")

    @property
    def live(self) -> int:
        """How many rollouts run, or wait for their result to be stored."""
        return len(self._live)

    def start(self, run: BackgroundRun, *, is_async: bool) -> None:
        """Start `run` with the caller's context variables; raises `RuntimeError` if no thread can be started."""
        with self._lock:
            self._live.add(run)
        context = contextvars.copy_context()
        try:
            if is_async:
                self._loop.loop.call_soon_threadsafe(self._start_task, run, context=context)
            else:
                _start_thread(context.run, self._run_sync, run)
        except RuntimeError:
            with self._lock:
                self._live.discard(run)
            raise
        with contextlib.suppress(RuntimeError):
            _start_thread(run.store.prepare)  # while the function runs

    async def shutdown(self) -> None:
        """Store `session_lost` for rollouts that still run, wait for results on their way, log the others."""
        seconds = self._config.shutdown_seconds
        now = time.monotonic()
        with self._lock:
            runs = list(self._live)
        running = [run for run in runs if run.claim_end()]
        for run in running:
            self._report_lost(run, seconds)
            if run.task is not None:
                self._loop.loop.call_soon_threadsafe(run.task.cancel)  # lets the agent clean up
        for run in runs:
            if run not in running and not await _wait(run.stored, now + seconds / 2) and run.result is None:
                self._report_lost(run, seconds / 2)  # reading the returned value hangs
        for run in runs:
            if not await _wait(run.stored, now + seconds):
                run.log_unstored(f"the session ended before the store answered ({seconds:g} s)")

    def _retry_seconds(self, run: BackgroundRun) -> float:
        return self._config.store_retry_seconds if run.retry_seconds is None else run.retry_seconds

    def _report_lost(self, run: BackgroundRun, seconds: float) -> None:
        lost = SessionLost("the session was stopped while the rollout was running")
        self._deliver_on_thread(run, _build_later(run.builder.failed, Status.SESSION_LOST, lost), seconds)

    def _start_task(self, run: BackgroundRun) -> None:
        run.task = asyncio.get_running_loop().create_task(self._run_async(run))

    def _run_sync(self, run: BackgroundRun) -> None:
        try:
            build = _build_later(run.builder.returned, _drain(run.call()))
        except BaseException as error:  # SystemExit too: a rollout that exits has failed
            build = _build_later(run.builder.raised, error)
        _call_on_ended(run)
        if run.claim_end():
            self._deliver(run, build, self._retry_seconds(run))

    async def _run_async(self, run: BackgroundRun) -> None:
        try:
            build = _build_later(run.builder.returned, await _drain_async(run.call()))
        except BaseException as error:
            build = _build_later(run.builder.raised, error)
        _call_on_ended(run)
        if run.claim_end():
            self._deliver_on_thread(run, build, self._retry_seconds(run))

    def _deliver_on_thread(self, run: BackgroundRun, build: Callable[[], Result], seconds: float) -> None:
        """Deliver on a thread, because storing blocks and rollouts share the loop; here if none can be started."""
        try:
            _start_thread(contextvars.copy_context().run, self._deliver, run, build, seconds)
        except RuntimeError:
            self._deliver(run, build, seconds)

    def _deliver(self, run: BackgroundRun, build: Callable[[], Result], seconds: float) -> None:
        """Store the result and announce it; log it whole if it can't be stored."""
        try:
            run.result = build()
            data = run.result.to_bytes()
            if retry(lambda: run.store.put_if_absent(run.key, data), seconds=seconds, on_retry=_log_retry):
                logger.info("stored %s (%s)", run.key, run.result.status.value)
            else:  # our own write whose answer got lost, or an earlier run of this session
                logger.info("%s was stored already", run.key)
            run.stored.set()
            _announce(run)
        except Exception as error:
            run.log_unstored(str(error))
        finally:
            run.stored.set()
            with self._lock:
                self._live.discard(run)
            run.on_stored()


def _announce(run: BackgroundRun) -> None:
    try:
        retry(lambda: run.store.announce(run.key), seconds=_ANNOUNCE_SECONDS, on_retry=_log_retry)
    except StoreError as error:
        logger.warning("%s is stored, but could not be announced: %s", run.key, error)


def _start_thread(function: Callable[..., Any], *args: Any) -> None:
    # A daemon: an agent that hangs must not keep the process alive.
    threading.Thread(target=function, args=args, name="rollout", daemon=True).start()


async def _wait(event: threading.Event, deadline: float) -> bool:
    """Whether the event is set by the deadline. It polls, because the process may be unable to start another thread."""
    while not event.is_set() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return event.is_set()


def _call_on_ended(run: BackgroundRun) -> None:
    try:
        run.on_ended()
    except BaseException:  # the agent may have changed the process's environment in any way
        logger.exception("could not clean up after %s", run.key)


def _build_later(build: Callable[..., Result], *args: Any) -> Callable[[], Result]:
    """`build(*args, now)`, to be called off the event loop."""
    now = time.time()
    return lambda: build(*args, now)


def _drain(value: Any) -> Any:
    """Run a generator to its end; returns its return value, or else the last value that it yields."""
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
