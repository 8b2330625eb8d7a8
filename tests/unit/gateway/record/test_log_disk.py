"""Disks that are full: nothing is taken on that can't be kept, and what is removed makes room."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import time
from pathlib import Path

import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.call.chat import ChatCall
from agentcore_rl_toolkit.gateway.call.core import Core
from agentcore_rl_toolkit.gateway.record.log import Log
from agentcore_rl_toolkit.gateway.record.segments import SegmentIndex
from agentcore_rl_toolkit.gateway.record.session import read_settings
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.log import add_turn, contents, files_of_at_most, new_session, opened, turns_of
from support.runtime import eventually
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
                with pytest.raises(GatewayFault, match="the log can't be written") as refused:
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


def test_a_disk_that_fails_costs_no_session_that_is_over(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> None:
        log = Log(tmp_path, max_bytes=4_000)
        core = Core(ScriptedEngine([]), renderer, log=log)
        over = core.sessions.open(read_settings({"session_id": "over"}))
        core.sessions.end(over)
        going = core.sessions.open(read_settings({"session_id": "going"}))
        while not log.full:
            add_turn(log, going)
        with files_of_at_most(0):
            add_turn(log, going)
            with pytest.raises(GatewayFault) as refused:
                core.sessions.open(read_settings({}))
            assert refused.value.code == "log_failing"
        assert core.sessions.get("over") is over
        await core.close()

    asyncio.run(run())


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
            await core.answer(session, call, b"and again")
            log.write(session.id, "result", result="x" * (64 << 20))
            with pytest.raises(GatewayFault) as refused:
                await core.answer(session, call, b"2")
            assert (refused.value.status, refused.value.code, refused.value.retry_after) == (503, "log_failing", 5)
            assert len(engine.requests) == 2
        core.sessions.put_result(session, 5)
        await core.answer(session, call, b"3")
        assert len(engine.requests) == 3
        await core.close()

    asyncio.run(run())


def test_a_part_of_a_record_is_taken_back(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with opened(tmp_path) as log:
        session = new_session(log, "one")
        (segment,) = tmp_path.glob("*.turns")
        with files_of_at_most(log.size + 10):
            add_turn(log, session)
            assert segment.stat().st_size == log.size
        assert "the disk took 10 of" in caplog.text
        add_turn(log, session)
    with opened(tmp_path) as log:
        assert log.damaged == 0
        assert turns_of(log, "one") == 2


def test_syncing_continues_when_there_are_descriptors_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with opened(tmp_path, sync_seconds=0.01) as log:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # none is free, whatever other threads close meanwhile
        try:
            new_session(log, "one")
            eventually(lambda: log.failures >= 2)
            assert not synced
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        eventually(lambda: synced)
        eventually(lambda: not log.error)


# Removing sessions while the disk takes nothing


def test_sessions_removed_on_a_full_disk_make_room_and_stay_removed(tmp_path: Path):
    with opened(tmp_path / "log") as log:
        sessions = [new_session(log, f"s{number}") for number in range(8)]
        for _ in range(5):
            for session in sessions:
                add_turn(log, session)
        with files_of_at_most(log.size):
            add_turn(log, sessions[-1])  # which waits
            assert log.failures
            for session in sessions[:-1]:
                log.remove(session.id, "expired")
                known = SegmentIndex(tmp_path / "log")
                assert session.id not in known.places
                assert known.removed[session.id] == "expired"
            log.remove("s7")
            assert log.size == 0
        new_session(log, "new")
    with opened(tmp_path / "log") as log:
        assert log.sessions() == ["new"]
        assert log.damaged == 0
        assert len(contents(tmp_path / "log")) == 1


# Folders that vanish, disks that come back


def test_health_is_well_again_when_the_disk_is(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> None:
        log = Log(tmp_path)
        core = Core(ScriptedEngine([]), renderer, log=log)
        session = core.sessions.open(read_settings({}))
        with files_of_at_most(log.size):
            add_turn(log, session)
            core.gate.name_weights("v2")
            health = await core.health()
            assert health["status"] == "degraded"
            assert "File too large" in health["log_error"]
        await asyncio.to_thread(eventually, lambda: not log.error)
        health = await core.health()
        assert (health["status"], health["log_error"], health["log_failures"] >= 1) == ("ok", None, True)
        assert log.read_weights().version == "v2"
        await core.close()

    asyncio.run(run())


def test_a_folder_that_vanished_is_reported_and_takes_no_session(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> None:
        folder = tmp_path / "log"
        log = Log(folder)
        core = Core(ScriptedEngine([]), renderer, log=log)
        session = core.sessions.open(read_settings({"session_id": "one"}))
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(GatewayFault, match="has vanished") as refused:
            core.sessions.open(read_settings({}))
        assert (refused.value.status, refused.value.code) == (503, "log_failing")
        health = await core.health()
        assert (health["status"], "has vanished" in health["log_error"]) == ("degraded", True)
        core.sessions.put_result(session, 5)  # what is open goes on
        (tmp_path / "elsewhere").rename(folder)
        core.sessions.open(read_settings({"session_id": "two"}))
        assert (await core.health())["status"] == "ok"
        await core.close()

    asyncio.run(run())


def test_a_folder_that_was_removed_is_an_error(tmp_path: Path):
    folder = tmp_path / "log"
    with opened(folder) as log:
        new_session(log, "one")
        shutil.rmtree(folder)
        assert "has vanished" in log.error


def test_idle_time_is_counted_over_a_restart_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with opened(tmp_path) as log:
        session = new_session(log, "one", ttl_seconds=100)
        add_turn(log, session)
    now = time.time()
    for jump in (-1e6, 1e6):
        monkeypatch.setattr(time, "time", lambda jump=jump: now + jump)
        with opened(tmp_path) as log:
            again = log.load("one")
            assert again is not None
            assert 0 < again.idle_until_expired < session.idle_until_expired + 10
    later = time.monotonic() + 101
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with opened(tmp_path) as log:
        again = log.load("one")
        assert again is not None
        assert again.idle_until_expired < 0
