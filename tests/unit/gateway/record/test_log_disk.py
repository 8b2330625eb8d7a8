"""Disks that are full: nothing is taken on that can't be kept, and what is removed makes room."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.call.chat import ChatCall
from agentcore_rl_toolkit.gateway.call.core import Core
from agentcore_rl_toolkit.gateway.record.log import Log
from agentcore_rl_toolkit.gateway.record.replay import build_session
from agentcore_rl_toolkit.gateway.record.segments import Index
from agentcore_rl_toolkit.gateway.record.session import read_settings
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.log import add_turn, contents, files_of_at_most, new_session, opened, put, turns_of
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
                with pytest.raises(GatewayFault, match="File too large") as refused:
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


# Removing sessions while the disk takes nothing


def test_syncing_goes_on_when_there_are_descriptors_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agentcore_rl_toolkit.gateway.record.log._SYNC_SECONDS", 0.01)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with opened(tmp_path) as log:
        new_session(log, "one")
        eventually(lambda: not log._dirty)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # none is free, whatever other threads close meanwhile
        try:
            new_session(log, "two")
            eventually(lambda: log.failures >= 2)
            assert log._dirty
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        eventually(lambda: not log._dirty)
    with opened(tmp_path) as log:
        assert log.sessions() == ["one", "two"]


@contextmanager
def full_disk(log: Log) -> Iterator[None]:
    """Nothing can be added to the segment; what is there can be changed."""
    held, log._file = log._file, os.open(log._index.path(log._segment), os.O_RDONLY)
    swapped = log._file
    try:
        yield
    finally:
        if log._file == swapped:
            os.close(log._file)
            log._file = held
        else:
            os.close(held)


def test_sessions_removed_on_a_full_disk_make_room_and_stay_removed(tmp_path: Path):
    with opened(tmp_path / "log", max_bytes=40_000) as log:
        sessions = [new_session(log, f"s{number}") for number in range(8)]
        for _ in range(5):
            for session in sessions:
                add_turn(log, session)
        before = log.size
        assert len(log._index.sizes) > 2
        with full_disk(log):
            add_turn(log, sessions[-1])  # which waits
            for session in sessions[:-1]:
                log.remove(session.id, "expired")
                known = Index(put(tmp_path / "kill", contents(tmp_path / "log")))
                assert session.id not in known.places
                assert known.removed[session.id] == "expired"
            assert turns_of(log, "s7") == 5
            assert log.failures
            log.remove("s7")
            assert log.size == 0
        assert before > 10_000
        new_session(log, "new")
    with opened(tmp_path / "log") as log:
        assert log.sessions() == ["new"]
        assert log.damaged == 0
        assert len(list((tmp_path / "log").glob("*.turns"))) == 1


@pytest.mark.parametrize("named", [False, True])
def test_a_kill_while_a_session_is_removed_in_place_leaves_none_of_it(tmp_path: Path, named: bool):
    with opened(tmp_path / "log") as log:
        session = new_session(log, "one")
        for _ in range(5):
            add_turn(log, session)
        add_turn(log, new_session(log, "other"))
        if named:
            log._append("one", b"\x81\xa4kind")
            assert log.load("one") is not None  # which names its records anew
            add_turn(log, session)
        before = contents(tmp_path / "log")["00000001.turns"]
        with full_disk(log):
            log.remove("one")
            assert log.failures
            after = contents(tmp_path / "log")["00000001.turns"]
    heads = [place for place in range(len(before)) if before[place : place + 12] != after[place : place + 12]]
    heads = [place for place in heads if before[place + 12 : place + 15] == b"one" and place + 12 < len(before)]
    assert len(heads) == (2 if named else 6)
    state = bytearray(before)
    for place in heads:
        state[place : place + 12] = after[place : place + 12]
        index = Index(put(tmp_path / "kill", {"00000001.turns": bytes(state)}))
        assert build_session(index.records("one")) is None
    assert state == after
    assert list(Index(tmp_path / "kill").places) == ["other"]
    assert Index(tmp_path / "kill").removed == {"one": "deleted"}


def test_the_log_is_synced_again_after_whatever_broke_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as log:
        log._filled.append("no descriptor")  # type: ignore[arg-type]
        eventually(lambda: log.failures)
        new_session(log, "first")
        eventually(lambda: not log._dirty)
        assert log._syncer.is_alive()
    assert any(record.levelname == "ERROR" and record.exc_info for record in caplog.records)


# Folders that vanish, disks that come back


def test_health_is_well_again_when_the_disk_is(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> None:
        log = Log(tmp_path)
        core = Core(ScriptedEngine([]), renderer, log=log)
        session = core.sessions.open(read_settings({}))
        with files_of_at_most(log.size):
            add_turn(log, session)
            core.name_weights("v2")
            health = await core.health()
            assert (health["status"], "File too large" in health["log_error"]) == ("degraded", True)
        await asyncio.to_thread(eventually, lambda: not log.error)
        health = await core.health()
        assert (health["status"], health["log_error"], health["log_failures"] >= 1) == ("ok", None, True)
        assert log.read_weights().version == "v2"
        await core.close()

    asyncio.run(run())


def test_a_folder_that_vanished_is_said_and_takes_no_session(
    tmp_path: Path, renderer: ChatRenderer, caplog: pytest.LogCaptureFixture
):
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
    assert "has vanished" in caplog.text


def test_a_folder_that_vanished_is_noticed_by_itself(tmp_path: Path):
    folder = tmp_path / "log"
    with opened(folder) as log:
        new_session(log, "one")
        shutil.rmtree(folder)
        eventually(lambda: "has vanished" in log.error)


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
