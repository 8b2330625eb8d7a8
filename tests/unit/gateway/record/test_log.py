"""The log on disk: what was written is there after any kill, in a bounded folder, and a bad disk harms no request."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from pathlib import Path

import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import ConfigError, GatewayFault
from agentcore_rl_toolkit.gateway.call.core import Core
from agentcore_rl_toolkit.gateway.record.log import Log, WeightState
from agentcore_rl_toolkit.gateway.record.replay import build_session
from agentcore_rl_toolkit.gateway.record.segments import SegmentIndex
from agentcore_rl_toolkit.gateway.record.session import Session, read_settings
from agentcore_rl_toolkit.gateway.record.turn import Turn
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.log import add_turn, files_of_at_most, new_session, opened, turns_of
from support.tokenizers import make_tokenizer


def same(one: Turn, other: Turn) -> None:
    for name in ("index", "keep", "delta", "sampled", "finish", "versions", "masked", "origin", "routes", "uid"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.logprobs.tobytes() == other.logprobs.tobytes()
    assert one.tokens() == other.tokens()


def test_a_session_comes_back_as_it_was(tmp_path: Path):
    with opened(tmp_path) as log:
        session = new_session(log, "one", metadata={"a": [1, None, "é"]}, enforced={"max_tokens": 5}, ttl_seconds=9)
        turns = [add_turn(log, session) for _ in range(3)]
        log.write("one", "masked", index=1, reason="undelivered")
        turns[1].masked = "undelivered"
        log.write("one", "result", result={"reward": 1.5})
        log.write("one", "closed")
    with opened(tmp_path) as log:
        assert log.sessions() == ["one"]
        read = log.load("one")
        assert read is not None
        assert (read.settings, read.key, read.created) == (session.settings, "key of one", 5.0)
        assert (read.result, read.closed) == ({"reward": 1.5}, True)
        for before, after in zip(turns, read.tree.turns, strict=True):
            same(before, after)


def test_sessions_are_kept_apart_though_they_share_a_file(tmp_path: Path):
    with opened(tmp_path) as log:
        sessions = [new_session(log, f"s{number}") for number in range(5)]
        for _ in range(4):
            for session in sessions:
                add_turn(log, session)
    with opened(tmp_path) as log:
        assert sorted(log.sessions()) == [f"s{number}" for number in range(5)]
        for session in sessions:
            read = log.load(session.id)
            assert read is not None
            assert len(read.tree.turns) == 4
            assert read.key == session.key
    assert len(list(tmp_path.glob("*.turns"))) == 1


def test_a_kill_at_any_byte_loses_no_whole_record(tmp_path: Path):
    with opened(tmp_path / "whole") as log:
        session = new_session(log, "one")
        ends = [log.size]
        for _ in range(3):
            add_turn(log, session)
            ends.append(log.size)
    (segment,) = (tmp_path / "whole").glob("*.turns")
    data = segment.read_bytes()
    for cut in range(len(data) + 1):
        folder = tmp_path / "cut"
        folder.mkdir(exist_ok=True)
        (folder / segment.name).write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        read = build_session(SegmentIndex(folder).records("one"))
        assert (len(read.tree.turns) + 1 if read is not None else 0) == whole, cut


def test_half_a_record_is_dropped_and_the_next_one_takes_its_place(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with opened(tmp_path) as log:
        session = new_session(log, "one")
        add_turn(log, session)
        whole = log.size
        add_turn(log, session)
    (segment,) = tmp_path.glob("*.turns")
    os.truncate(segment, segment.stat().st_size - 1)
    with opened(tmp_path) as log:
        assert "a part of a record" in caplog.text
        assert log.size == whole == segment.stat().st_size
        read = log.load("one")
        assert read is not None
        add_turn(log, read)
    with opened(tmp_path) as log:
        read = log.load("one")
        assert read is not None
        assert [turn.index for turn in read.tree.turns] == [0, 1]


def test_a_session_killed_while_it_was_opened_is_none(tmp_path: Path):
    with opened(tmp_path) as log:
        new_session(log, "one")
    (segment,) = tmp_path.glob("*.turns")
    os.truncate(segment, segment.stat().st_size - 1)
    with opened(tmp_path) as log:
        assert not log.has("one")
        assert log.load("one") is None


def test_damage_in_the_middle_stays_with_its_session(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with opened(tmp_path) as log:
        one, other = new_session(log, "one"), new_session(log, "other")
        add_turn(log, one)
        place = log.size
        add_turn(log, one)
        add_turn(log, other)
    (segment,) = tmp_path.glob("*.turns")
    data = bytearray(segment.read_bytes())
    data[place + 40] ^= 1
    segment.write_bytes(data)
    with opened(tmp_path) as log:
        read, intact = log.load("one"), log.load("other")
        assert read is not None
        assert intact is not None
        assert (len(read.tree.turns), len(intact.tree.turns)) == (1, 1)
        assert "damaged" in caplog.text


def test_a_log_of_another_version_is_left_alone(tmp_path: Path):
    with opened(tmp_path) as log:
        log.write("one", "session", schema=99, settings={"session_id": "one"}, key="k", created=0.0)
    with opened(tmp_path) as log:
        assert log.load("one") is None
        assert log.has("one")  # and its id is not given to another


def test_what_is_removed_stays_removed_and_says_why(tmp_path: Path):
    with opened(tmp_path) as log:
        for name in ("one", "two", "three"):
            add_turn(log, new_session(log, name))
        log.remove("one")
        log.remove("two", "expired")
        assert log.sessions() == ["three"]
    with opened(tmp_path) as log:
        assert log.sessions() == ["three"]
        assert log.removed == {"one": "deleted", "two": "expired"}
        new_session(log, "one")
        assert log.removed == {"two": "expired"}
        read = log.load("one")
        assert read is not None
        assert read.tree.turns == []


def test_the_oldest_segments_go_when_their_sessions_are_gone(tmp_path: Path):
    with opened(tmp_path, max_bytes=32_000) as log:
        sessions = [new_session(log, f"s{number}") for number in range(40)]
        for session in sessions:
            for _ in range(3):
                add_turn(log, session)
        segments = len(list(tmp_path.glob("*.turns")))
        assert segments > 3
        size = log.size
        for session in sessions[:30]:
            log.remove(session.id)
        assert len(list(tmp_path.glob("*.turns"))) < segments
        assert log.size < size
        assert log.size == sum(path.stat().st_size for path in tmp_path.glob("*.turns"))
        left = log.sessions()
    with opened(tmp_path, max_bytes=32_000) as log:
        assert log.sessions() == left == [session.id for session in sessions[30:]]
        assert all(len(log.load(name).tree.turns) == 3 for name in left)  # type: ignore[union-attr]


def test_what_is_removed_stays_removed_when_segments_in_the_middle_go(tmp_path: Path):
    with opened(tmp_path, max_bytes=32_000) as log:
        pinned, removed = new_session(log, "pinned"), new_session(log, "removed")
        filler = [new_session(log, f"s{number}") for number in range(20)]
        for session in filler:
            add_turn(log, session)
        log.remove(removed.id)
        filler += [new_session(log, f"t{number}") for number in range(60)]
        for session in filler:
            log.remove(session.id)
        assert len(list(tmp_path.glob("*.turns"))) == 2  # the first, and the one that is written to
        assert log.sessions() == [pinned.id]
    with opened(tmp_path, max_bytes=32_000) as log:
        assert log.sessions() == [pinned.id]
        assert log.removed["removed"] == "deleted"


def test_one_gateway_writes_a_log(tmp_path: Path):
    with opened(tmp_path), pytest.raises(ConfigError, match="another gateway writes to it"):
        Log(tmp_path)
    with opened(tmp_path):
        pass


def test_a_folder_that_can_not_be_one(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be used"):
        Log(tmp_path / "file")


def test_only_its_owner_may_read_it(tmp_path: Path):
    with opened(tmp_path / "log") as log:
        new_session(log, "one")
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "log").iterdir())


# Which weights are sampled


def test_the_weights_that_were_named_last(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with opened(tmp_path) as log:
        assert log.read_weights() == WeightState(None, False)
        log.write_weights("1", paused=True)
        log.write_weights("é2", paused=False)
        assert log.read_weights() == WeightState("é2", False)
    with opened(tmp_path) as log:
        assert log.read_weights() == WeightState("é2", False)
        assert log.sessions() == []
    assert caplog.text == ""


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 5}', b"\xff"])
def test_weights_that_can_not_be_read_are_not_known(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture):
    with opened(tmp_path) as log:
        (tmp_path / "weights.json").write_bytes(content)
        assert log.read_weights() == WeightState()
    assert "say which weights were sampled" in caplog.text


# Disks that fail


def test_a_full_disk_is_counted_and_what_it_did_not_take_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.ERROR)
    with opened(tmp_path) as log:
        session = new_session(log, "one")
        add_turn(log, session)
        whole = log.size
        with files_of_at_most(whole + 20):
            add_turn(log, session)
            assert log.failures >= 1
            assert log.size == whole
            (segment,) = tmp_path.glob("*.turns")
            assert segment.stat().st_size == whole  # no half record is left
            add_turn(log, session)
        assert "could not be logged" in caplog.text
        assert "key of one" not in caplog.text
        add_turn(log, session)
    with opened(tmp_path) as log:
        read = log.load("one")
        assert read is not None
        assert [turn.index for turn in read.tree.turns] == [0, 1, 2, 3]
        for before, after in zip(session.tree.turns, read.tree.turns, strict=True):
            same(before, after)


def test_weights_that_the_disk_does_not_take(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with opened(tmp_path) as log:
        log.write_weights("1", paused=False)
        with files_of_at_most(5):
            log.write_weights("2", paused=True)
        assert log.failures == 1
        assert log.read_weights() == WeightState("1", False)
    assert "could not be logged" in caplog.text


def test_closing_writes_what_is_late(tmp_path: Path):
    with opened(tmp_path) as log:
        session = new_session(log, "one")
        with files_of_at_most(log.size):
            add_turn(log, session)
    with opened(tmp_path) as log:
        read = log.load("one")
        assert read is not None
        assert len(read.tree.turns) == 1


def test_a_session_removed_while_the_disk_fails_is_not_written_later(tmp_path: Path):
    with opened(tmp_path) as log:
        with files_of_at_most(0):
            new_session(log, "one")
            log.remove("one")
        new_session(log, "two")
    with opened(tmp_path) as log:
        assert log.sessions() == ["two"]


# A full log


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(Tokenizer(make_tokenizer()))


def test_a_full_log_takes_no_new_sessions_until_closed_ones_make_room(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> None:
        log = Log(tmp_path, max_bytes=40_000)
        core = Core(ScriptedEngine([]), renderer, log=log)
        opened: list[Session] = []
        with pytest.raises(GatewayFault) as refused:  # noqa: PT012
            for number in range(1000):
                opened.append(
                    core.sessions.open(read_settings({"session_id": f"s{number}", "metadata": {"x": "y" * 1000}}))
                )
        assert (refused.value.status, refused.value.code) == (503, "log_full")
        assert refused.value.retry_after
        assert 20 < len(opened) < 60
        for session in opened[:15]:
            core.sessions.end(session)
        newest = core.sessions.open(read_settings({"session_id": "newest"}))
        assert log.size < 40_000
        with pytest.raises(GatewayFault) as gone:
            core.sessions.get("s0")
        assert gone.value.status == 410
        assert core.sessions.get(opened[-1].id) is opened[-1]  # what is open stays
        assert core.sessions.get("newest") is newest
        await core.close()

    asyncio.run(run())
    with opened(tmp_path) as log:
        assert log.has("newest")
        assert not log.has("s0")


def test_making_room_takes_no_more_than_it_has_to(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> None:
        log = Log(tmp_path, max_bytes=40_000)
        core = Core(ScriptedEngine([]), renderer, log=log)
        while not log.full:
            core.sessions.end(core.sessions.open(read_settings({"metadata": {"x": "y" * 1000}})))
        before = log.sessions()
        core.sessions.open(read_settings({}))
        left = [name for name in before if log.has(name)]
        assert 0 < len(left) < len(before)
        assert left == before[-len(left) :]  # the oldest went
        assert all(core.sessions.get(name).closed for name in left)  # and those that stayed can be read
        await core.close()

    asyncio.run(run())


def test_an_old_session_that_stays_open_does_not_cost_the_closed_ones(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> None:
        log = Log(tmp_path, max_bytes=40_000)
        core = Core(ScriptedEngine([]), renderer, log=log)
        core.sessions.open(read_settings({"session_id": "old"}))
        while not log.full:
            core.sessions.end(core.sessions.open(read_settings({"metadata": {"x": "y" * 1000}})))
        before = log.sessions()
        core.sessions.open(read_settings({"session_id": "new"}))
        assert log.size < 40_000
        assert sum(log.has(name) for name in before) > len(before) // 3
        await core.close()

    asyncio.run(run())
    with opened(tmp_path) as log:
        assert log.has("old")
        assert log.has("new")
        assert all(log.load(name) is not None for name in log.sessions())


def test_a_log_full_of_open_sessions_refuses_more(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> None:
        log = Log(tmp_path, max_bytes=40_000)
        core = Core(ScriptedEngine([]), renderer, log=log)
        kept = []
        with pytest.raises(GatewayFault) as refused:  # noqa: PT012
            while True:
                assert not log.is_full
                kept.append(core.sessions.open(read_settings({"metadata": {"x": "y" * 1000}})))
        assert (refused.value.code, refused.value.retry_after) == ("log_full", 60)
        assert log.is_full
        for session in kept[:20]:
            core.sessions.delete(session.id)
        core.sessions.open(read_settings({}))
        assert not log.is_full
        await core.close()

    asyncio.run(run())


def test_a_session_that_stays_open_holds_back_only_segments_with_its_records(tmp_path: Path):
    with opened(tmp_path, max_bytes=80_000) as log:
        long = new_session(log, "long")
        for number in range(300):
            if number % 100 == 0:
                add_turn(log, long)
            log.remove(new_session(log, f"s{number}", metadata={"x": "y" * 1000}).id)
        assert log.size < 50_000
    with opened(tmp_path) as log:
        assert log.sessions() == ["long"]
        assert turns_of(log, "long") == 3
        assert log.damaged == 0


def test_long_integers_in_a_history_are_logged(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        new_session(log, "s")
        log.write("s", "x", messages=[{"arguments": {"n": 2**70, "m": [10**400]}}])
        _, record = SegmentIndex(tmp_path).records("s")
        assert record["messages"] == [{"arguments": {"n": 2.0**70, "m": [math.inf]}}]
