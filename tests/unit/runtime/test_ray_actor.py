"""A session on Ray, as the driver sees it, when Ray does what nobody expected. No cluster is needed for that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.runtime.ray import RaySession
from agentcore_rl_toolkit.runtime.ray_actor import SessionActor


async def fails() -> Any:
    raise KeyError("no such thing")


def actor(**methods: Callable[[], Awaitable[Any]]) -> Any:
    """No actor of Ray's."""
    return SimpleNamespace(**{name: SimpleNamespace(remote=method) for name, method in methods.items()})


def test_a_session_that_can_not_be_watched_or_ended_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        ended = asyncio.Event()
        session = RaySession("session", actor(watch=fails, shut_down=fails), 3, {})
        session.watch(ended.set)
        await asyncio.wait_for(ended.wait(), 60)
        assert session.stopping

    asyncio.run(use())
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR and record.exc_info]
    assert told == [
        "session session can't be watched any more; ending it",
        "session session could not be ended cleanly",
    ]


def test_an_error_of_any_length_is_read_from_its_beginning() -> None:
    class Endless(RaySession):
        async def _request(self, path: str, body: bytes, headers: dict[str, str]) -> Any:
            yield 500, "text/plain"
            while True:
                yield b"x" * 1000

    async def use() -> None:
        with pytest.raises(RuntimeFault, match=r"Received error \(500\) from runtime: x{4000}$") as caught:
            await Endless("session", None, 3, {}).invoke(b"{}", "")
        assert caught.value.reason == "agent"

    asyncio.run(use())


@pytest.mark.parametrize("endless", [True, False])
def test_a_ping_of_any_length_says_whether_there_is_work(endless: bool) -> None:
    class Pinged(SessionActor):
        async def request(self, method: str, path: str, headers: dict[str, str], body: bytes) -> AsyncIterator[Any]:  # type: ignore[override]
            yield 200, "application/json"
            yield b'{"status": "HealthyBusy"}'
            while endless:
                yield b"x" * 1000

    async def use() -> bool:
        pinged = Pinged()
        return await pinged.is_busy()

    assert asyncio.run(use()) is True
