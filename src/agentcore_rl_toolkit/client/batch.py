"""Batches: many rollouts with bounded concurrency, each with its own time limit, retries and outcome.

One bad rollout is one failed `BatchItem`, and no other item notices. Leaving the loop early, an exception, Ctrl-C and
`close()` all stop every session that still runs. `BatchRun` gives the client's loop its rows; `BatchResult` and
`AsyncBatchResult` hand its items out.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..agent.result import Result, read_result
from ..common.object_repr import object_repr
from ..common.private_loop import PrivateLoop
from ..errors import AgentCoreRLError, ConfigError, RuntimeFault, StoreError, StoreForbidden
from ..store import Store
from ..types import INFRASTRUCTURE, RolloutId, Status
from .attempt import Attempt, failure_of
from .in_flight import ClientCore
from .scheduler import JobGroup, Outage, RolloutLoop

_READ_AT_ONCE = 256
_Kept = defaultdict[str, list[tuple[str, dict[str, Any]]]]
"""Keys and documents by input."""
Progress = Callable[["BatchItem", int, int], object]
"""Called with each item, how many are done, and how many there are."""


@dataclass(frozen=True)
class BatchItem:
    """The outcome of one rollout of a batch."""

    success: bool
    """True only for a rollout that succeeded."""
    result: dict[str, Any] | None
    """The stored result, which a failed rollout has too; None if there is none."""
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
    max_concurrent_sessions: int = 25
    timeout: float | None = 900.0
    n: int = 1
    max_retries: int = 2
    hedge_after: float | None = None
    resume: bool = False
    rerun_failures: bool = False
    outage_seconds: float = 300.0
    progress: Progress | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_concurrent_sessions", 1), ("n", 1), ("max_retries", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("timeout", "hedge_after", "outage_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be more than 0 seconds, not {value}")


@dataclass(frozen=True)
class _Sample:
    index: int
    number: int
    input_id: str
    payload: dict[str, Any]

    def item(self, status: Status, attempts: int, elapsed: float, **fields: Any) -> BatchItem:
        return BatchItem(
            **{"success": status is Status.COMPLETED, "result": None, "error": None} | fields,
            index=self.index,
            elapsed=elapsed,
            input_id=self.input_id,
            sample=self.number,
            status=status,
            attempts=attempts,
        )

    def item_of(self, document: dict[str, Any], attempts: int, elapsed: float, **fields: Any) -> BatchItem:
        result = Result(document)
        return self.item(result.status, attempts, elapsed, result=document, error=result.failure, **fields)


class _Job:
    """One attempt at a sample."""

    def __init__(
        self, batch: BatchRun, sample: _Sample, number: int = 1, since: float | None = None, retries: int = 0
    ) -> None:
        self._batch, self.sample, self.number, self.since, self.retries = batch, sample, number, since, retries
        self.was_down = False
        """Whether the runtime could not be reached, or failed, before it accepted the rollout."""

    async def run(self) -> BatchItem:
        options, sample = self._batch.options, self.sample
        self.since = time.monotonic() if self.since is None else self.since
        attempt = Attempt(
            self._batch.core, sample.payload, sample.input_id, timeout=options.timeout, hedge_after=options.hedge_after
        )
        try:
            document, session_id = await attempt.run()
        except Exception as error:
            self.was_down = isinstance(error, RuntimeFault) and error.status >= 500 and attempt.session_id is None
            status, text = failure_of(error, sample.input_id)
            return sample.item(status, self.number, self._elapsed(), error=text, session_id=attempt.session_id)
        return sample.item_of(document, self.number, self._elapsed(), session_id=session_id)

    def _elapsed(self) -> float:
        return time.monotonic() - (self.since or 0.0)


class _Row(JobGroup[_Job, BatchItem]):
    """The samples of a row, each tried again until it has its own outcome or no retries are left."""

    def __init__(self, batch: BatchRun, samples: list[_Sample]) -> None:
        super().__init__(samples[0].input_id)
        self._batch = batch
        self.pending.extend(_Job(batch, sample) for sample in samples)

    def ended(self, job: _Job, outcome: BatchItem, *, counts: bool) -> None:
        again = job.was_down and not counts and self._batch.may_wait()  # else an outage would use up all retries
        if outcome.status in INFRASTRUCTURE and (again or job.retries < self._batch.options.max_retries):
            retries = job.retries + (not again)
            self.pending.append(_Job(self._batch, job.sample, job.number + 1, job.since, retries))
        else:
            self._batch.loop.hand_out(outcome)


class BatchRun:
    """A batch at work, on the client's loop."""

    def __init__(self, core: ClientCore, payloads: Iterable[dict[str, Any]], options: BatchOptions) -> None:
        self.core, self.options = core, options
        self._rows = list(payloads)
        self.total = len(self._rows) * options.n
        self._next_row = 0
        self._done = 0
        self._kept: _Kept = defaultdict(list)
        self._outage = Outage()
        self.loop = RolloutLoop[BatchItem, BatchItem](
            options.max_concurrent_sessions,
            self._open_row,
            prepare=self._prepare,
            outage=self._outage,
            patience=0.0,  # a row that fails alone is charged at once: a batch has no other use for its slot
        )

    def may_wait(self) -> bool:
        """Whether the outage, if there is one, has not used up its budget."""
        return self._outage.seconds(asyncio.get_running_loop().time()) < self.options.outage_seconds

    async def next(self) -> BatchItem | None:
        """The next item in order of completion; None after the last."""
        item = await self.loop.next()
        if item is not None:
            self._done += 1
            if self.options.progress is not None:
                self.options.progress(item, self._done, self.total)
        return item

    async def close(self) -> None:
        """Stop every session that is still running."""
        await self.loop.close()
        await self.core.stopped()

    def _open_row(self) -> _Row | None:
        """The next row that has samples to run; those that the store has are handed out."""
        while self._next_row < len(self._rows):
            index, row = self._next_row, self._rows[self._next_row]
            self._next_row += 1
            input_id = input_id_of(row, index)
            samples = [_Sample(index, number, input_id, row) for number in range(self.options.n)]
            if samples := [sample for sample in samples if not self._resume(sample)]:
                return _Row(self, samples)
        return None

    async def _prepare(self) -> None:
        await self.core.open()
        if self.options.resume:
            self._kept = await self._read_kept({input_id_of(row, index) for index, row in enumerate(self._rows)})

    def _resume(self, sample: _Sample) -> bool:
        """Hand out a result that the store has for this sample, if it has one."""
        if not self._kept.get(sample.input_id):
            return False
        key, document = self._kept[sample.input_id].pop(0)
        session_id = RolloutId.from_key(key).session_id
        self.loop.hand_out(
            sample.item_of(document, 0, Result(document).seconds or 0.0, session_id=session_id, resumed=True)
        )
        return True

    async def _read_kept(self, wanted: set[str]) -> _Kept:
        """The results that count, by input. One of a lost session or a failed engine doesn't: the agent had no say."""
        assert self.core.delivery is not None
        store, call = self.core.delivery.store, self.core.delivery.call
        try:
            keys = await call(lambda: [k for k in store.keys(f"{self.core.exp_id}/") if _input_of(k) in wanted])
        except StoreForbidden as error:
            raise StoreForbidden(str(error), hint="allow s3:ListBucket; resume lists the stored results") from error
        kept: _Kept = defaultdict(list)
        for start in range(0, len(keys), _READ_AT_ONCE):
            part = keys[start : start + _READ_AT_ONCE]
            for key, result in zip(
                part, await asyncio.gather(*(call(_readable, store, key) for key in part)), strict=True
            ):
                if result is not None and self._counts(result):
                    kept[_input_of(key) or ""].append((key, result.document))
        return kept

    def _counts(self, result: Result) -> bool:
        failed = result.status is not Status.COMPLETED
        return result.status not in INFRASTRUCTURE and not (failed and self.options.rerun_failures)


class BatchResult:
    """Iterate over it: items come in the order in which rollouts complete."""

    def __init__(self, run: BatchRun, loop: PrivateLoop) -> None:
        self._run, self._loop = run, loop

    def __len__(self) -> int:
        return self._run.total

    def __repr__(self) -> str:
        return object_repr(self, rollouts=len(self))

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

    def __repr__(self) -> str:
        return object_repr(self, rollouts=len(self))

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
        self._size = run.options.n
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


def _readable(store: Store, key: str) -> Result | None:
    with contextlib.suppress(StoreError):
        return read_result(store, key)
    return None


def _input_of(key: str) -> str | None:
    with contextlib.suppress(AgentCoreRLError):
        return RolloutId.from_key(key).input_id
    return None
