"""The one loop that runs many rollouts: `run_batch`, evaluation and training all use it.

Rollouts come in groups, the samples of one row. A free slot takes the next rollout of the first open group that has
one; the loop opens another group only if none has. So no slot waits for the slowest rollout of a group. A group
decides what follows an outcome: a retry, a refill, or that the rest is no longer needed. The loop knows neither
clients nor gateways, and reads no clock but its event loop's.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from ..errors import RolloutCancelled
from ..types import Status

DOWN = frozenset({Status.SESSION_LOST, Status.ENGINE_ERROR})
"""Statuses that an outage gives rollouts."""
_INCONCLUSIVE = frozenset({Status.TIMEOUT, Status.CANCELLED})
_SHARE = 0.25
_MUCH_LONGER = 2.0


class HasStatus(Protocol):
    """The outcome of a rollout, as far as the loop reads it."""

    @property
    def status(self) -> Status: ...


OutcomeT = TypeVar("OutcomeT", bound=HasStatus)
OutcomeT_co = TypeVar("OutcomeT_co", bound=HasStatus, covariant=True)
JobT = TypeVar("JobT", bound="Job[Any]")
T = TypeVar("T")


class Job(Protocol[OutcomeT_co]):
    """One session of one rollout."""

    async def run(self) -> OutcomeT_co:
        """Called once. An exception ends the whole loop, so failures are outcomes."""
        ...


class JobGroup(ABC, Generic[JobT, OutcomeT]):
    """The rollouts of one row while the loop runs them."""

    def __init__(self, input_id: str) -> None:
        self.input_id = input_id
        self.pending: deque[JobT] = deque()
        """Rollouts to start, in this order. A group may add some as others end."""

    @property
    def is_complete(self) -> bool:
        """Whether the group needs no further outcome; the loop then cancels what still runs."""
        return False

    @abstractmethod
    def ended(self, job: JobT, outcome: OutcomeT, *, counts: bool) -> None:
        """A rollout ended. `counts` is False for repeated failures of one outage, which no row is to blame for."""

    def cancelled(self, job: JobT) -> None:
        """The loop cancelled a rollout because the group is complete."""

    def finished(self) -> Awaitable[None] | None:
        """No rollout of the group runs or is pending. The loop awaits what is still to be done, if anything is."""


class Outage:
    """Tells outages of the infrastructure from rows that bring their own sessions down. Pure: it reads no clock.

    A lost session or a failed engine says nothing about the agent. It starts an outage, which ends with the first
    rollout that ends otherwise. Until then new rollouts wait longer and longer, and each row is charged once.

    >>> outage = Outage(dice=lambda: 1.0)
    >>> outage.ended("job", "row", Status.SESSION_LOST, now=1.0)
    True
    >>> outage.wait(now=1.0), outage.wait(now=41.0), outage.wait(now=1000.0)
    (0.5, 10.0, 30.0)
    >>> outage.seconds(now=41.0)
    40.0
    """

    first_wait, longest_wait = 0.5, 30.0
    """Bounds on the seconds that a new rollout waits in an outage."""

    def __init__(self, dice: Callable[[], float] = random.random) -> None:
        self._dice = dice
        self._running: dict[object, float] = {}
        self._since: float | None = None
        self._rows: set[str] = set()
        """Rows that have failed in this outage."""
        self._slowest = 0.0
        """Seconds that the slowest of these failures took."""

    def started(self, job: object, now: float) -> None:
        self._running[job] = now

    def cancelled(self, job: object) -> None:
        self._running.pop(job, None)

    def ended(self, job: object, row: str, status: Status, now: float, *, patience: float = 10.0) -> bool:
        """Record an outcome; returns whether the row is charged for it.

        After `patience` seconds a row is charged for every failure if it fails alone, or while other rollouts work.
        """
        began = self._running.pop(job, now)
        if status not in DOWN:
            if status not in _INCONCLUSIVE:
                self._since, self._slowest = None, 0.0
                self._rows.clear()
            return True
        first = row not in self._rows
        self._since = now if self._since is None else self._since
        self._slowest = max(self._slowest, now - began)
        self._rows.add(row)
        return first or (now - self._since >= patience and (self._rows == {row} or self._others_work(now)))

    def wait(self, now: float) -> float:
        """Seconds to wait before a start: a quarter of the outage so far, less up to half of that at random."""
        if self._since is None:
            return 0.0
        ceiling = min(max(_SHARE * (now - self._since), self.first_wait), self.longest_wait)
        return ceiling * (0.5 + 0.5 * self._dice())

    def seconds(self, now: float) -> float:
        """For how long every rollout has failed."""
        return 0.0 if self._since is None or self._others_work(now) else now - self._since

    def _others_work(self, now: float) -> bool:
        """Whether a rollout has run for much longer than those that failed."""
        return any(now - began > _MUCH_LONGER * self._slowest + 1 for began in self._running.values())


class _OpenGroup(Generic[OutcomeT]):
    """The loop's state of an open group."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.running: set[asyncio.Task[OutcomeT]] = set()
        self.startable = False


