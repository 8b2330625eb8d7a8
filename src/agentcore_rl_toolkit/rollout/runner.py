"""Running rollouts in groups: a gateway session and a runtime session for each, many at a time, judged as they end.

The client's `RolloutLoop` runs them; this module opens groups, refills them and decides when a run has to stop. One
bad rollout is data: the judge decides what becomes of it, and no other rollout notices. Leaving the loop early, an
exception and Ctrl-C all stop every session that still runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

from ..client import RolloutClient
from ..client.batch import input_id_of
from ..client.scheduler import DOWN, JobGroup, Outage, RolloutLoop
from ..client.session_limit import SessionLimit, follow_load
from ..common.object_repr import object_repr
from ..common.private_loop import PrivateLoop
from ..common.seeds import mix_seed
from ..errors import RolloutsStopped
from ..gateway.base import RolloutGateway
from ..types import Status
from .failure_causes import Causes
from .options import RolloutOptions
from .rollout import Action, Group, Rollout
from .sample import Sample
from .signal.scorer import Scorer

logger = logging.getLogger(__name__)

_LONGEST_TRACEBACK = 8000
_WARN_SECONDS = 30.0
_PATIENCE = 1 / 30
"""The share of `outage_seconds` after which a row that fails alone is charged for each failure."""

OnRollout = Callable[[Rollout], object]


def run_rollouts(
    rows: Iterable[dict[str, Any]],
    n: int = 8,
    *,
    client: RolloutClient,
    gateway: RolloutGateway,
    groups: int | None = None,
    on_rollout: OnRollout | None = None,
    **options: Any,
) -> Iterator[Group]:
    """Run `n` rollouts of each row and yield complete groups as they finish.

    With `groups`, it ends after that many; `rows` may then be endless, and further rows replace dropped groups.
    `options` are those of `RolloutOptions`. If every group was dropped and `keep_dropped` yields none of them, it
    raises `RolloutsStopped` with the causes.
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
        gateway: RolloutGateway,
        options: RolloutOptions | None = None,
        *,
        on_rollout: OnRollout | None = None,
    ) -> None:
        """`on_rollout` is called with every rollout as it ends, whatever becomes of it."""
        self.client, self.gateway = client, gateway
        self.options = options or RolloutOptions()
        self._on_rollout = on_rollout
        self.loop = PrivateLoop("rollouts")
        """Runs the rollouts of `run`."""
        self._failures = 0
        self._warned_at = float("-inf")
        self.outage = Outage()
        self.limit = SessionLimit(self.options.max_concurrent_sessions)
        """How many sessions run at the same time, in all loops of this runner."""

    def __repr__(self) -> str:
        return object_repr(self, self.client, self.gateway, n=self.options.n)

    def run(
        self,
        rows: Iterable[dict[str, Any]],
        *,
        groups: int | None = None,
        on_rollout: OnRollout | None = None,
        **changes: Any,
    ) -> Iterator[Group]:
        """Yield groups as they finish; `on_rollout` and `changes` to the options hold for this call."""
        running = self._open_loop(Step(self, rows, groups, on_rollout, replace(self.options, **changes)))
        try:
            while (group := self.loop.run(running.next())) is not None:
                yield group
        finally:
            self.loop.run(running.close())

    async def run_async(
        self,
        rows: Iterable[dict[str, Any]],
        *,
        groups: int | None = None,
        on_rollout: OnRollout | None = None,
        **changes: Any,
    ) -> AsyncIterator[Group]:
        """The same, for `async for`."""
        running = self._open_loop(Step(self, rows, groups, on_rollout, replace(self.options, **changes)))
        try:
            while (group := await running.next()) is not None:
                yield group
        finally:
            await running.close()

    @property
    def used(self) -> dict[str, Any]:
        """What its client has used so far, and the judge that scores its rollouts: the `used` of a summary."""
        judge = None if self.options.score is None else self.options.score.usage
        return self.client.usage.to_dict() | ({} if judge is None else {"judge": asdict(judge)})

    def close(self) -> None:
        """End the thread that rollouts run on."""
        self.loop.close()

    def failures_reset(self) -> None:
        """Restart the count of failures in a row."""
        self._failures = 0

    def report(self, rollout: Rollout, on_rollout: OnRollout | None) -> None:
        """Hand a rollout to those who want to see each."""
        for call in (self._on_rollout, on_rollout):
            if call is not None:
                call(rollout)

    def ended(self, rollout: Rollout, options: RolloutOptions, on_rollout: OnRollout | None) -> None:
        """Report and count a rollout."""
        self.report(rollout, on_rollout)
        self.count(rollout, options)

    def count(self, rollout: Rollout, options: RolloutOptions) -> None:
        """Count a rollout's end; too many failures in a row end the run, and so does too long an outage."""
        if rollout.action is Action.STOP:
            raise RolloutsStopped(f"the failure table stops the run at {rollout.status.value}: {rollout.error}")
        if rollout.trained:
            self._failures = 0
        elif rollout.status in DOWN:
            self._check_outage(rollout, options)
        elif rollout.status not in (Status.CANCELLED, Status.TRUNCATED):  # a poor policy is often truncated
            self._failures += 1
        if self._failures >= options.max_failures:
            raise RolloutsStopped(
                f"{self._failures} rollouts in a row could not be trained on; the last one: "
                f"{rollout.why}: {rollout.error or 'no error'}" + _traceback(rollout),
                hint="run one by hand: agentcore-rl rollout AGENT --data FILE --model MODEL --limit 1",
            )

    def _open_loop(self, step: Step) -> RolloutLoop[Rollout, Group]:
        """The loop of one call, which ends with its step."""
        size = step.options.n + step.options.oversample
        loop = self.make_loop(step.open_group, patience=step.patience, ahead=-(-self.limit.most // size) + 1)
        step.hand_out = loop.hand_out
        return loop

    def make_loop(
        self, open_group: Callable[[], JobGroup[Any, Rollout] | None], **how: Any
    ) -> RolloutLoop[Rollout, Group]:
        """A loop with this runner's slots, which follow the engines' load if they are to."""

        async def follow() -> None:
            await follow_load(self.limit, self.gateway.engine_loads_async, self._count_sessions, loop.wake)

        loop = RolloutLoop[Rollout, Group](
            lambda: self.limit.most, open_group, outage=self.outage, beside=follow, **how
        )
        return loop

    def _count_sessions(self) -> tuple[int, int]:
        running = self.client.running
        return running, self.client.usage.sessions - running

    def _check_outage(self, rollout: Rollout, options: RolloutOptions) -> None:
        """Warn that the infrastructure is down; end the run if it has been for too long."""
        seconds, text = self.outage.seconds(_now()), f"{rollout.status.value}: {rollout.error or 'no error'}"
        if seconds >= options.outage_seconds:
            raise RolloutsStopped(
                f"for {seconds:.0f} s, every rollout has lost its session or its engine; the last one: {text}",
                hint="check that the runtime and the engine are up; an agent that ends its own process, or calls an "
                "address that it can't reach, fails in the same way",
            )
        if time.monotonic() - self._warned_at >= _WARN_SECONDS:
            self._warned_at = time.monotonic()
            logger.warning("a rollout lost its session or its engine and runs again: %s", text)


class Step:
    """The rows of one call of `run`, or of one step: which of them become groups, and which groups are kept."""

    def __init__(
        self,
        runner: RolloutRunner,
        rows: Iterable[dict[str, Any]],
        groups: int | None,
        on_rollout: OnRollout | None,
        options: RolloutOptions,
    ) -> None:
        self.runner, self.on_rollout, self.options = runner, on_rollout, options
        self.hand_out: Callable[[Group], object] = lambda group: None
        """Called with each group that is kept, on the loop's thread."""
        self.over: Callable[[], object] = lambda: None
        """Called when no group is open and none will be."""
        self.patience = options.outage_seconds * _PATIENCE
        self._rows, self._wanted = enumerate(rows), groups
        self._following: tuple[int, dict[str, Any]] | None = None
        self._open = self._kept = self._tokens = 0
        self._is_full = False

    @property
    def is_over(self) -> bool:
        """Whether no group is open and none will be."""
        return not self._open and not self._has_row()

    def open_group(self) -> _OpenGroup | None:
        """The group of the next row; None while no other may start."""
        if not self._has_row():
            return None
        (index, payload), self._following = self._following or (0, {}), None
        self._open += 1
        return _OpenGroup(self, index, payload)

    def finished(self, group: Group) -> None:
        """Judge a finished group, and hand it out if it is kept."""
        self._open -= 1
        group = self.options.judge.group(group, self.options.n)
        limit = self.options.max_batch_tokens
        if group.dropped is None and limit is not None and self._tokens + group.tokens > limit:
            self._is_full, group = True, replace(group, dropped="over the token budget")
        if group.dropped is None:
            self._kept, self._tokens = self._kept + 1, self._tokens + group.tokens
        if group.dropped is None or self.options.keep_dropped:
            self.hand_out(group)
        if self.is_over:
            self.over()

    def _has_row(self) -> bool:
        if self._is_full or (self._wanted is not None and self._open + self._kept >= self._wanted):
            return False
        if self._following is None:
            self._following = next(self._rows, None)
        return self._following is not None


class _OpenGroup(JobGroup[Sample, Rollout]):
    """The samples of one row, until enough can be trained on or no refills are left."""

    def __init__(self, step: Step, index: int, payload: dict[str, Any]) -> None:
        super().__init__(input_id_of(payload, index))
        self._step, self._options = step, step.options
        self._index, self._payload = index, payload
        self._trained: list[Rollout] = []
        self._masked: list[Rollout] = []
        self._others: list[Rollout] = []
        scored_later = self._options.scorer is not None
        self._judge = replace(self._options.judge, needs_reward=False) if scored_later else self._options.judge
        self._added = self._refills = 0
        for _ in range(self._options.n + self._options.oversample):
            self._add_sample()

    @property
    def is_complete(self) -> bool:
        return len(self._trained) >= self._options.n

    def ended(self, job: Sample, outcome: Rollout, *, counts: bool) -> None:
        rollout = replace(self._judge.rollout(outcome), group=self._index)
        if rollout.trained and self._options.scorer is not None:
            self._trained.append(rollout)  # it has ended when it has its reward
            return
        self._step.runner.ended(rollout, self._options, self._step.on_rollout)
        if rollout.action is Action.REFILL:
            self._others.append(rollout)
            self._refill(counts)
        else:
            (self._trained if rollout.trained else self._masked).append(rollout)

    def cancelled(self, job: Sample) -> None:
        self._others.append(replace(job.given_up(), group=self._index))
        self._step.runner.ended(self._others[-1], self._options, self._step.on_rollout)

    def finished(self) -> Awaitable[None] | None:
        n, places = self._options.n, [*self._trained, *self._masked]
        chosen = sorted(places[:n], key=lambda rollout: rollout.sample)
        others = (*places[n:], *self._others)
        group = Group(self._index, self.input_id, self._payload, tuple(chosen), others)
        if self._options.scorer is not None:
            return self._score(group, self._options.scorer)
        self._step.finished(group)
        return None

    async def _score(self, group: Group, scorer: Scorer) -> None:
        """Score the group; its rollouts have ended then. Those of a group that is given up have no new reward."""
        try:
            group = await scorer.score_group(group, self._options.judge)
        finally:
            new = {rollout.session_id: rollout for rollout in group.rollouts}
            for rollout in self._trained:
                self._step.runner.report(new.get(rollout.session_id, rollout), self._step.on_rollout)
        for rollout in self._trained:
            self._step.runner.count(new.get(rollout.session_id, rollout), self._options)
        self._step.finished(group)

    def _refill(self, counts: bool) -> None:
        if counts and self._refills >= self._options.max_refills:
            return
        self._refills += counts
        self._add_sample()

    def _add_sample(self) -> None:
        runner, seed = self._step.runner, self._options.seed
        self.pending.append(
            Sample(
                runner.client,
                runner.gateway,
                self._options,
                self._payload,
                self.input_id,
                self._added,
                None if seed is None else mix_seed(seed, self._index, self._added),
            )
        )
        self._added += 1


def _now() -> float:
    return asyncio.get_running_loop().time()


def _traceback(rollout: Rollout) -> str:
    found = (rollout.result or {}).get("traceback")
    return f"\n{found[-_LONGEST_TRACEBACK:]}" if isinstance(found, str) else ""
