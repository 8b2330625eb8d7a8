"""Weight updates: a pause that outlives the gateway, fails, or is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentcore_rl_toolkit.engine.base import Engine, EngineInfo
from agentcore_rl_toolkit.engine.replicas import Replicas
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.call.weight_gate import WeightGate
from agentcore_rl_toolkit.gateway.record.log import Log
from support.gateway import ids


class Away(ScriptedEngine):
    """An engine that can't always be reached."""

    def __init__(self, *, there: bool = True) -> None:
        super().__init__(lambda _: ids("four"))
        self.there = there

    async def info(self) -> EngineInfo:
        self._answer()
        return await super().info()

    async def pause(self) -> None:
        self._answer()
        await super().pause()

    async def resume(self) -> None:
        self._answer()
        await super().resume()

    def _answer(self) -> None:
        if not self.there:
            raise EngineError("not reachable", status=503)


@asynccontextmanager
async def started(engine: Engine, folder: Path) -> AsyncIterator[WeightGate]:
    """A gate that continues from its log."""
    log = Log(folder)
    gate = WeightGate(engine, log)
    gate.restore()
    await engine.start()
    await gate.start()
    try:
        yield gate
    finally:
        await engine.close()
        log.close()


def pause_before(folder: Path) -> None:
    log = Log(folder)
    log.write_weights("7", paused=True)
    log.close()


@pytest.mark.parametrize("there", [True, False])
def test_the_engine_is_paused_as_the_gateway_was(tmp_path: Path, there: bool) -> None:
    async def restart() -> None:
        engine = Away(there=there)
        async with started(engine, tmp_path) as gate:
            assert gate.paused
            assert engine.paused == there
            engine.there = True
            await gate.resume()
            assert not engine.paused

    pause_before(tmp_path)
    asyncio.run(restart())


def test_a_replica_that_comes_back_is_paused_as_the_gateway_was(tmp_path: Path) -> None:
    async def restart() -> None:
        one, other = Away(), Away(there=False)
        replicas = Replicas([one, other], check_every=3600)
        async with started(replicas, tmp_path):
            assert one.paused
            other.there = True
            await replicas.check()
            assert other.paused

    pause_before(tmp_path)
    asyncio.run(restart())


def test_an_engine_that_was_not_paused_is_not(tmp_path: Path) -> None:
    async def restart() -> None:
        engine = Away()
        async with started(engine, tmp_path) as gate:
            assert not gate.paused
            assert not engine.paused

    asyncio.run(restart())


class Deliberate(Away):
    """Pauses at once, and takes its time to say so; or says that it could not."""

    def __init__(self, error: EngineError | None) -> None:
        super().__init__()
        self.error = error
        self.slow = True

    async def pause(self) -> None:
        await super().pause()
        if not self.slow:
            return
        if self.error is not None:
            raise self.error
        await asyncio.sleep(3600)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("error", [None, EngineError("no answer")])
def test_a_pause_that_fails_or_is_given_up_leaves_things_as_they_were(
    tmp_path: Path, error: EngineError | None, before: bool
) -> None:
    async def give_up() -> None:
        engine = Deliberate(error)
        async with started(engine, tmp_path) as gate:
            if before:
                engine.slow = False
                await gate.pause()
                engine.slow = True
            with pytest.raises((asyncio.TimeoutError, EngineError)):
                await asyncio.wait_for(gate.pause(), 0.05)
            assert (gate.paused, engine.paused) == (before, before)
            await gate.resume()
            assert (gate.paused, engine.paused) == (False, False)

    asyncio.run(give_up())
