"""Calls to runtimes that are slow, full, throttling or broken, on a clock that takes no time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from agentcore_rl_toolkit.client.runtimes.pacing import FIRST_WAIT, Pacer
from agentcore_rl_toolkit.client.runtimes.runtime_calls import CATCH_UP, RequestQueue, RuntimeCalls
from agentcore_rl_toolkit.errors import ConfigError, RuntimeFault
from agentcore_rl_toolkit.runtime import CommandEvent, Invocation
from support.virtual_time import run_virtual, stall, virtual_clock

LATENCY = 0.05


async def one(data: Any) -> AsyncIterator[Any]:
    yield data


class SmallRuntime:
    """Holds so many sessions, takes so many requests per second, and refuses some more at random."""

    arn = "arn:of:a:small:one"

    def __init__(self, holds: int = 1000, quota: float | None = None, share: float = 0.0) -> None:
        self.holds, self.quota, self.share = holds, quota, share
        self.dice = random.Random(1)
        self.sessions: set[str] = set()
        self.counts = {"invoke": 0, "stop": 0, "full": 0, "throttled": 0}
        self._tokens, self._at = quota or 0.0, 0.0

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Invocation:
        await self._request("invoke")
        if session_id not in self.sessions and len(self.sessions) >= self.holds:
            self.counts["full"] += 1
            raise RuntimeFault("all in use", code="ThrottlingException", reason="full", retry_after=1)
        self.sessions.add(session_id)
        return Invocation(session_id, 200, content_type, one(b"taken"))

    async def stop(self, session_id: str) -> None:
        await self._request("stop")
        self.sessions.remove(session_id)

    async def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        yield CommandEvent(exit_code=0, status="COMPLETED")

    async def aclose(self) -> None:
        pass

    async def _request(self, kind: str) -> None:
        await asyncio.sleep(LATENCY)
        self.counts[kind] += 1
        if self.quota is not None:
            now = virtual_clock()
            self._tokens = min(self.quota, self._tokens + (now - self._at) * self.quota)
            self._at = now
            if self._tokens < 1:
                self._throttle()
            self._tokens -= 1
        if self.dice.random() < self.share:
            self._throttle()

    def _throttle(self) -> None:
        self.counts["throttled"] += 1
        raise RuntimeFault("slow down", code="ThrottlingException")


async def rollouts(
    runtime: Any, count: int, seconds: float, rate: float | None = None, at_once: int | None = None
) -> None:
    """Invoke, work for so many seconds, stop."""
    calls = RuntimeCalls(runtime, Pacer(rate), attempts=5)
    places = asyncio.Semaphore(at_once or count)

    async def one_rollout(name: str) -> None:
        async with places:
            assert await calls.invoke(name, b"{}", given_up=lambda: False) == b"taken"
            await asyncio.sleep(seconds)
            await calls.stop(name)

    await asyncio.gather(*(one_rollout(str(number)) for number in range(count)))


def test_a_full_runtime_is_used_to_the_full() -> None:
    """100 rollouts of 2 s on 8 sessions are 13 after each other, each with two round trips."""
    runtime = SmallRuntime(holds=8)
    _, seconds = run_virtual(rollouts(runtime, 100, 2.0))
    assert seconds <= 13 * (2.0 + 2 * LATENCY) + 0.1
    assert runtime.sessions == set()
    assert runtime.counts["full"] <= 92 + 20  # those that asked before anybody knew, and a try now and then
    assert runtime.counts["stop"] == 100


def test_a_full_runtime_with_a_quota_is_used_to_the_full() -> None:
    runtime = SmallRuntime(holds=8, quota=25)
    _, seconds = run_virtual(rollouts(runtime, 100, 2.0, rate=25))
    assert seconds <= 1.4 * 25
    assert runtime.counts["throttled"] == 0


@pytest.mark.parametrize("rate", [25, None])
def test_a_quota_of_25_is_kept_and_used(rate: float | None) -> None:
    runtime = SmallRuntime(quota=25)
    _, seconds = run_virtual(rollouts(runtime, 1000, 1.0, rate=rate, at_once=50))
    assert seconds <= 1.1 * 2000 / 25  # invokes and stops
    assert runtime.counts["throttled"] <= (0 if rate else 0.06 * 2000 + 50)


def test_one_refusal_in_25_costs_little_more_than_itself() -> None:
    _, undisturbed = run_virtual(rollouts(SmallRuntime(), 1000, 1.0, rate=25))
    _, disturbed = run_virtual(rollouts(SmallRuntime(share=0.04), 1000, 1.0, rate=25))
    assert disturbed <= 1.1 * undisturbed


def test_sessions_that_others_have_left_are_found() -> None:
    async def use() -> None:
        runtime = SmallRuntime(holds=4)
        runtime.sessions = {"theirs-1", "theirs-2", "theirs-3", "theirs-4"}
        working = asyncio.ensure_future(rollouts(runtime, 8, 100.0))
        await asyncio.sleep(60)
        assert runtime.counts["full"] <= 8 + 10
        runtime.sessions.clear()
        runtime.holds = 100
        await asyncio.sleep(11)
        assert len(runtime.sessions) == 8
        await working

    run_virtual(use())


def test_stops_go_before_invokes_that_came_first() -> None:
    order: list[str] = []

    async def use() -> None:
        queue = RequestQueue(Pacer(1))

        async def note(name: str, turn: Awaitable[None]) -> None:
            await turn
            order.append(f"{name} at {virtual_clock():.0f}")

        waiting = [asyncio.ensure_future(note(f"invoke {n}", queue.wait_to_invoke(str(n)))) for n in range(3)]
        await asyncio.sleep(0.5)  # the second slot is due at 1, and given to nobody yet
        waiting += [asyncio.ensure_future(note(f"stop {n}", queue.wait_to_stop())) for n in range(2)]
        await asyncio.gather(*waiting)

    run_virtual(use())
    assert order == ["invoke 0 at 0", "stop 0 at 1", "stop 1 at 2", "invoke 1 at 3", "invoke 2 at 4"]


def test_who_gives_up_waiting_takes_no_turn() -> None:
    async def use() -> None:
        queue = RequestQueue(Pacer(1))
        waiting = [asyncio.ensure_future(queue.wait_to_invoke(str(n))) for n in range(4)]
        await asyncio.sleep(0.5)
        waiting[1].cancel()
        waiting[2].cancel()
        await waiting[3]
        assert virtual_clock() < 1.1

    run_virtual(use())


def test_a_turn_that_nobody_takes_any_more_counts_as_no_session() -> None:
    async def use() -> None:
        queue = RequestQueue(Pacer(None))
        for name in ("a", "b"):
            await queue.wait_to_invoke(name)
        queue.accepted("a")
        queue.refused("b", None)  # so one session fits
        queue.ended("a")
        leaving = asyncio.ensure_future(queue.wait_to_invoke("c"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        leaving.cancel()  # it has the turn, and has not run since
        await asyncio.gather(leaving, return_exceptions=True)
        await queue.wait_to_invoke("d")
        assert virtual_clock() < FIRST_WAIT

    run_virtual(use())


def test_a_queue_that_breaks_says_so_and_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Pacer):
        def reserve(self, now: float) -> float:
            raise ArithmeticError("the clock is gone")

    async def use() -> None:
        queue = RequestQueue(Broken(None))
        for waiting in (queue.wait_to_stop(), queue.wait_to_invoke("a")):
            with pytest.raises(RuntimeFault, match="the clock is gone"):
                await waiting

    run_virtual(use())
    assert {(record.levelno, bool(record.exc_info)) for record in caplog.records} == {(logging.ERROR, True)}


def test_a_session_that_was_never_started_is_not_stopped() -> None:
    async def use() -> None:
        runtime = SmallRuntime(holds=0)
        calls = RuntimeCalls(runtime, Pacer(None), attempts=5)
        invoking = asyncio.ensure_future(calls.invoke("a", b"{}", given_up=lambda: False))
        await asyncio.sleep(5)
        invoking.cancel()
        await asyncio.gather(invoking, return_exceptions=True)
        await calls.stop("a")
        assert runtime.counts["stop"] == 0

    run_virtual(use())


def test_a_session_that_an_invoke_has_started_again_is_stopped_again() -> None:
    """Its result was there before the answer, so it was stopped; and then the invoke arrived once more."""

    async def use() -> None:
        runtime = SmallRuntime()
        calls = RuntimeCalls(runtime, Pacer(None), attempts=5)
        await calls.invoke("a", b"{}", given_up=lambda: False)
        stopping = asyncio.ensure_future(calls.stop("a"))
        await asyncio.sleep(LATENCY / 2)
        again = asyncio.ensure_future(calls.invoke("a", b"{}", given_up=lambda: False))
        await stopping  # overtakes it
        await again
        assert runtime.sessions == {"a"}
        await calls.stop("a")
        assert runtime.sessions == set()

    run_virtual(use())


def test_throttled_stops_are_tried_until_they_are_through(caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        runtime = SmallRuntime()
        calls = RuntimeCalls(runtime, Pacer(None), attempts=2)
        await calls.invoke("a", b"{}", given_up=lambda: False)
        runtime.share = 1.0
        stopping = asyncio.ensure_future(calls.stop("a"))
        await asyncio.sleep(300)
        assert not stopping.done()
        runtime.share = 0.0
        await stopping
        assert runtime.sessions == set()

    run_virtual(use())
    assert caplog.records == []


class Broken:
    """Its `str` fails as well."""

    class Error(Exception):
        def __str__(self) -> str:
            raise ValueError("no")


def raises(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


class Odd(SmallRuntime):
    """Does at each invoke and stop what it was told to."""

    def __init__(self, do: Callable[[], Any]) -> None:
        super().__init__()
        self.do = do

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Any:
        return self.do()

    async def stop(self, session_id: str) -> None:
        self.do()


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 65536


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (raises(ZeroDivisionError("division by zero")), "the runtime raised ZeroDivisionError: division by zero"),
        (raises(KeyError("x")), "the runtime raised KeyError: 'x'"),
        (raises(Broken.Error()), "Error: <exception str() failed>"),
        (raises(SystemExit(3)), "the runtime raised SystemExit: 3"),
        (raises(RecursionError("too deep")), "the runtime raised RecursionError: too deep"),
        (lambda: None, "AttributeError"),
        (lambda: "an answer", "AttributeError"),
        (lambda: Invocation("a", 200, "", one("text")), "TypeError"),
        (lambda: Invocation("a", 200, "", endless()), "longer than 1,048,576 bytes"),
        (raises(ValueError("y" * 100_000)), "yyyyyyyy"),
    ],
)
def test_whatever_a_runtime_raises_is_a_fault(do: Callable[[], Any], says: str) -> None:
    async def use() -> None:
        calls = RuntimeCalls(Odd(do), Pacer(None), attempts=5)
        with pytest.raises(RuntimeFault) as caught:
            await calls.invoke("a", b"{}", given_up=lambda: False)
        assert says in str(caught.value)
        assert len(str(caught.value)) < 5000

    assert run_virtual(use())[1] < 0.01  # it is not tried again here: the batch does, in another session


def test_a_runtime_that_is_not_reached_is_tried_again() -> None:
    asked: list[int] = []

    def flaky() -> Invocation:
        asked.append(1)
        if len(asked) < 3:
            raise ConnectionResetError("gone")
        return Invocation("a", 200, "", one(b"taken"))

    calls = run_virtual(_invoke(Odd(flaky)))[0]
    assert (calls, len(asked)) == (b"taken", 3)


def test_a_runtime_that_says_nothing_is_not_waited_for_forever() -> None:
    class Silent(SmallRuntime):
        async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "") -> Invocation:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    with pytest.raises(RuntimeFault, match="did not answer within 300 s"):
        run_virtual(_invoke(Silent()))


def test_our_own_errors_stay_what_they_are() -> None:
    with pytest.raises(ConfigError, match="no such extra"):
        run_virtual(_invoke(Odd(raises(ConfigError("no such extra")))))


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), ConfigError("x"), SystemExit(1), Broken.Error()])
def test_a_stop_that_fails_is_logged_and_harms_nobody(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        runtime = Odd(lambda: Invocation("a", 200, "", one(b"taken")))
        calls = RuntimeCalls(runtime, Pacer(None), attempts=5)
        await calls.invoke("a", b"{}", given_up=lambda: False)
        runtime.do = raises(error)
        await calls.stop("a")

    run_virtual(use())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "session a could not be stopped" in record.getMessage()


async def _invoke(runtime: Any) -> bytes | None:
    calls = RuntimeCalls(runtime, Pacer(None), attempts=5)
    return await calls.invoke("a", b"{}", given_up=lambda: False)


def test_a_process_that_is_held_up_makes_up_for_its_slots() -> None:
    async def use() -> list[float]:
        queue, granted = RequestQueue(Pacer(10)), []

        async def wait(n: int) -> None:
            await queue.wait_to_invoke(f"s{n}")
            granted.append(virtual_clock())
            if n % 10 == 0:
                stall(0.25)

        await asyncio.gather(*(wait(n) for n in range(100)))
        await asyncio.sleep(10)
        idle_until = virtual_clock()
        await asyncio.gather(*(wait(n) for n in range(101, 105)))
        assert granted[-1] - idle_until == pytest.approx(0.3)  # an idle process has nothing to make up for
        return granted[:100]

    granted, _ = run_virtual(use())
    assert granted[-1] - granted[0] == pytest.approx(9.9, abs=0.3)  # not 12.4
    assert all(later - sooner > 0.9 - CATCH_UP for sooner, later in zip(granted, granted[10:], strict=False))
