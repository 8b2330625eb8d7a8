"""The gateway without HTTP: what it knows of its engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentcore_rl_toolkit.engine.base import Engine, EngineInfo
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.call.core import Core
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.gateway import ids, tokenizer


class Moody(ScriptedEngine):
    """An engine that may answer with an error."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(lambda _: ids("four"))
        self.error = error

    async def info(self) -> EngineInfo:
        if self.error is not None:
            raise self.error
        return await super().info()


@asynccontextmanager
async def started(engine: Engine) -> AsyncIterator[Core]:
    core = Core(engine, ChatRenderer(Tokenizer(tokenizer()), renderer="qwen3"))
    await core.start()
    try:
        yield core
    finally:
        await core.close()


def test_an_engine_is_asked_how_it_is_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic

    async def ask() -> None:
        engine = Moody(EngineError("not reachable", status=503))
        async with started(engine) as core:
            assert (await core.health())["replicas_well"] == 0
            engine.error = None
            monkeypatch.setattr(time, "monotonic", lambda: now() - 3600)  # hardly any time has passed
            assert (await core.health())["replicas_well"] == 0
            monkeypatch.setattr(time, "monotonic", lambda: now() + 60)
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
def test_what_an_engine_answers_tells_how_it_is(error: Exception, well: int) -> None:
    async def ask() -> None:
        engine = Moody()
        async with started(engine) as core:
            engine.error = error
            assert (await core.health())["replicas_well"] == well

    asyncio.run(ask())
