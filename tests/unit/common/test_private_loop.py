"""The private loop: what an interrupt does to a coroutine that somebody waits for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agentcore_rl_toolkit.common.private_loop import PrivateLoop
from support.process import clean_env

PATIENCE = 20


@pytest.fixture
def loop() -> Iterator[PrivateLoop]:
    private = PrivateLoop("test")
    yield private
    private.close()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_waits_for_the_clean_up(loop: PrivateLoop) -> None:
    events: list[str] = []

    async def work() -> None:
        try:
            loop.loop.call_soon(interrupt)
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            events.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert events == ["cleaned up"]


def test_an_interrupt_before_the_first_step_waits_too(loop: PrivateLoop) -> None:
    """The loop is busy, so the coroutine has not begun when it is cancelled."""
    busy, go_on = threading.Event(), threading.Event()

    def block() -> None:
        busy.set()
        assert go_on.wait(PATIENCE)

    loop.loop.call_soon_threadsafe(block)
    assert busy.wait(PATIENCE)
    events: list[str] = []

    async def work() -> None:
        events.append("ran")
        await asyncio.sleep(3600)

    def release() -> None:
        interrupt()
        time.sleep(0.3)  # by then it has been cancelled
        go_on.set()

    threading.Timer(0.1, release).start()
    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert asyncio.run_coroutine_threadsafe(_others(), loop.loop).result(PATIENCE) == 0
    assert events in ([], ["ran"])


async def _others() -> int:
    return len(asyncio.all_tasks()) - 1


def test_a_second_interrupt_ends_the_wait(loop: PrivateLoop) -> None:
    go_on = threading.Event()

    async def work() -> None:
        try:
            loop.loop.call_soon(interrupt)
            await asyncio.sleep(3600)
        finally:
            loop.loop.call_soon(interrupt)
            while not go_on.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert not go_on.is_set()
    go_on.set()


def test_a_result_after_the_interrupt_does_not_hide_it(loop: PrivateLoop) -> None:
    async def work() -> str:
        try:
            loop.loop.call_soon(interrupt)
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "done after all"
        return "never"

    with pytest.raises(KeyboardInterrupt):
        loop.run(work())


def test_results_and_errors_are_the_callers(loop: PrivateLoop) -> None:
    async def give(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    assert loop.run(give(7)) == 7
    with pytest.raises(ZeroDivisionError):
        loop.run(give(ZeroDivisionError()))


def test_a_program_that_is_interrupted_has_cleaned_up_when_it_ends() -> None:
    code = """
        import asyncio, os, signal
        from agentcore_rl_toolkit.common.private_loop import PrivateLoop
        loop = PrivateLoop("test")
        async def work():
            try:
                loop.loop.call_soon(os.kill, os.getpid(), signal.SIGINT)
                await asyncio.sleep(20)
            finally:
                await asyncio.sleep(0.1)
                print("cleaned up", flush=True)
        loop.run(work())
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=clean_env(), timeout=60
    )
    assert out.stdout == "cleaned up\n"
    assert out.returncode == -signal.SIGINT


@pytest.mark.parametrize("scheduled", [False, True])
def test_an_interrupt_while_the_coroutine_is_being_started(scheduled: bool) -> None:
    """It may come at any moment, also before there is a future to cancel."""
    events: list[str] = []

    class Interrupted(PrivateLoop):
        def submit(self, coroutine: Any) -> Any:
            if scheduled:
                super().submit(coroutine)
                assert started.wait(PATIENCE)
            raise KeyboardInterrupt

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            events.append("cleaned up")

    private, started = Interrupted("test"), threading.Event()
    with pytest.raises(KeyboardInterrupt):
        private.run(work())
    assert events == (["cleaned up"] if scheduled else [])
    assert asyncio.run_coroutine_threadsafe(_others(), private.loop).result(PATIENCE) == 0
    private.close()
