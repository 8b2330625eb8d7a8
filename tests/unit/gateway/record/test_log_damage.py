"""A log with damage in it: what is whole is read, what is not is counted, and neither is overwritten."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from agentcore_rl_toolkit.gateway.record.log import Log
from agentcore_rl_toolkit.gateway.record.replay import build_session
from agentcore_rl_toolkit.gateway.record.segments import HEAD, PLACE_BITS, SegmentIndex, pack_record
from support.log import add_turn, new_session, opened, turns_of


def segment_of(folder: Path) -> Path:
    return max(folder.glob("*.turns"))


def places_of(folder: Path, session_id: str) -> list[int]:
    return [position & (1 << PLACE_BITS) - 1 for position in SegmentIndex(folder).places[session_id]]


def change(path: Path, place: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[place : place + len(new)] = new
    path.write_bytes(data)


def written(folder: Path) -> Path:
    """Two sessions of six turns each, by turns."""
    with opened(folder) as log:
        sessions = [new_session(log, "one"), new_session(log, "other")]
        for _ in range(6):
            for session in sessions:
                add_turn(log, session)
    return segment_of(folder)


HEADS = {
    "a mark that is none": (10, b"\x09"),
    "an id of no letters": (8, b"\x00\x00"),
    "an id that goes on": (8, b"\x40\x00"),
    "a body that goes on": (0, b"\x00\x02"),
    "a body beyond the end": (2, b"\x7f"),
    "a body of nothing": (0, b"\x00\x00\x00\x00"),
    "another mark": (10, b"\x01"),
    "another session": (12, b"x"),
    "no session's name": (12, b"\xff"),
    "zeros": (0, bytes(200)),
    "another body": (60, b"\xff\xff"),
}


@pytest.mark.parametrize("damage", HEADS)
def test_damage_in_the_middle_costs_what_is_damaged_and_nothing_behind_it(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
):
    segment = written(tmp_path)
    place, (offset, new) = places_of(tmp_path, "one")[3], HEADS[damage]
    change(segment, place + offset, new)
    data = segment.read_bytes()
    with opened(tmp_path) as log:
        assert log.damaged == 1
        assert f"can't be read from byte {place} to" in caplog.text
        assert segment.read_bytes() == data
        assert turns_of(log, "other") == 6
        assert turns_of(log, "one") == 2
        (one, other) = (log.load(name) for name in ("one", "other"))
        assert one is not None
        assert other is not None
        assert (one.damaged, other.damaged) == (True, False)
    assert segment.read_bytes()[: len(data)] == data


@pytest.mark.parametrize("offset", range(0, 60, 7))
def test_any_byte_of_a_record_may_be_wrong(tmp_path: Path, offset: int):
    segment = written(tmp_path)
    place = places_of(tmp_path, "one")[3]
    for bit in range(8):
        data = bytearray(segment.read_bytes())
        data[place + offset] ^= 1 << bit
        folder = tmp_path / str(bit)
        folder.mkdir()
        (folder / segment.name).write_bytes(data)
        index = SegmentIndex(folder)
        assert index.sizes == {1: len(data)}
        assert len(index.unreadable) == 1
        read = [build_session(index.records(name)) for name in ("one", "other")]
        assert [len(session.tree.turns) for session in read if session is not None] == [2, 6]
        assert index.removed == {}


def test_damage_at_the_end_stays_and_what_comes_after_it_is_read(tmp_path: Path):
    segment = written(tmp_path)
    data = segment.read_bytes()
    change(segment, len(data) - 1, bytes([data[-1] ^ 1]))
    data = segment.read_bytes()
    with opened(tmp_path) as log:
        assert log.damaged == 1
        new_session(log, "new")
    assert segment.read_bytes()[: len(data)] == data
    with opened(tmp_path) as log:
        assert log.damaged == 1
        assert [turns_of(log, name) for name in ("one", "other", "new")] == [6, 5, 0]


@pytest.mark.parametrize("zeros", [12, 13, 4096])
def test_zeros_at_the_end_are_not_read_as_records(tmp_path: Path, zeros: int):
    segment = written(tmp_path)
    with open(segment, "ab") as file:
        file.write(bytes(zeros))
    with opened(tmp_path) as log:
        assert log.sessions() == ["one", "other"]
        assert log.damaged == 1
        new_session(log, "new")
    with opened(tmp_path) as log:
        assert [turns_of(log, name) for name in ("one", "other", "new")] == [6, 6, 0]


@pytest.mark.parametrize(
    "record", [pack_record("", b"\x81\xa4kind\xa1x"), pack_record("one", b""), pack_record("o/e", b"\x81\xa4kind\xa1x")]
)
def test_a_record_needs_a_name_and_a_body(tmp_path: Path, record: bytes):
    segment = written(tmp_path)
    segment.write_bytes(segment.read_bytes() + record)
    index = SegmentIndex(tmp_path)
    assert len(index.unreadable) == 1
    assert [len(index.places[name]) for name in ("one", "other")] == [7, 7]
    assert len(index.places) == 2


def test_a_head_that_was_cut_is_dropped(tmp_path: Path):
    segment = written(tmp_path)
    data = segment.read_bytes()
    segment.write_bytes(data + data[:10])
    with opened(tmp_path) as log:
        assert log.damaged == 0
    assert segment.read_bytes() == data


def test_a_file_of_anything_is_kept_and_passed_over(tmp_path: Path):
    dice = random.Random(5)
    tmp_path.joinpath("00000001.turns").write_bytes(garbage := dice.randbytes(100_000))
    with opened(tmp_path) as log:
        assert log.sessions() == []
        assert log.damaged == 1
        add_turn(log, new_session(log, "one"))
    assert tmp_path.joinpath("00000001.turns").read_bytes()[: len(garbage)] == garbage
    with opened(tmp_path) as log:
        assert turns_of(log, "one") == 1


def test_looking_for_the_next_record_reads_each_byte_a_few_times(tmp_path: Path):
    """Heads that promise much, all over the damage, are not each followed to their ends."""
    like = HEAD.pack(3_000_000, 7, 3, 0) + b"abc"
    tmp_path.joinpath("00000001.turns").write_bytes(like * 300_000 + pack_record("one", b"\x81\xa4kind\xa7session"))
    index = SegmentIndex(tmp_path)  # following each would be 900 gigabytes
    assert list(index.places) == ["one"]
    assert len(index.unreadable) == 1


def test_a_body_that_is_none_is_damage(tmp_path: Path):
    with opened(tmp_path) as log:
        add_turn(log, new_session(log, "one"))
    segment = segment_of(tmp_path)
    segment.write_bytes(segment.read_bytes() + pack_record("one", b"\x81\xa4kind"))
    with opened(tmp_path) as log:
        assert turns_of(log, "one") == 1
        assert log.damaged == 1


def test_other_things_of_a_segments_name_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = tmp_path / "log"
    written(folder)
    (folder / "00000002.turns").mkdir()
    (folder / "00000003.turns").symlink_to(tmp_path / "nowhere")
    with opened(folder, max_bytes=8) as log:
        assert "is not a file" in caplog.text
        session = new_session(log, "new")
        add_turn(log, session)
        assert log.failures == 0
    assert not (tmp_path / "nowhere").exists()
    with opened(folder) as log:
        assert [turns_of(log, name) for name in ("one", "other", "new")] == [6, 6, 1]


# What comes after damage


def damaged(folder: Path) -> Path:
    segment = written(folder)
    change(segment, places_of(folder, "one")[4] + 60, b"\xff\xff")
    return segment


def test_turns_after_damage_are_there_after_the_next_restart(tmp_path: Path):
    damaged(tmp_path)
    with opened(tmp_path) as log:
        session = log.load("one")
        assert session is not None
        assert len(session.tree.turns) == 3
        for _ in range(4):
            add_turn(log, session)
    for _ in range(2):
        with opened(tmp_path) as log:
            read = log.load("one")
            assert read is not None
            assert [turn.uid for turn in read.tree.turns] == [turn.uid for turn in session.tree.turns]
            assert read.damaged
            assert log.damaged == 1
            assert turns_of(log, "other") == 6


def test_a_kill_at_any_byte_after_damage_leaves_the_readable_turns(tmp_path: Path):
    segment = damaged(tmp_path)
    before = segment.stat().st_size
    with opened(tmp_path) as log:
        session = log.load("one")
        assert session is not None
        ends = []
        for _ in range(2):
            add_turn(log, session)
            ends.append(log.size)
    data = segment.read_bytes()
    for cut in range(before, len(data) + 1):
        folder = tmp_path / "cut"
        folder.mkdir(exist_ok=True)
        (folder / segment.name).write_bytes(data[:cut])
        index = SegmentIndex(folder)
        read = build_session(index.records("one"))
        assert read is not None
        assert len(read.tree.turns) == 3 + sum(end <= cut for end in ends), cut
        assert index.damaged_sessions == {"one"}


def test_an_undelivered_missing_turn_ends_the_session_before_it(tmp_path: Path):
    """The damage took away whose record it was."""
    segment = written(tmp_path)
    place, end = places_of(tmp_path, "one")[2], places_of(tmp_path, "other")[2]
    change(segment, place, bytes(end - place))
    with opened(tmp_path) as log:
        log.write("one", "masked", index=5, reason="undelivered")
        session = log.load("one")
        assert session is not None
        assert (len(session.tree.turns), session.damaged) == (1, True)


def test_a_mask_of_a_turn_that_is_missing(tmp_path: Path):
    with opened(tmp_path) as log:
        add_turn(log, new_session(log, "one"))
        log.write("one", "masked", index=1, reason="undelivered")
    with opened(tmp_path) as log:
        session = log.load("one")
        assert session is not None
        assert (len(session.tree.turns), session.damaged) == (1, True)


def test_a_damaged_session_can_be_removed_and_opened_anew(tmp_path: Path):
    segment = damaged(tmp_path)
    with opened(tmp_path) as log:
        assert log.load("one") is not None
        log.remove("one")
    with opened(tmp_path) as log:
        assert log.removed == {"one": "deleted"}
        add_turn(log, new_session(log, "one"))
    with opened(tmp_path) as log:
        session = log.load("one")
        assert session is not None
        assert (len(session.tree.turns), session.damaged) == (1, False)
    assert os.path.exists(segment)


def test_a_session_without_its_first_record_is_lost(tmp_path: Path):
    segment = written(tmp_path)
    change(segment, places_of(tmp_path, "one")[0] + 60, b"\xff\xff")
    with opened(tmp_path) as log:
        assert log.sessions() == ["other"]
        assert log.damaged == 1
        assert turns_of(log, "other") == 6
        add_turn(log, new_session(log, "one"))
    with opened(tmp_path) as log:
        assert turns_of(log, "one") == 1


def test_a_segment_that_is_missing(tmp_path: Path):
    with opened(tmp_path, max_bytes=8 * 1000) as log:
        session = new_session(log, "one")
        for _ in range(8):
            add_turn(log, session)
    assert len(list(tmp_path.glob("*.turns"))) > 3
    (tmp_path / "00000002.turns").unlink()
    log = Log(tmp_path)
    read = log.load("one")
    assert read is not None
    assert read.damaged
    assert 0 < len(read.tree.turns) < 8
    log.close()
