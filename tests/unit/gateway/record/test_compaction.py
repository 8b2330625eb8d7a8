"""Room in a log that long sessions are spread over: what they need is copied together, and is read once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.call.core import Core
from agentcore_rl_toolkit.gateway.record.log import Log
from agentcore_rl_toolkit.gateway.record.replay import build_session
from agentcore_rl_toolkit.gateway.record.segments import PLACE_BITS, Index
from agentcore_rl_toolkit.gateway.record.session import Session, read_settings
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.log import add_turn, contents, files_of_at_most, new_session, opened, put, turns_of
from support.tokenizers import make_tokenizer


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(Tokenizer(make_tokenizer()))


def spread(log: Log, *, most: int) -> list[Session]:
    """Two sessions with a turn in each segment, between many that are removed."""
    sessions = [new_session(log, "long"), new_session(log, "longer")]
    number = 0
    while log.size < most:
        number += 1
        passing = new_session(log, f"passing{number}")
        for _ in range(4):
            add_turn(log, passing)
        log.remove(passing.id)
        if number % 3 == 0:
            for session in sessions:
                add_turn(log, session)
    return sessions


def uids(folder: Path, session_id: str) -> list[str]:
    session = build_session(Index(folder).records(session_id))
    assert session is not None
    return [turn.uid for turn in session.tree.turns]


def test_sessions_that_stay_open_do_not_fill_the_log(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> int:
        log = Log(tmp_path, max_bytes=80_000)
        core = Core(ScriptedEngine([]), renderer, log=log)
        long = core.sessions.open(read_settings({"session_id": "long"}))
        for number in range(300):
            if number % 10 == 0:
                add_turn(log, long)
            passing = core.sessions.open(read_settings({"metadata": {"x": "y" * 1000}}))
            core.sessions.delete(passing.id)
            assert log.size < 90_000
        assert not log.crowded
        await core.close()
        return len(long.tree.turns)

    turns = asyncio.run(run())
    assert sum(map(len, contents(tmp_path).values())) < 90_000
    with opened(tmp_path) as log:
        assert log.sessions() == ["long"]
        assert turns_of(log, "long") == turns
        assert log.damaged == 0


def test_closed_sessions_are_kept_where_copying_is_enough(tmp_path: Path):
    with opened(tmp_path, max_bytes=40_000) as log:
        sessions = spread(log, most=40_000)
        log.write("long", "closed")
        assert not log.make_room(iter(["long"]))
        assert log.size < 30_000
        assert log.has("long")
        for session in sessions:
            assert turns_of(log, session.id) == len(session.tree.turns)


def test_a_kill_at_any_byte_while_room_is_made_changes_no_session(tmp_path: Path):
    folder = tmp_path / "log"
    with opened(folder, max_bytes=16_000) as log:
        sessions = spread(log, most=16_000)
        before = contents(folder)
        with log._lock:  # nothing is unlinked until the copies are synced
            log.make_room(iter(()))
            after = contents(folder)
            doomed = [path.name for path in log._room.doomed]
        assert log.size < 12_000
    assert doomed
    assert after.keys() >= before.keys()
    assert all(after[name].startswith(data) for name, data in before.items())
    expected = {session.id: [turn.uid for turn in session.tree.turns] for session in sessions}
    state, states = dict(before), 0
    killed = put(tmp_path / "kill", state)
    for name in sorted(after):
        for size in range(len(before.get(name, b"")) + 1, len(after[name]) + 1):
            state[name] = after[name][:size]
            (killed / name).write_bytes(state[name])
            assert {one: uids(killed, one) for one in expected} == expected, (name, size)
            states += 1
    assert states > 1000
    for name in doomed:  # and while the old ones go
        del state[name]
        assert {one: uids(put(tmp_path / "kill", state), one) for one in expected} == expected
    assert {name: uids(folder, name) for name in expected} == expected
    assert not Index(folder).cut


def test_sessions_go_on_after_a_kill_while_room_was_made(tmp_path: Path):
    folder = tmp_path / "log"
    with opened(folder, max_bytes=16_000) as log:
        spread(log, most=16_000)
        with log._lock:
            log.make_room(iter(()))
            after = contents(folder)
    last = max(after)
    after[last] = after[last][:-10]  # the last of the records that name others
    with opened(put(tmp_path / "kill", after), max_bytes=16_000) as log:
        for name in ("long", "longer"):
            session = log.load(name)
            assert session is not None
            add_turn(log, session)
            turns = len(session.tree.turns)
            log.make_room(iter(()))
            assert turns_of(log, name) == turns
    with opened(tmp_path / "kill") as log:
        assert turns_of(log, "longer") == turns
        log.remove("long")
        log.remove("longer")
    with opened(tmp_path / "kill") as log:
        assert log.sessions() == []


def test_a_session_is_copied_in_pieces_and_stays_in_order(tmp_path: Path):
    with opened(tmp_path, max_bytes=24_000) as log:
        sessions = spread(log, most=24_000)
        segments = len(log._index.sizes)
        while log._room.clear(log._segment, 1):  # one record at a time
            assert turns_of(log, "long") == len(sessions[0].tree.turns)
        assert len(log._index.sizes) <= segments // 2
        index = log._index
        assert all(size >= 0 for size in index.used.values())
        for segment in index.sizes:
            assert index.used[segment] == sum(index.live[segment].values())
        assert {position >> PLACE_BITS for position in index.places["long"]} <= index.sizes.keys()
    with opened(tmp_path) as log:
        assert turns_of(log, "longer") == len(sessions[1].tree.turns)


def test_no_more_is_copied_at_once_than_asked_for(tmp_path: Path):
    with opened(tmp_path, max_bytes=64_000) as log:
        long = new_session(log, "long")
        for _ in range(6):
            add_turn(log, long)
        while len(log._index.sizes) < 2:
            passing = new_session(log, "passing")
            add_turn(log, passing)
            log.remove(passing.id)
        held = log._index.used[1]
        assert 0 < log._room.clear(log._segment, 1) < held / 2
        assert 0 < log._index.used[1] < held
        while log._room.clear(log._segment, 1):
            pass
        assert 1 not in log._index.sizes
        assert turns_of(log, "long") == 6


def test_a_disk_that_fails_while_room_is_made(tmp_path: Path):
    with opened(tmp_path, max_bytes=24_000) as log:
        sessions = spread(log, most=24_000)
        with files_of_at_most(0):
            log.make_room(iter(()))
        assert log.failures
        for session in sessions:
            assert turns_of(log, session.id) == len(session.tree.turns)
            add_turn(log, session)
        log.make_room(iter(()))
        assert log.size < 18_000
    with opened(tmp_path) as log:
        assert [turns_of(log, session.id) for session in sessions] == [len(one.tree.turns) for one in sessions]


def test_a_log_that_is_full_of_what_is_needed_says_so(tmp_path: Path, renderer: ChatRenderer):
    async def run() -> None:
        log = Log(tmp_path, max_bytes=40_000)
        core = Core(ScriptedEngine([]), renderer, log=log)
        kept = []
        with pytest.raises(GatewayFault) as refused:  # noqa: PT012
            while True:
                assert not log.crowded
                kept.append(core.sessions.open(read_settings({"metadata": {"x": "y" * 1000}})))
        assert (refused.value.code, refused.value.retry_after) == ("log_full", 60)
        assert log.crowded
        for session in kept[:20]:
            core.sessions.delete(session.id)
        core.sessions.open(read_settings({}))
        assert not log.crowded
        await core.close()

    asyncio.run(run())