class RolloutLoop(Generic[OutcomeT, T]):
    """Runs groups in the background from the first `next()` on; groups give it what `next()` hands out."""

    def __init__(
        self,
        slots: int | Callable[[], int],
        open_group: Callable[[], JobGroup[Any, OutcomeT] | None],
        *,
        prepare: Callable[[], Awaitable[None]] | None = None,
        outage: Outage | None = None,
        patience: float = 10.0,
        ahead: int = sys.maxsize,
        stays_open: bool = False,
        beside: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`open_group` gives the next group, or None while no other may start. The loop awaits `prepare` first, and
        starts nothing while `ahead` results wait for `next()`. It ends when nothing is left, unless it `stays_open`.
        `wake()` tells it that another group may start, or that there are other `slots` than before. `beside`
        runs for as long as the loop."""
        self._slots: Callable[[], int] = slots if callable(slots) else lambda: slots
        self._open_group, self._prepare, self._beside = open_group, prepare, beside
        self._stays_open = stays_open
        self._outage, self._patience = outage or Outage(), patience
        self._room = asyncio.Semaphore(ahead)
        self._opened = itertools.count()
        self._open: dict[JobGroup[Any, OutcomeT], _OpenGroup[OutcomeT]] = {}
        self._startable: list[tuple[int, JobGroup[Any, OutcomeT]]] = []
        """A heap of the open groups that have pending rollouts, the first opened on top."""
        self._running: dict[asyncio.Task[OutcomeT], tuple[JobGroup[Any, OutcomeT], Job[OutcomeT]]] = {}
        self._finishing: set[asyncio.Future[None]] = set()
        """Remaining work of groups whose rollouts have ended."""
        self._done: asyncio.Queue[asyncio.Future[Any] | None] = asyncio.Queue()
        """Rollouts that have ended; None for a call of `wake()`."""
        self._used, self._used_at = 0.0, 0.0
        self._ready: deque[T] = deque()
        self._results: asyncio.Queue[T | BaseException | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def hand_out(self, result: T) -> None:
        """Give a result to the caller of `next()`."""
        self._ready.append(result)

    def wake(self) -> None:
        """Ask `slots` and `open_group` again."""
        self._done.put_nowait(None)

    def usage(self) -> tuple[float, float]:
        """The loop's time, and the seconds for which slots have been in use by then, all together."""
        now = asyncio.get_running_loop().time()
        self._used, self._used_at = self._used + len(self._running) * (now - self._used_at), now
        return now, self._used

    async def next(self) -> T | None:
        """The next result; None after the last one. Raises what ended the loop."""
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())
        if self._task is None or (self._task.done() and self._results.empty()):
            return None
        result = await self._results.get()
        if isinstance(result, BaseException):
            raise result
        self._room.release()
        return result

    async def close(self) -> None:
        """Cancel every rollout that runs, and wait until they have cleaned up."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        """Run all groups. However that ends, `next()` returns."""
        ending: BaseException | None = RolloutCancelled("the loop was cancelled before its rollouts had ended")
        beside = [] if self._beside is None else [asyncio.ensure_future(self._beside())]
        try:
            await self._run_groups()
            ending = None
        except Exception as error:
            ending = error
        finally:
            left: list[asyncio.Future[Any]] = [*self._running, *self._finishing, *beside]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            for result in (*self._ready, None if self._closed else ending):
                self._results.put_nowait(result)

    async def _run_groups(self) -> None:
        if self._prepare is not None:
            await self._prepare()
        while True:
            while self._ready:
                await self._room.acquire()
                self._results.put_nowait(self._ready.popleft())
            self._fill_slots()
            if not self._running and not self._finishing and not self._stays_open:
                return
            ended = [await self._done.get()]
            while not self._done.empty():
                ended.append(self._done.get_nowait())
            for task in ended:
                if task in self._finishing:
                    self._finishing.discard(task)
                    task.result()
                elif isinstance(task, asyncio.Task):
                    self._end(task)

    def _fill_slots(self) -> None:
        while len(self._running) < self._slots() and (found := self._next_job()) is not None:
            self.usage()
            task = asyncio.ensure_future(self._run_job(found[1]))
            task.add_done_callback(self._done.put_nowait)
            self._running[task] = found
            self._open[found[0]].running.add(task)

    def _next_job(self) -> tuple[JobGroup[Any, OutcomeT], Job[OutcomeT]] | None:
        while self._startable:
            _, group = self._startable[0]
            if group.pending:
                return group, group.pending.popleft()
            heapq.heappop(self._startable)
            if group in self._open:
                self._open[group].startable = False
        opened = self._open_group()
        if opened is None:
            return None
        self._open[opened] = _OpenGroup(next(self._opened))
        job = opened.pending.popleft()
        self._offer(opened)
        return opened, job

    def _offer(self, group: JobGroup[Any, OutcomeT]) -> None:
        """Let slots take the group's pending rollouts, if it has some."""
        known = self._open[group]
        if group.pending and not known.startable:
            known.startable = True
            heapq.heappush(self._startable, (known.number, group))

    async def _run_job(self, job: Job[OutcomeT]) -> OutcomeT:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self._outage.wait(clock()))
        self._outage.started(job, clock())
        return await job.run()

    def _end(self, task: asyncio.Task[OutcomeT]) -> None:
        self.usage()
        group, job = self._running.pop(task)
        was_complete = group.is_complete
        if not task.cancelled():
            outcome, now = task.result(), asyncio.get_running_loop().time()
            counts = self._outage.ended(job, group.input_id, outcome.status, now, patience=self._patience)
            group.ended(job, outcome, counts=counts)
        elif was_complete:
            self._outage.cancelled(job)
            group.cancelled(job)
        else:
            raise RolloutCancelled(f"a rollout of {group.input_id} was cancelled from outside")
        known = self._open[group]
        known.running.remove(task)
        if group.is_complete and not was_complete:
            group.pending.clear()
            for other in known.running:
                other.cancel()
        if known.running or group.pending:
            self._offer(group)
        else:
            del self._open[group]
            left = group.finished()
            if left is not None:
                task_left = asyncio.ensure_future(left)
                self._finishing.add(task_left)
                task_left.add_done_callback(self._done.put_nowait)
