"""The gateway without HTTP: a pause that outlives it, and what it knows of its engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentcore_rl_toolkit.engine.base import Engine, EngineInfo
from agentcore_rl_toolkit.engine.replicas import Replicas
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.call.core import Core
from agentcore_rl_toolkit.gateway.record.log import Log
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.gateway import ids, tokenizer


class Away(ScriptedEngine):
    """An engine that isn't always there."""

    def __init__(self, *, there: bool = True) -> None:
        super().__init__(lambda _: ids("four"))
        self.there = there
        self.says: Exception | None = None

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
            raise EngineError("nobody there", status=503)
        if self.says is not None:
            raise self.says


@asynccontextmanager
async def started(engine: Engine, folder: Path) -> AsyncIterator[Core]:
    """A core that goes on from its log."""
    core = Core(engine, ChatRenderer(Tokenizer(tokenizer()), renderer="qwen3"), log=Log(folder))
    core.recall_weights()
    await core.start()
    try:
        yield core
    finally:
        await core.close()


def pause_before(folder: Path) -> None:
    log = Log(folder)
    log.write_weights("7", paused=True)
    log.close()


@pytest.mark.parametrize("there", [True, False])
def test_the_engine_is_paused_as_the_gateway_was(tmp_path: Path, there: bool) -> None:
    async def restart() -> None:
        engine = Away(there=there)
        async with started(engine, tmp_path) as core:
            assert core.paused
            assert engine.paused == there
            engine.there = True
            await core.resume()
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
        async with started(engine, tmp_path) as core:
            assert not core.paused
            assert not engine.paused

    asyncio.run(restart())


class Deliberate(Away):
    """Pauses at once, and takes its time to say so; or says that it could not."""

    def __init__(self, error: EngineError | None) -> None:
        super().__init__()
        self.error = error

    async def pause(self) -> None:
        await super().pause()
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
        async with started(engine, tmp_path) as core:
            if before:
                core._going.clear()
                await ScriptedEngine.pause(engine)
            with pytest.raises((asyncio.TimeoutError, EngineError)):
                await asyncio.wait_for(core.pause(), 0.05)
            assert (core.paused, engine.paused) == (before, before)
            await core.resume()
            assert (core.paused, engine.paused) == (False, False)

    asyncio.run(give_up())


def test_an_engine_is_asked_how_it_is_now_and_then(tmp_path: Path) -> None:
    async def ask() -> None:
        engine = Away(there=False)
        async with started(engine, tmp_path) as core:
            assert (await core.health())["replicas_well"] == 0
            engine.there = True
            core._asked = math.inf  # just now
            assert (await core.health())["replicas_well"] == 0
            core._asked = -math.inf
            assert (await core.health())["replicas_well"] == 1

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("error", "well"),
    [
        (EngineError("broken", status=502), 0),
        (EngineError("busy", status=503, retry_after=1), 1),
        (EngineError("too many", status=429), 1),
        (TimeoutError(), 0),
    ],
)
def test_what_an_engine_answers_tells_how_it_is(tmp_path: Path, error: Exception, well: int) -> None:
    async def ask() -> None:
        engine = Away()
        async with started(engine, tmp_path) as core:
            engine.says = error
            assert (await core.health())["replicas_well"] == well

    asyncio.run(ask())
