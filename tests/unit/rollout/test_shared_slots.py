"""Groups that begin at any time and share one loop's slots, over a runtime that runs no agent."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.client.session_limit import FIRST
from agentcore_rl_toolkit.engine.base import EngineLoad
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import RolloutsStopped
from agentcore_rl_toolkit.rollout import RolloutOptions, RolloutRunner
from agentcore_rl_toolkit.rollout.stream import SharedSlots
from support.gateway import gateway
from support.own_runtime import OwnRuntime, completed


@contextlib.asynccontextmanager
async def shared(
    folder: Path, runtime: OwnRuntime, engine: ScriptedEngine | None = None, **options: Any
) -> AsyncIterator[SharedSlots]:
    engine = engine or ScriptedEngine([])
    with RolloutClient(runtime, folder, "exp", tps_limit=1000) as client, gateway(engine) as running:
        runner = RolloutRunner(client, running, RolloutOptions(**{"n": 2, "max_failures": 100} | options))
        with contextlib.closing(runner):
            async with SharedSlots(runner) as slots:
                yield slots


def test_a_free_slot_takes_the_next_rollout_of_any_group(tmp_path: Path) -> None:
    """The last rollout of the first group ends only after one of the second has started, which has one slot left."""
    started: Counter[str] = Counter()
    second = asyncio.Event()

    async def result(payload: dict[str, Any]) -> bytes:
        row = payload["input_id"]
        started[row] += 1
        if row == "second":
            second.set()
        elif started[row] == 2:
            await second.wait()
        return completed(payload)

    async def run() -> list[int]:
        async with shared(tmp_path, OwnRuntime(result), max_concurrent_sessions=2) as slots:
            groups = [slots.run_group({"input_id": row}) for row in ("first", "second")]
            return [len(group.rollouts) for group in await asyncio.wait_for(asyncio.gather(*groups), 60)]

    assert asyncio.run(run()) == [2, 2]


def test_slots_wait_for_groups_that_come_later_and_take_their_options(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with shared(tmp_path, OwnRuntime()) as slots:
            sizes = []
            for n in (1, 3):
                sizes.append(len((await slots.run_group({"input_id": "row"}, n=n)).rollouts))
                await asyncio.sleep(0.05)  # nothing runs meanwhile
            return sizes

    assert asyncio.run(run()) == [1, 3]


def test_what_ends_the_run_is_raised_for_every_group_and_for_later_ones(tmp_path: Path) -> None:
    async def run() -> None:
        async with shared(tmp_path, OwnRuntime(), max_failures=1) as slots:
            groups = [slots.run_group({"input_id": row}) for row in ("first", "second")]
            ended = await asyncio.wait_for(asyncio.gather(*groups, return_exceptions=True), 60)
            assert [type(one) for one in ended] == [RolloutsStopped] * 2
            with pytest.raises(RolloutsStopped):
                await slots.run_group({"input_id": "third"})

    asyncio.run(run())


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

    async def run() -> int:
        async with shared(tmp_path, OwnRuntime(result), Idle([]), max_concurrent_sessions="auto", n=60) as slots:
            return len((await asyncio.wait_for(slots.run_group({"input_id": "row"}), 120)).rollouts)

    assert asyncio.run(run()) == 60
