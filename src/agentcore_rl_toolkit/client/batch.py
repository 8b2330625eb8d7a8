"""Batches: many rollouts, a bounded number at a time, each with its own time limit, retries and outcome.

One bad rollout is one `BatchItem` that says so; nothing it does reaches the others. Leaving the loop early, an
exception, Ctrl-C and `close()` all stop every session that is still running. The work is done by `BatchRun` on the
client's loop; `BatchResult` and `AsyncBatchResult` hand its items out.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import random
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..agent.read_result import read_result
from ..agent.result import Result
from ..common.private_loop import PrivateLoop
from ..errors import (
    AgentCoreRLError,
    ConfigError,
    RolloutCancelled,
    RuntimeFault,
    StoreError,
    StoreForbidden,
    StoreMisconfigured,
)
from ..types import INFRASTRUCTURE, RolloutId, Status
from .attempt import Attempt
from .in_flight import ClientCore

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 2.0

Progress = Callable[["BatchItem", int, int], object]
"""Called with each item, how many are done, and how many there are."""


@dataclass(frozen=True)
class BatchItem:
    """The outcome of one rollout of a batch."""

    success: bool
    """True only for a rollout that succeeded."""
    result: dict[str, Any] | None
    """The stored result, also of a failed rollout; None if there is none."""
    error: str | None
    """What went wrong, None on success."""
    index: int
    """The payload's place in the batch."""
    elapsed: float
    """Seconds from its first invoke to its outcome."""
    input_id: str
    sample: int = 0
    """Which of the row's `n` samples this is."""
    session_id: str | None = None
    status: Status = Status.COMPLETED
    attempts: int = 1
    resumed: bool = False
    """Whether the store had it already."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How a batch is run."""

    max_concurrent_sessions: int = 25
    timeout: float | None = 900.0
    n: int = 1
    max_retries: int = 2
    hedge_after: float | None = None
    resume: bool = False
    rerun_failures: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        for name in ("max_concurrent_sessions", "n"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("timeout", "hedge_after"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be more than 0 seconds, not {value}")


@dataclass(frozen=True)
class _Sample:
    index: int
    sample: int
    input_id: str
    payload: dict[str, Any]


class BatchRun:
    """A batch at work, on the client's loop."""

    def __init__(self, core: ClientCore, payloads: Iterable[dict[str, Any]], options: BatchOptions) -> None:
        self._core, self._options = core, options
        rows = list(payloads)
        ids = [input_id_of(row, index) for index, row in enumerate(rows)]
        self._samples = [
            _Sample(index, sample, ids[index], row) for index, row in enumerate(rows) for sample in range(options.n)
        ]
        self.total = len(self._samples)
        self._items: asyncio.Queue[BatchItem | BaseException | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._done = 0
        self._closed = False

    async def next(self) -> BatchItem | None:
        """The next item in order of completion; None after the last."""
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())
        if self._task is None or (self._task.done() and self._items.empty()):
            return None
        item = await self._items.get()
        if isinstance(item, BaseException):
            raise item
        if item is not None:
            self._done += 1
            if self._options.progress is not None:
                self._options.progress(item, self._done, self.total)
        return item

    async def close(self) -> None:
        """Stop every session that is still running."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._core.settled()

    async def _run(self) -> None:
        """Run all samples. However that ends, whoever waits for an item hears of it."""
        ending: BaseException | None = RolloutCancelled("the batch was ended before its rollouts were")
        try:
            await self._run_all()
            ending = None
        except Exception as error:
            ending = error
        finally:
            self._items.put_nowait(None if self._closed else ending)

    async def _run_all(self) -> None:
        await self._core.open()
        left = iter(await self._resume() if self._options.resume else self._samples)

        async def worker() -> None:
            for sample in left:
                self._items.put_nowait(await self._run_sample(sample))

        width = min(self._options.max_concurrent_sessions, self.total)
        workers = [asyncio.ensure_future(worker()) for _ in range(width)]
        try:
            await asyncio.gather(*workers)
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    # --- one sample ------------------------------------------------------------------------------------------------

    async def _run_sample(self, sample: _Sample) -> BatchItem:
        """Try until it succeeds, fails by its own fault, or the retries are used up."""
        start = time.monotonic()
        for attempt in range(1, self._options.max_retries + 2):
            if attempt > 1:  # whatever it was, give it time to pass
                await asyncio.sleep(random.uniform(0.5, 1) * _PAUSE_SECONDS * (attempt - 1))
            item = await self._attempt(sample, attempt, start)
            if item.success or item.status not in INFRASTRUCTURE:
                break
        return item

    async def _attempt(self, sample: _Sample, number: int, start: float) -> BatchItem:
        options = self._options
        attempt = Attempt(
            self._core, sample.payload, sample.input_id, timeout=options.timeout, hedge_after=options.hedge_after
        )
        try:
            document, session_id = await attempt.run()
        except StoreMisconfigured:
            raise  # so would all the others be
        except asyncio.TimeoutError:
            status, error = Status.TIMEOUT, f"no result after {options.timeout:g} s; the session was stopped"
        except RuntimeFault as fault:
            status, error = status_of(fault), str(fault)
        except AgentCoreRLError as problem:
            status, error = Status.AGENT_ERROR, str(problem)
        except Exception as problem:
            logger.exception("rollout %d of a batch failed in a way that nobody expected", sample.index)
            status, error = Status.AGENT_ERROR, "".join(traceback.format_exception_only(problem)).strip()
        else:
            return _item(sample, document, session_id, number, time.monotonic() - start)
        return BatchItem(
            success=False,
            result=None,
            error=error,
            index=sample.index,
            elapsed=time.monotonic() - start,
            input_id=sample.input_id,
            sample=sample.sample,
            session_id=attempt.session_id,
            status=status,
            attempts=number,
        )

    # --- resuming --------------------------------------------------------------------------------------------------

    async def _resume(self) -> list[_Sample]:
        """Hand out what the store has; gives what it has not."""
        assert self._core.delivery is not None
        store, call = self._core.delivery.store, self._core.delivery.call
        wanted = {sample.input_id for sample in self._samples}
        try:
            keys = await call(lambda: [k for k in store.keys(f"{self._core.exp_id}/") if _input_of(k) in wanted])
        except StoreForbidden as error:
            raise StoreForbidden(str(error), hint="allow s3:ListBucket; resume has to list what is there") from error
        kept: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        for key in keys:
            with contextlib.suppress(StoreError):
                document = (await call(read_result, store, key)).document
                status = Result(document).status
                if status is Status.COMPLETED or (status not in INFRASTRUCTURE and not self._options.rerun_failures):
                    kept[_input_of(key) or ""].append((key, document))
        missing = []
        for sample in self._samples:
            if kept[sample.input_id]:
                key, document = kept[sample.input_id].pop(0)
                item = _item(sample, document, RolloutId.from_key(key).session_id, 0, _seconds(document), resumed=True)
                self._items.put_nowait(item)
            else:
                missing.append(sample)
        return missing


class BatchResult:
    """Iterate over it: items come in the order in which rollouts complete."""

    def __init__(self, run: BatchRun, loop: PrivateLoop) -> None:
        self._run, self._loop = run, loop

    def __len__(self) -> int:
        return self._run.total

    def __iter__(self) -> Iterator[BatchItem]:
        try:
            while (item := self._loop.run(self._run.next())) is not None:
                yield item
        finally:
            self.close()

    def groups(self) -> Iterator[list[BatchItem]]:
        """The same, as complete groups: all samples of a row at once."""
        grouping = _Grouping(self._run)
        for item in self:
            if (group := grouping.add(item)) is not None:
                yield group

    def close(self) -> None:
        """Stop every session that is still running."""
        self._loop.run(self._run.close())


class AsyncBatchResult:
    """Iterate over it with `async for`; use `async with` as well if the loop may be left early."""

    def __init__(self, run: BatchRun, loop: PrivateLoop) -> None:
        self._run, self._loop = run, loop

    def __len__(self) -> int:
        return self._run.total

    async def __aiter__(self) -> AsyncIterator[BatchItem]:
        try:
            while (item := await self._loop.run_async(self._run.next())) is not None:
                yield item
        finally:
            await self.aclose()

    async def groups(self) -> AsyncIterator[list[BatchItem]]:
        """The same, as complete groups: all samples of a row at once."""
        grouping = _Grouping(self._run)
        async for item in self:
            if (group := grouping.add(item)) is not None:
                yield group

    async def aclose(self) -> None:
        """Stop every session that is still running."""
        await self._loop.run_async(self._run.close())

    async def __aenter__(self) -> AsyncBatchResult:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Grouping:
    def __init__(self, run: BatchRun) -> None:
        self._size = run._options.n
        self._open: dict[int, list[BatchItem]] = defaultdict(list)

    def add(self, item: BatchItem) -> list[BatchItem] | None:
        self._open[item.index].append(item)
        if len(self._open[item.index]) < self._size:
            return None
        return sorted(self._open.pop(item.index), key=lambda each: each.sample)


def input_id_of(payload: dict[str, Any], index: int) -> str:
    """A row's id: its own `input_id` if it has one, else its place and what is in it, so that a re-run finds it again.

    >>> input_id_of({"input_id": "q7"}, 0), input_id_of({"prompt": "hi"}, 3)
    ('q7', '000003-bbab304e')
    """
    try:
        given = payload.get("input_id") if isinstance(payload, dict) else None
        if isinstance(given, (str, int)) and not isinstance(given, bool):
            return str(given)
        content = json.dumps(payload, sort_keys=True, default=repr).encode()
    except (Exception, SystemExit):  # it can't be sent either, which is then said of this one row
        return f"{index:06d}"
    return f"{index:06d}-{hashlib.sha256(content).hexdigest()[:8]}"


def status_of(fault: RuntimeFault) -> Status:
    """What a refused invoke amounts to: the agent's own fault, or a session that was lost on the way."""
    own = fault.status in (400, 401, 403, 404) or fault.reason == "agent"
    return Status.AGENT_ERROR if own else Status.SESSION_LOST


def _item(
    sample: _Sample, document: dict[str, Any], session_id: str, attempt: int, elapsed: float, *, resumed: bool = False
) -> BatchItem:
    status = Result(document).status
    success = status is Status.COMPLETED
    return BatchItem(
        success=success,
        result=document,
        error=Result(document).failure,
        index=sample.index,
        elapsed=elapsed,
        input_id=sample.input_id,
        sample=sample.sample,
        session_id=session_id,
        status=status,
        attempts=attempt,
        resumed=resumed,
    )


def _input_of(key: str) -> str | None:
    with contextlib.suppress(AgentCoreRLError):
        return RolloutId.from_key(key).input_id
    return None


def _seconds(document: dict[str, Any]) -> float:
    return Result(document).seconds or 0.0
