"""Running rollouts in groups: a gateway session and a runtime session for each, many at a time, judged as they end.

One bad rollout is data: what becomes of it is the judge's decision, and nothing it does reaches the others. Leaving the
loop early, an exception and Ctrl-C all stop every session that is still running.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..client import RolloutClient
from ..client.batch import input_id_of
from ..common.private_loop import PrivateLoop
from ..errors import RolloutsStopped
from ..gateway.gateway import Gateway
from ..types import Status
from .failure_causes import Causes
from .failure_table import Action
from .options import RolloutOptions
from .outage import DOWN, Outage
from .rollout import Group, Rollout
from .sample import Sample

logger = logging.getLogger(__name__)

_LONGEST_TRACEBACK = 8000
_SAY_SECONDS = 30.0
_PATIENCE = 1 / 30
"""The share of `outage_seconds` after which a row that fails alone is thought to fail by its own doing."""


def run_rollouts(
    rows: Iterable[dict[str, Any]],
    n: int = 8,
    *,
    client: RolloutClient,
    gateway: Gateway,
    groups: int | None = None,
    on_rollout: Callable[[Rollout], object] | None = None,
    **options: Any,
) -> Iterator[Group]:
    """Run `n` rollouts of each row and hand out complete groups as they finish.

    With `groups`, it ends once there are so many; `rows` may then be endless, and dropped groups are made up for by the
    rows after them. `options` are those of `RolloutOptions`. If every group was dropped and
    `keep_dropped` hands none of them out, it raises `RolloutsStopped`, which says why.
    """
    chosen = RolloutOptions(n=n, **options)
    runner = RolloutRunner(client, gateway, replace(chosen, keep_dropped=True), on_rollout=on_rollout)
    causes, kept = Causes(), 0
    try:
        for group in runner.run(rows, groups=groups):
            causes.add([group])
            kept += group.dropped is None
            if group.dropped is None or chosen.keep_dropped:
                yield group
    finally:
        runner.close()
    if causes.counts and not kept and not chosen.keep_dropped:
        raise RolloutsStopped(f"every group was dropped:\n{causes.text()}", hint=causes.hint)


class RolloutRunner:
    """Runs rollouts of one agent against one gateway, one step after the other."""

    def __init__(
        self,
        client: RolloutClient,
        gateway: Gateway,
        options: RolloutOptions | None = None,
        *,
        on_rollout: Callable[[Rollout], object] | None = None,
    ) -> None:
        """`on_rollout` is called with every rollout as it ends, whatever becomes of it."""
        self.client, self.gateway = client, gateway
        self.options = options or RolloutOptions()
        self.on_rollout = on_rollout
        self._loop = PrivateLoop("rollouts")
        self._failures = 0
        self._said_at = float("-inf")
        self.outage = Outage()

    def run(self, rows: Iterable[dict[str, Any]], *, groups: int | None = None, **changes: Any) -> Iterator[Group]:
        """Groups as they finish; `changes` to the options hold for this call."""
        running = self.run_async(rows, groups=groups, **changes)
        waiting: asyncio.Task[Any] | None = None

        async def following() -> Group | None:
            nonlocal waiting
            waiting = asyncio.current_task()
            return await anext(running, None)

        async def close() -> None:
            if waiting is not None:  # Ctrl-C has cancelled it, and it may still be cleaning up
                await asyncio.wait([waiting])
            await running.aclose()  # type: ignore[attr-defined]

        try:
            while (group := self._loop.run(following())) is not None:
                yield group
        finally:
            self._loop.run(close())

    async def run_async(
        self, rows: Iterable[dict[str, Any]], *, groups: int | None = None, **changes: Any
    ) -> AsyncIterator[Group]:
        """The same, for `async for`."""
        options = replace(self.options, **changes) if changes else self.options
        step = _Step(self, options)
        waiting = enumerate(rows)
        kept = tokens = 0
        full = False
        active: set[asyncio.Task[Group]] = set()
        finished: set[asyncio.Task[Group]] = set()
        try:
            while groups is None or kept < groups:
                room = step.width if groups is None else min(step.width, groups - kept)
                while not full and len(active) < room and (following := next(waiting, None)) is not None:
                    active.add(asyncio.ensure_future(step.group(*following)))
                if not active:
                    return
                finished, active = await asyncio.wait(active, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    group = options.judge.group(task.result(), options.n)
                    limit = options.max_batch_tokens
                    if group.dropped is None and limit is not None and tokens + group.tokens > limit:
                        full, group = True, replace(group, dropped="over the token budget")
                    if group.dropped is None:
                        kept, tokens = kept + 1, tokens + group.tokens
                    if group.dropped is None or options.keep_dropped:
                        yield group
        finally:
            for task in active:
                task.cancel()
            await asyncio.gather(*active, *finished, return_exceptions=True)

    def close(self) -> None:
        """End the thread that rollouts run on."""
        self._loop.close()

    def failures_reset(self) -> None:
        """Count failures in a row from here on."""
        self._failures = 0

    def ended(self, rollout: Rollout, options: RolloutOptions) -> None:
        """Take note of a rollout; too many failures in a row end the run, and so does too long an outage."""
        now = time.monotonic()
        self.outage.ended(rollout.session_id or "", rollout.input_id, rollout.status, now)
        if self.on_rollout is not None:
            self.on_rollout(rollout)
        if rollout.action is Action.STOP:
            raise RolloutsStopped(f"the failure table stops the run at {rollout.status.value}: {rollout.error}")
        if rollout.trained:
            self._failures = 0
        elif rollout.status in DOWN:
            self._check_outage(rollout, options, now)
        elif rollout.status not in (Status.CANCELLED, Status.TRUNCATED):  # a poor policy is cut off often
            self._failures += 1
        if self._failures >= options.max_failures:
            raise RolloutsStopped(
                f"{self._failures} rollouts in a row could not be trained on; the last one: "
                f"{rollout.why}: {rollout.error or 'no error'}" + _traceback(rollout),
                hint="run one by hand: agentcore-rl rollout AGENT --data FILE --limit 1",
            )

    def _check_outage(self, rollout: Rollout, options: RolloutOptions, now: float) -> None:
        """Say that the infrastructure is down, and end the run if it has been for too long."""
        seconds, text = self.outage.seconds(now), f"{rollout.status.value}: {rollout.error or 'no error'}"
        if seconds >= options.outage_seconds:
            raise RolloutsStopped(
                f"for {seconds:.0f} s, every rollout has lost its session or its engine; the last one: {text}",
                hint="see whether the runtime and the engine are up; outage_seconds says how long to wait for them",
            )
        if now - self._said_at >= _SAY_SECONDS:
            self._said_at = now
            logger.warning("a rollout has lost its session or its engine, and is run again: %s", text)


class _Step:
    """The groups of one call."""

    def __init__(self, runner: RolloutRunner, options: RolloutOptions) -> None:
        self._runner, self._options = runner, options
        self._slots = asyncio.Semaphore(options.max_concurrent_sessions)
        self._size = options.n + options.oversample
        self.width = -(-options.max_concurrent_sessions // self._size) + 1
        """How many groups are worked on at a time."""

    async def group(self, index: int, payload: dict[str, Any]) -> Group:
        """Sample a row until there are enough, or no more to be had."""
        n = self._options.n
        row = _Row(payload, input_id_of(payload, index))
        trained: list[Rollout] = []
        masked: list[Rollout] = []
        others: list[Rollout] = []
        running: dict[asyncio.Task[Rollout | None], Sample] = {}
        for _ in range(self._size):
            self._start(row, running)
        try:
            while running and len(trained) < n:
                finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(finished, key=lambda task: running[task].number):
                    del running[task]
                    ended = task.result()
                    if ended is None:
                        continue
                    rollout = self._options.judge.rollout(ended)
                    self._runner.ended(rollout, self._options)
                    if rollout.action is Action.REFILL:
                        others.append(rollout)
                        self._start(row, running, after=rollout)
                    else:
                        (trained if rollout.trained else masked).append(rollout)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        for sample in running.values():
            others.append(sample.given_up())
            self._runner.ended(others[-1], self._options)
        places = [*trained, *masked]
        chosen = sorted(places[:n], key=lambda rollout: rollout.sample)
        return Group(index, row.input_id, payload, tuple(chosen), (*places[n:], *others))

    def _start(
        self, row: _Row, running: dict[asyncio.Task[Rollout | None], Sample], after: Rollout | None = None
    ) -> None:
        """Start another sample, `after` one that it takes the place of."""
        runner = self._runner
        sample = Sample(runner.client, runner.gateway, self._options, row.payload, row.input_id, row.started)
        row.started += 1
        running[asyncio.ensure_future(self._run(sample, row, after))] = sample

    async def _run(self, sample: Sample, row: _Row, after: Rollout | None) -> Rollout | None:
        """Run a sample when there is a slot for it, and later while the infrastructure is down; None if no refill is
        left for it."""
        outage = self._runner.outage
        number = outage.number
        async with self._slots:
            await asyncio.sleep(outage.wait(time.monotonic()))
            if after is not None and self._counts(after, row, number):
                if row.refills >= self._options.max_refills:
                    return None
                row.refills += 1
            outage.started(sample.id, time.monotonic())
            try:
                return await sample.run()
            except BaseException:
                outage.left(sample.id)
                raise

    def _counts(self, failed: Rollout, row: _Row, number: int) -> bool:
        """Whether a rollout is one of those that a row may have in vain; it failed in the outage of that `number`."""
        outage, patience = self._runner.outage, self._options.outage_seconds * _PATIENCE
        if failed.status not in DOWN:
            return True
        if outage.number == number:
            return outage.is_of_the_row(row.input_id, time.monotonic(), patience=patience)
        first, row.outage = row.outage != number, number
        return first


@dataclass
class _Row:
    """What has been done for one row."""

    payload: dict[str, Any]
    input_id: str
    started: int = 0
    """How many samples of it."""
    refills: int = 0
    outage: int | None = None
    """The number of the latest outage that cost it a refill."""


def _traceback(rollout: Rollout) -> str:
    found = (rollout.result or {}).get("traceback")
    return f"\n{found[-_LONGEST_TRACEBACK:]}" if isinstance(found, str) else ""
