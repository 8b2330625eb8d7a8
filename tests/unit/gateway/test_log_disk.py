"""Disks that are full: nothing is taken on that can't be kept, and what is removed makes room."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentcore_rl_toolkit.gateway.chat import ChatCall
from agentcore_rl_toolkit.gateway.core import Core
from agentcore_rl_toolkit.gateway.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.faults import Fault
from agentcore_rl_toolkit.gateway.log import Log
from agentcore_rl_toolkit.gateway.render import ChatRenderer
from agentcore_rl_toolkit.gateway.session import read_settings
from agentcore_rl_toolkit.gateway.tokenizer import Tokenizer
from support.log import add_turn, files_of_at_most, new_session, opened, turns_of
from support.tokenizers import make_tokenizer


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(Tokenizer(make_tokenizer()))


def test_no_session_is_opened_that_the_disk_does_not_take(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> None:
        log = Log(tmp_path)
        core = Core(ScriptedEngine([]), renderer, log=log)
        first = core.sessions.open(read_settings({"session_id": "first"}))
        with files_of_at_most(log.size + 20):
            for settled in (False, True):
                with pytest.raises(Fault, match="File too large") as refused:
                    core.sessions.open(read_settings({"session_id": "second"}))
                assert (refused.value.status, refused.value.code, refused.value.retry_after) == (503, "log_failing", 5)
                assert len(core.sessions) == 1
                if not settled:
                    add_turn(log, first)  # which waits
        core.sessions.put_result(first, 5)
        core.sessions.open(read_settings({"session_id": "second"}))
        await core.close()

    asyncio.run(run())
    with opened(tmp_path) as log:
        assert log.sessions() == ["first", "second"]
        assert turns_of(log, "first") == 1


def test_calls_are_refused_before_anything_is_sampled_once_too_much_waits(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> None:
        log = Log(tmp_path)
        engine = ScriptedEngine([[1, 2]] * 3)
        core = Core(engine, renderer, log=log)
        session = core.sessions.open(read_settings({}))
        call = ChatCall([{"role": "user", "content": "hi"}])
        with files_of_at_most(log.size):
            await core.answer(session, call, b"1")
            assert log.failures
            log.write(session.id, "result", result="x" * (64 << 20))
            with pytest.raises(Fault) as refused:
                await core.answer(session, call, b"2")
            assert (refused.value.status, refused.value.code, refused.value.retry_after) == (503, "log_failing", 5)
            assert len(engine.requests) == 1
        core.sessions.put_result(session, 5)
        await core.answer(session, call, b"3")
        assert len(engine.requests) == 2
        await core.close()

    asyncio.run(run())


def test_half_a_record_that_could_not_be_taken_back_is_before_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with opened(tmp_path) as log:
        session = new_session(log, "one")
        (segment,) = tmp_path.glob("*.turns")
        log._half = True
        with open(segment, "ab") as file:
            file.write(b"half of it")
        add_turn(log, session)
        add_turn(log, session)
        with files_of_at_most(log.size + 10):
            add_turn(log, session)
        assert segment.stat().st_size == log.size
        assert "File too large" in caplog.text  # what the disk says, not what we saw of it
    with opened(tmp_path) as log:
        assert log.damaged == 0
        assert turns_of(log, "one") == 3
