"""Steps that run at the same time on one set of slots, over a runtime that answers when the test says so."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.client.session_limit import FIRST
from agentcore_rl_toolkit.engine.base import EngineLoad
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import RolloutCancelled, RolloutsStopped
from agentcore_rl_toolkit.rollout import Rollout, RolloutOptions, RolloutRunner, RolloutStream
from support.gateway import gateway
from support.own_runtime import OwnRuntime, completed
from support.runtime import eventually

FAILED = b'{"status_code": 500, "stop_reason": "broken"}'
GOOD = b'{"status_code": 200, "rewards": [1.0]}'


class Bench:
    """A stream of two slots; each rollout waits until it is released, and `started` has their prompts in order."""

    def __init__(self, folder: Path, running: Any) -> None:
        self.started: list[str] = []
        self._waiting: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Future[bytes]]] = {}
        self.client = RolloutClient(OwnRuntime(self._result), folder, "exp")
        options = RolloutOptions(n=2, max_concurrent_sessions=2, max_failures=99, keep_dropped=True)
        self.runner = RolloutRunner(self.client.__enter__(), running, options)
        self.stream = RolloutStream(self.runner)

    async def _result(self, payload: dict[str, Any]) -> bytes:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        self._waiting[f"{payload['prompt']}.{sum(name == payload['prompt'] for name in self.started)}"] = loop, future
        self.started.append(payload["prompt"])
        return await future

    def release(self, name: str, result: bytes = GOOD) -> None:
        loop, future = self._waiting.pop(name)
        loop.call_soon_threadsafe(future.set_result, result)

    def wait_started(self, *names: str) -> None:
        eventually(lambda: len(self.started) >= len(names), 20)
        assert self.started == list(names)

    def close(self) -> None:
        self.stream.close()
        self.runner.close()
        self.client.__exit__(None, None, None)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with gateway(ScriptedEngine([])) as running:
        made = Bench(tmp_path, running)
        yield made
        made.close()


def rows(*prompts: str) -> list[dict[str, Any]]:
    return [{"prompt": prompt} for prompt in prompts]


def prompts(future: concurrent.futures.Future[Any]) -> list[str]:
    return [group.payload["prompt"] for group in future.result(20)]


def test_a_slow_rollout_keeps_its_slot_and_no_later_step_waits_for_it(bench: Bench) -> None:
    seen: list[Rollout] = []
    one = bench.stream.add(rows("a"), on_rollout=seen.append)
    two = bench.stream.add(rows("b"))
    bench.wait_started("a", "a")
    bench.release("a.1")
    bench.wait_started("a", "a", "b")
    bench.release("b.0")
    bench.wait_started("a", "a", "b", "b")
    bench.release("b.1")
    assert prompts(two) == ["b"]
    assert not one.done()
    bench.release("a.0")
    assert prompts(one) == ["a"]
    assert [rollout.sample for rollout in seen] == [1, 0]
    assert bench.stream.usage()[1] > 0


def test_a_step_may_go_before_those_that_were_added_earlier(bench: Bench) -> None:
    bench.stream.add(rows("a", "b"))
    bench.wait_started("a", "a")
    bench.stream.add(rows("first"), first=True)
    bench.release("a.0")
    bench.wait_started("a", "a", "first")


def test_a_step_without_rows_is_over_at_once(bench: Bench) -> None:
    assert bench.stream.add([]).result(20) == []


def test_what_ends_the_run_reaches_everyone_who_waits_or_comes_later(bench: Bench) -> None:
    one, two = bench.stream.add(rows("a"), max_failures=2), bench.stream.add(rows("b"))
    bench.wait_started("a", "a")
    bench.release("a.0", FAILED)
    bench.release("a.1", FAILED)
    for future in (one, two, bench.stream.add(rows("c"))):
        with pytest.raises(RolloutsStopped, match="2 rollouts in a row"):
            future.result(20)


def test_closing_it_cancels_what_runs(bench: Bench) -> None:
    future = bench.stream.add(rows("a", "b"))
    bench.wait_started("a", "a")
    bench.stream.close()
    with pytest.raises(RolloutCancelled):
        future.result(20)
    assert len(bench.started) == 2


class Idle(ScriptedEngine):
    """An engine whose cache has room for many more sessions."""

    async def load(self) -> EngineLoad:
        return EngineLoad(0.1, 32, 0)


def test_more_sessions_run_where_the_engines_have_room(tmp_path: Path) -> None:
    """Of the first 32, half end and let others start; the rest end only once more than 32 run."""
    started, running, more = 0, 0, asyncio.Event()

    async def result(payload: dict[str, Any]) -> bytes:
        nonlocal started, running
        started, running = started + 1, running + 1
        if running > FIRST:
            more.set()
        if started > FIRST // 2:
            await more.wait()
        running -= 1
        return completed(payload)

    with RolloutClient(OwnRuntime(result), tmp_path, "exp", tps_limit=1000) as client, gateway(Idle([])) as ours:
        options = RolloutOptions(n=60, max_concurrent_sessions="auto", max_failures=100, keep_dropped=True)
        with (
            contextlib.closing(RolloutRunner(client, ours, options)) as runner,
            contextlib.closing(RolloutStream(runner)) as stream,
        ):
            (group,) = stream.add(rows("a")).result(120)
            assert len(group.rollouts) == 60
