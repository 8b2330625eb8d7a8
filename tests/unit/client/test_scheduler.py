"""The loop that runs many rollouts, on a clock that takes no time; and outages of the infrastructure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from agentcore_rl_toolkit.client.scheduler import JobGroup, Outage, RolloutLoop
from agentcore_rl_toolkit.errors import RolloutCancelled
from agentcore_rl_toolkit.types import Status
from support.virtual_time import run_virtual, virtual_clock

DOWN = (Status.SESSION_LOST, Status.ENGINE_ERROR)
WORKED = (Status.COMPLETED, Status.AGENT_ERROR, Status.REWARD_ERROR, Status.TRUNCATED)


@dataclass
class Log:
    """What started when, and how many seconds of slots were in use."""

    started: list[tuple[str, float]] = field(default_factory=list)
    running: int = 0
    used: float = 0.0
    since: float = 0.0

    def use(self, change: int) -> None:
        now = virtual_clock()
        self.used, self.since = self.used + self.running * (now - self.since), now
        self.running += change


@dataclass(eq=False)
class SleepingJob:
    """Runs for so many seconds and has the given status then."""

    name: str
    seconds: float
    status: Status
    log: Log

    async def run(self) -> SleepingJob:
        self.log.started.append((self.name, round(virtual_clock(), 3)))
        self.log.use(+1)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.log.use(-1)
        return self


class SleepingGroup(JobGroup[SleepingJob, SleepingJob]):
    """Needs `n` completed jobs; refills failures of the infrastructure."""

    def __init__(self, name: str, jobs: list[tuple[float, Status]], n: int, log: Log, refills: int = 0) -> None:
        super().__init__(name)
        self.n, self.log, self.refills = n, log, refills
        self.completed = 0
        self.given_up: list[str] = []
        self.hand_out: Callable[[SleepingGroup], None] = lambda group: None
        for number, (seconds, status) in enumerate(jobs):
            self.pending.append(SleepingJob(f"{name}.{number}", seconds, status, log))

    @property
    def is_complete(self) -> bool:
        return self.completed >= self.n

    def ended(self, job: SleepingJob, outcome: SleepingJob, *, counts: bool) -> None:
        self.completed += outcome.status is Status.COMPLETED
        if outcome.status in DOWN and self.refills:
            self.refills -= 1
            self.pending.append(SleepingJob(f"{job.name}'", job.seconds, Status.COMPLETED, self.log))

    def cancelled(self, job: SleepingJob) -> None:
        self.given_up.append(job.name)

    def finished(self) -> None:
        self.hand_out(self)


def run_groups(slots: int, groups: Iterator[SleepingGroup]) -> list[SleepingGroup]:
    """The groups in the order in which they finish."""

    async def use() -> list[SleepingGroup]:
        def open_group() -> SleepingGroup | None:
            group = next(groups, None)
            if group is not None:
                group.hand_out = loop.hand_out
            return group

        loop = RolloutLoop[SleepingJob, SleepingGroup](slots, open_group, outage=Outage(dice=lambda: 1.0))
        found = []
        while (group := await loop.next()) is not None:
            found.append(group)
        return found

    return run_virtual(use())[0]


def done(*seconds: float) -> list[tuple[float, Status]]:
    return [(each, Status.COMPLETED) for each in seconds]


# Slots


def test_a_free_slot_takes_the_next_rollout_of_the_first_group_that_has_one() -> None:
    log = Log()
    groups = [SleepingGroup("a", done(1, 5), 2, log), SleepingGroup("b", done(3, 3), 2, log)]
    finished = run_groups(3, iter(groups))
    assert log.started == [("a.0", 0.0), ("a.1", 0.0), ("b.0", 0.0), ("b.1", 1.0)]
    assert [group.input_id for group in finished] == ["b", "a"]


def test_a_group_is_opened_only_when_no_other_has_a_rollout_to_start() -> None:
    log, opened = Log(), []

    def groups() -> Iterator[SleepingGroup]:
        for name in "abc":
            opened.append((name, virtual_clock()))
            yield SleepingGroup(name, done(1, 1, 1, 1), 4, log)

    run_groups(2, groups())
    assert [(name, round(at)) for name, at in opened] == [("a", 0), ("b", 2), ("c", 4)]


def test_a_refill_goes_before_the_rollouts_of_later_groups() -> None:
    log = Log()
    lost = [(1.0, Status.SESSION_LOST), (9.0, Status.COMPLETED)]
    groups = [SleepingGroup("a", lost, 2, log, refills=1), SleepingGroup("b", done(2, 2), 2, log)]
    finished = run_groups(2, iter(groups))
    assert [name for name, _ in log.started] == ["a.0", "a.1", "a.0'", "b.0", "b.1"]
    assert log.started[2][1] == 1.5  # it waits a little: the infrastructure may be down
    assert [group.input_id for group in finished] == ["b", "a"]


def test_a_complete_group_cancels_what_still_runs_and_starts_nothing_more() -> None:
    log = Log()
    groups = [SleepingGroup("a", done(50, 1, 2, 60, 70), 2, log), SleepingGroup("b", done(3), 1, log)]
    finished = run_groups(3, iter(groups))
    assert [(group.input_id, sorted(group.given_up)) for group in finished] == [("a", ["a.0", "a.3"]), ("b", [])]
    assert [name for name, _ in log.started] == ["a.0", "a.1", "a.2", "a.3", "b.0"]


def exponential(dice: random.Random) -> float:
    return dice.expovariate(0.5)


def log_normal(dice: random.Random) -> float:
    """Tools that take 2 s on average, and more than 20 s one time in a hundred."""
    return dice.lognormvariate(-0.328, 1.429)


@pytest.mark.parametrize("lengths", [exponential, log_normal])
@pytest.mark.parametrize(("slots", "groups", "size"), [(32, 256, 8), (128, 256, 8), (1024, 256, 8), (30, 60, 4)])
def test_slots_stay_in_use_however_long_the_slowest_rollout_of_a_group_takes(
    slots: int, groups: int, size: int, lengths: Callable[[random.Random], float]
) -> None:
    log, dice, share = Log(), random.Random(0), 0.0
    jobs = [[lengths(dice) for _ in range(size)] for _ in range(groups)]

    def opened() -> Iterator[SleepingGroup]:
        nonlocal share
        for number, seconds in enumerate(jobs):
            log.use(0)
            share = log.used / (slots * log.since) if log.since > 1e-3 else 1.0
            yield SleepingGroup(str(number), done(*seconds), size, log)

    assert len(run_groups(slots, opened())) == groups
    flat = [seconds for group in jobs for seconds in group]
    assert share >= 0.95
    assert log.since <= sum(flat) / slots + max(flat)  # as no order can promise less without knowing lengths
    if len(flat) > 60 * slots:
        assert log.since <= 1.15 * max(sum(flat) / slots, *flat)


def test_the_same_groups_run_in_the_same_order() -> None:
    def order() -> list[tuple[str, float]]:
        log, dice = Log(), random.Random(1)
        statuses = [Status.COMPLETED, Status.COMPLETED, Status.SESSION_LOST, Status.AGENT_ERROR]
        jobs = [[(dice.expovariate(1), dice.choice(statuses)) for _ in range(4)] for _ in range(20)]
        run_groups(6, (SleepingGroup(str(number), some, 3, log, refills=2) for number, some in enumerate(jobs)))
        return log.started

    assert order() == order()


# Results


def test_nothing_starts_while_too_many_results_wait() -> None:
    async def use() -> list[int]:
        log, counts = Log(), []

        def open_group() -> SleepingGroup:
            group = SleepingGroup("endless", done(1), 1, log)
            group.hand_out = loop.hand_out
            return group

        loop = RolloutLoop[SleepingJob, SleepingGroup](1, open_group, ahead=3)
        for _ in range(3):
            await loop.next()
            await asyncio.sleep(100)
            counts.append(len(log.started))
        await loop.close()
        return counts

    assert run_virtual(use())[0] == [5, 6, 7]  # those taken, three that wait, and one that found no room


def test_an_exception_cancels_what_runs_and_reaches_the_caller() -> None:
    class Failing(SleepingGroup):
        def ended(self, job: SleepingJob, outcome: SleepingJob, *, counts: bool) -> None:
            raise ZeroDivisionError("judged")

    log = Log()
    with pytest.raises(ZeroDivisionError, match="judged"):
        run_groups(3, iter([Failing("a", done(1, 50, 60), 3, log)]))
    assert log.running == 0


def test_closing_cancels_what_runs_and_ends_a_wait() -> None:
    async def use() -> None:
        log = Log()
        groups = iter([SleepingGroup("a", done(1000, 1000), 2, log)])
        loop = RolloutLoop[SleepingJob, SleepingGroup](2, lambda: next(groups, None))
        waiting = asyncio.ensure_future(loop.next())
        await asyncio.sleep(1)
        await loop.close()
        assert (await waiting, await loop.next(), log.running) == (None, None, 0)

    assert run_virtual(use())[1] < 2


def test_a_rollout_that_is_cancelled_from_outside_ends_the_loop() -> None:
    class Cancelled(SleepingJob):
        async def run(self) -> SleepingJob:
            raise asyncio.CancelledError

    group = SleepingGroup("a", [], 1, Log())
    group.pending.append(Cancelled("a.0", 0, Status.COMPLETED, group.log))
    with pytest.raises(RolloutCancelled, match="a rollout of a was cancelled from outside"):
        run_groups(1, iter([group]))


def test_preparing_comes_first_and_its_failure_is_the_callers() -> None:
    async def fail() -> None:
        raise KeyError("no store")

    async def use() -> None:
        loop = RolloutLoop[SleepingJob, SleepingGroup](1, lambda: pytest.fail("too early"), prepare=fail)
        with pytest.raises(KeyError, match="no store"):
            await loop.next()
        assert await loop.next() is None

    run_virtual(use())


def test_a_lasting_loop_looks_again_when_it_is_woken_and_counts_how_long_slots_are_in_use() -> None:
    async def use() -> None:
        log = Log()
        groups = [SleepingGroup("a", done(2, 3), 2, log)]
        loop = RolloutLoop[SleepingJob, str](4, lambda: groups.pop() if groups else None, stays_open=True)
        waiting = asyncio.ensure_future(loop.next())
        await asyncio.sleep(10)
        assert (len(log.started), round(loop.usage()[1], 3)) == (2, 5.0)
        groups.append(SleepingGroup("b", done(4), 1, log))
        await asyncio.sleep(10)
        assert len(log.started) == 2
        loop.wake()
        await asyncio.sleep(1)
        assert (log.started[2:], round(loop.usage()[1], 3)) == ([("b.0", 20.0)], 6.0)
        await loop.close()
        assert (await waiting, log.running) == (None, 0)

    run_virtual(use())


# Outages


def run(outage: Outage, name: str, row: str, status: Status, began: float, ended: float) -> bool:
    outage.started(name, began)
    return outage.ended(name, row, status, ended)


@pytest.mark.parametrize("status", DOWN)
def test_an_outage_lasts_from_the_first_failure(status: Status) -> None:
    outage = Outage()
    assert (outage.seconds(100.0), outage.wait(100.0)) == (0.0, 0.0)
    run(outage, "a", "row-1", status, 0.0, 10.0)
    run(outage, "b", "row-2", status, 0.0, 50.0)
    assert outage.seconds(60.0) == 50.0


@pytest.mark.parametrize("status", WORKED)
def test_it_ends_with_whatever_reached_its_end(status: Status) -> None:
    outage = Outage()
    run(outage, "a", "row-1", Status.SESSION_LOST, 0.0, 10.0)
    run(outage, "b", "row-2", status, 0.0, 20.0)
    assert (outage.seconds(30.0), outage.wait(30.0)) == (0.0, 0.0)
    run(outage, "c", "row-1", Status.SESSION_LOST, 20.0, 40.0)
    assert outage.seconds(41.0) == 1.0


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.CANCELLED])
def test_what_ran_out_of_time_says_nothing(status: Status) -> None:
    outage = Outage()
    run(outage, "a", "row-1", status, 0.0, 10.0)
    assert outage.seconds(20.0) == 0.0
    run(outage, "b", "row-1", Status.ENGINE_ERROR, 0.0, 30.0)
    run(outage, "c", "row-1", status, 30.0, 35.0)
    assert outage.seconds(40.0) == 10.0


def test_waits_grow_with_the_outage_and_are_spread() -> None:
    low, high = Outage(dice=lambda: 0.0), Outage(dice=lambda: 1.0)
    for outage in (low, high):
        run(outage, "a", "row-1", Status.ENGINE_ERROR, 0.0, 0.0)
    times = (0.0, 1.0, 8.0, 60.0, 120.0, 1000.0)
    assert [high.wait(now) for now in times] == [0.5, 0.5, 2.0, 15.0, 30.0, 30.0]
    assert [low.wait(now) for now in times] == [0.25, 0.25, 1.0, 7.5, 15.0, 15.0]


def test_five_minutes_take_few_tries() -> None:
    outage, now, tries = Outage(dice=lambda: 0.5), 0.0, 0
    run(outage, "a", "row-1", Status.ENGINE_ERROR, 0.0, 0.0)
    while outage.seconds(now) < 300:
        now += outage.wait(now)
        tries += 1
    assert 15 <= tries <= 40


def test_a_rollout_that_lasts_much_longer_than_the_failed_ones_is_no_outage() -> None:
    outage = Outage()
    outage.started("long", 0.0)
    run(outage, "a", "row-1", Status.SESSION_LOST, 0.0, 10.0)
    assert outage.seconds(20.0) == 10.0  # it may fail yet
    assert outage.seconds(22.0) == 0.0
    outage.cancelled("long")
    assert outage.seconds(22.0) == 12.0


def test_failures_that_take_long_are_an_outage_all_the_same() -> None:
    """Nobody answers, and every rollout needs two minutes to find out."""
    outage = Outage()
    for number in range(32):
        outage.started(str(number), number * 4.0)
    for number in range(32):
        outage.ended(str(number), f"row-{number}", Status.SESSION_LOST, 120 + number * 4.0)
        outage.started(f"again {number}", 130 + number * 4.0)
    assert outage.seconds(120 + 200.0) == 200.0


def test_an_outage_costs_each_row_one_failure() -> None:
    outage = Outage()
    for _ in range(2):
        rows = ["row-1", "row-2", "row-1", "row-2", "row-1"]
        assert [run(outage, "a", row, Status.SESSION_LOST, 0.0, 10.0) for row in rows] == [True, True, *[False] * 3]
        assert not run(outage, "a", "row-1", Status.ENGINE_ERROR, 10.0, 300.0)
        assert run(outage, "b", "row-2", Status.COMPLETED, 0.0, 301.0)
    assert run(outage, "c", "row-1", Status.CANCELLED, 0.0, 310.0)


def test_of_failures_at_once_only_the_first_is_the_rows() -> None:
    """The failures of one row may all be noticed before those of another."""
    outage = Outage()
    assert [run(outage, "a", "row-1", Status.SESSION_LOST, 0.0, 10.0) for _ in range(3)] == [True, False, False]


def test_a_row_that_fails_alone_for_long_does_so_by_its_own_doing() -> None:
    outage = Outage()
    run(outage, "a", "row-1", Status.SESSION_LOST, 0.0, 10.0)
    assert not run(outage, "b", "row-1", Status.SESSION_LOST, 10.0, 19.0)
    assert run(outage, "c", "row-1", Status.SESSION_LOST, 19.0, 20.0)
    run(outage, "d", "row-2", Status.SESSION_LOST, 20.0, 21.0)
    assert not run(outage, "e", "row-1", Status.SESSION_LOST, 21.0, 22.0)


def test_rows_that_fail_while_others_work_do_so_by_their_own_doing() -> None:
    outage = Outage()
    outage.started("long", 0.0)
    for row in ("row-1", "row-2"):
        run(outage, row, row, Status.SESSION_LOST, 9.0, 10.0)
    assert not run(outage, "a", "row-1", Status.SESSION_LOST, 18.5, 19.0)
    assert run(outage, "b", "row-1", Status.SESSION_LOST, 19.5, 20.0)
