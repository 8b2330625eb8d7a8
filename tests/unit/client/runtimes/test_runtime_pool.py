"""Several runtimes share the sessions of one client, on a clock that takes no time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agentcore_rl_toolkit.client.runtimes.pacing import Pacer
from agentcore_rl_toolkit.client.runtimes.runtime_calls import RuntimeCalls
from agentcore_rl_toolkit.client.runtimes.runtime_pool import FAILURES, FIRST_PAUSE, LONGEST_PAUSE, Health, RuntimePool
from agentcore_rl_toolkit.client.runtimes.usage import usage_of
from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.runtime import Invocation
from support.virtual_time import run_virtual, virtual_clock


async def one(data: bytes) -> AsyncIterator[bytes]:
    yield data


class SlowRuntime:
    """Answers each invoke after so many seconds, and holds so many sessions."""

    def __init__(self, name: str, seconds: float = 5.0, holds: float = math.inf) -> None:
        self.arn, self.seconds, self.holds = f"arn:of:{name}", seconds, holds
        self.invoked: list[float] = []
        self.sessions: set[str] = set()
        self.fault: RuntimeFault | None = None
        self.prints: dict[str, bytes] = {}

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Invocation:
        self.invoked.append(virtual_clock())
        if self.fault is not None:
            raise self.fault
        if len(self.sessions) >= self.holds:
            raise RuntimeFault("all in use", code="ServiceQuotaExceededException")
        self.sessions.add(session_id)
        await asyncio.sleep(self.seconds)
        return Invocation(session_id, 200, content_type, one(b"taken"))

    async def stop(self, session_id: str) -> None:
        self.sessions.discard(session_id)

    async def printed(self, session_id: str) -> bytes | None:
        return self.prints.get(session_id)

    async def aclose(self) -> None: ...


def pool_of(*runtimes: Any, rate: float | None = 25, attempts: int = 1) -> tuple[RuntimePool, list[RuntimeCalls]]:
    calls = [RuntimeCalls(runtime, Pacer(rate), attempts=attempts) for runtime in runtimes]
    return RuntimePool(calls), calls


async def start(pool: RuntimePool, name: str, stop_after: float | None = None) -> str:
    """Start a session, and stop it later if asked to; what became of its invoke."""
    try:
        await pool.invoke(name, b"{}", given_up=lambda: False)
    except RuntimeFault as fault:
        await pool.stop(name)
        return fault.code
    if stop_after is not None:
        await asyncio.sleep(stop_after)
        await pool.stop(name)
    return "started"


async def start_all(pool: RuntimePool, count: int, stop_after: float | None = None) -> list[str]:
    return await asyncio.gather(*(start(pool, f"s{n}", stop_after) for n in range(count)))


def run(scene: Callable[[], Any]) -> Any:
    return run_virtual(scene())


def test_slow_answers_leave_no_part_of_the_quota_unused() -> None:
    async def scene() -> None:
        runtime = SlowRuntime("a", seconds=5.0)
        pool, _ = pool_of(runtime)
        await start_all(pool, 500)
        assert runtime.invoked[-1] - runtime.invoked[0] == pytest.approx(499 / 25, abs=0.1)

    run(scene)


def test_every_runtime_is_used_to_its_own_quota() -> None:
    async def scene() -> None:
        runtimes = [SlowRuntime("a"), SlowRuntime("b"), SlowRuntime("c")]
        pool, calls = pool_of(*runtimes)
        assert set(await start_all(pool, 600)) == {"started"}
        assert [len(runtime.invoked) for runtime in runtimes] == [200] * 3
        assert max(runtime.invoked[-1] for runtime in runtimes) == pytest.approx(199 / 25, abs=0.1)
        assert usage_of(calls, {}).runtimes == {"arn:of:a": 200, "arn:of:b": 200, "arn:of:c": 200}

    run(scene)


def test_sessions_that_a_full_runtime_cannot_take_go_to_the_others() -> None:
    async def scene() -> None:
        small, large = SlowRuntime("small", 0.1, holds=5), SlowRuntime("large", 0.1)
        pool, _ = pool_of(small, large)
        assert set(await start_all(pool, 300, stop_after=1000)) == {"started"}
        assert len(large.invoked) >= 260  # a second's worth of sessions waits at the small one
        assert virtual_clock() < 10_000

    run(scene)


def test_a_runtime_that_fails_is_left_out_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        good, bad = SlowRuntime("good", 0.1), SlowRuntime("bad", 0.1)
        bad.fault = RuntimeFault("down")
        pool, _ = pool_of(good, bad, rate=None)

        async def steadily(seconds: float) -> list[str]:
            found = []
            for n in range(int(seconds * 10)):
                found.append(await start(pool, f"{virtual_clock()}-{n}"))
            return found

        found = await steadily(20)
        assert found.count("InternalServerException") == len(bad.invoked) <= FAILURES + 3
        assert "arn:of:bad gets no sessions, because starting them fails; it is tried again in 5 s" in caplog.text
        bad.fault = None
        before = len(bad.invoked)
        assert set(await steadily(60)) == {"started"}
        assert len(bad.invoked) > before + 100
        assert caplog.text.count("arn:of:bad works again") == 1

    run(scene)


def test_what_a_runtime_refused_to_start_goes_to_another() -> None:
    async def scene() -> None:
        good, gone = SlowRuntime("good", 0.1), SlowRuntime("gone", 0.1)
        gone.fault = RuntimeFault("deleted", code="ResourceNotFoundException")
        pool, _ = pool_of(gone, good)
        assert set(await start_all(pool, 100)) == {"started"}
        alone, _ = pool_of(gone)
        assert await start(alone, "s") == "ResourceNotFoundException"
        neither, _ = pool_of(gone, gone)
        assert await start(neither, "s") == "ResourceNotFoundException"

    run(scene)


def test_an_agents_own_errors_leave_no_runtime_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        runtimes = [SlowRuntime("a"), SlowRuntime("b")]
        for runtime in runtimes:
            runtime.fault = RuntimeFault("its own", code="RuntimeClientError", reason="agent")
        pool, _ = pool_of(*runtimes)
        assert set(await start_all(pool, 100)) == {"RuntimeClientError"}
        assert "gets no sessions" not in caplog.text

    run(scene)


def test_when_all_fail_each_is_tried_again() -> None:
    async def scene() -> None:
        runtimes = [SlowRuntime("a", 0.1), SlowRuntime("b", 0.1)]
        for runtime in runtimes:
            runtime.fault = RuntimeFault("down")
        pool, _ = pool_of(*runtimes)
        waiting = asyncio.ensure_future(start_all(pool, 40))
        await asyncio.sleep(30)
        for runtime in runtimes:
            runtime.fault = None
        found = await waiting
        assert found.count("started") > 20
        assert virtual_clock() < 30 + 2 * LONGEST_PAUSE

    run(scene)


def test_a_stop_goes_to_the_sessions_runtime() -> None:
    async def scene() -> None:
        runtimes = [SlowRuntime("a", 0.1), SlowRuntime("b", 0.1)]
        pool, calls = pool_of(*runtimes)
        runtimes[1].prints["s1"] = b"hello"
        await start_all(pool, 20, stop_after=7.0)
        assert [runtime.sessions for runtime in runtimes] == [set(), set()]
        assert await pool.printed("s1") == "hello"
        usage = usage_of(calls, {"bytes_read": 5, "s3:GetObject": 2})
        assert (usage.sessions, usage.invokes, usage.stops) == (20, 20, 20)
        assert 140 <= usage.session_seconds < 141
        assert (usage.bytes_read, usage.store_requests) == (5, {"s3:GetObject": 2})

    run(scene)


def test_a_cancelled_wait_keeps_nobody_else_waiting() -> None:
    async def scene() -> None:
        runtimes = [SlowRuntime("a", 0.1), SlowRuntime("b", 0.1)]
        pool, _ = pool_of(*runtimes, rate=2)
        tasks = [asyncio.ensure_future(start(pool, f"s{n}")) for n in range(30)]
        await asyncio.sleep(1.0)
        for task in tasks[1::2]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[::2] == ["started"] * 15

    run(scene)


def test_pauses_grow_with_failed_trials() -> None:
    health = Health()
    assert [health.failed(0.0) for _ in range(FAILURES)][-1]
    assert not health.failed(1.0)  # a session that started before
    now, pauses = FIRST_PAUSE, []
    for _ in range(6):
        assert health.takes(now)
        health.started()
        assert not health.takes(now)  # one at a time
        assert health.failed(now)
        pauses.append((health.left_out_until or 0) - now)
        now += pauses[-1]
    assert pauses == [10, 20, 40, 60, 60, 60]
    assert health.succeeded()
    assert not health.succeeded()
