"""Frames of batch answers: what was packed comes out, in whatever pieces it arrives, and mangled bytes are refused."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.record.trajectory import Fidelity, RouteTable, Row, Trajectories
from agentcore_rl_toolkit.gateway.remote.frames import (
    BatchAnswer,
    FrameReader,
    PackedFault,
    PackedRow,
    PackedTrajectories,
    pack,
)

ROW = Row(
    token_ids=array(IDS, [5, 6, 7, 2**31 - 1]),
    loss_mask=np.array([0, 0, 1, 1], np.uint8),
    logprobs=np.array([np.nan, np.nan, -0.5, -1.5], np.float32),
    weight=0.5,
    prompt_length=2,
    spans=(),
    versions=(("7", 2, 4),),
    routes=RouteTable(np.arange(8, dtype=np.int32).reshape(4, 2), np.array([1, 1, 0, 1], np.uint8)),
)
FIDELITY = Fidelity(turns=1, sampled=2, trained=2, masked={}, rows=1, bridges=0, renders=1, parse_failures=0)
FOLDED = Trajectories((ROW,), FIDELITY, 1.25)
FRAMES = [
    BatchAnswer("a", trajectories=PackedTrajectories.of(FOLDED)),
    BatchAnswer("b", PackedFault("it is gone", 404, "session_closed")),
    BatchAnswer("c"),
]
PACKED = b"".join(map(pack, FRAMES))


@given(st.lists(st.integers(0, len(PACKED)), max_size=20))
def test_what_was_packed_comes_out_in_whatever_pieces_it_arrives(cuts: list[int]) -> None:
    reader, read = FrameReader(), list[BatchAnswer]()
    places = [0, *sorted(cuts), len(PACKED)]
    for start, end in itertools.pairwise(places):
        read += reader.feed(PACKED[start:end])
    assert [one.session_id for one in read] == ["a", "b", "c"]
    assert read[1].fault is not None
    assert (read[1].fault.fault().status, read[1].fault.fault().code) == (404, "session_closed")
    assert read[0].trajectories is not None
    folded = read[0].trajectories.trajectories()
    (row,) = folded.rows
    assert (row.token_ids, row.weight, row.versions) == (ROW.token_ids, 0.5, ROW.versions)
    np.testing.assert_array_equal(row.loss_mask, ROW.loss_mask)
    np.testing.assert_array_equal(row.logprobs, ROW.logprobs)
    assert row.routes is not None
    assert ROW.routes is not None
    np.testing.assert_array_equal(row.routes.data, ROW.routes.data)
    assert (folded.fidelity, folded.model_seconds) == (FOLDED.fidelity, 1.25)
    row.loss_mask[0] = 1  # a copy of the reader's own


@given(st.lists(st.tuples(st.integers(0, len(PACKED) - 1), st.integers(0, 255)), min_size=1, max_size=8), st.data())
def test_mangled_bytes_are_refused_or_rows_of_one_length(changes: list[tuple[int, int]], data: st.DataObject) -> None:
    mangled = bytearray(PACKED)
    for place, value in changes:
        mangled[place] = value
    del mangled[data.draw(st.integers(1, len(mangled))) :]
    try:
        for answer in FrameReader().feed(bytes(mangled)):
            if answer.trajectories is not None:
                for row in answer.trajectories.trajectories().rows:
                    assert len(row.token_ids) == len(row.loss_mask) == len(row.logprobs)
                    assert row.routes is None or len(row.routes.data) == len(row.token_ids)
            if answer.fault is not None:
                assert isinstance(answer.fault.fault(), GatewayFault)
    except (ValueError, msgspec.DecodeError):
        pass  # what the client tries again, and then gives up


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"token_ids": b"\x01"}, id="half a token"),
        pytest.param({"loss_mask": b"\x01" * 3}, id="a shorter mask"),
        pytest.param({"loss_mask": b"\x00\x00\x01\x02"}, id="a mask of something else"),
        pytest.param({"logprobs": b"\x00" * 12}, id="fewer logprobs"),
        pytest.param({"logprobs": np.full(4, np.nan, np.float32).tobytes()}, id="a trained token without a logprob"),
        pytest.param({"routes": (b"\x00" * 12, b"\x01" * 3)}, id="routes of fewer tokens"),
    ],
)
def test_rows_that_no_gateway_makes_are_refused(wrong: dict[str, object]) -> None:
    packed = PackedRow.of(ROW)
    with pytest.raises(ValueError, match=r"row|bytes|buffer|routes"):
        msgspec.structs.replace(packed, **wrong).row()
    assert packed.row().token_ids == ROW.token_ids


def test_a_frame_has_a_longest_size_and_is_not_waited_for_beyond() -> None:
    with pytest.raises(ValueError, match="a frame of 4294967295 bytes"):
        list(FrameReader().feed(b"\xff\xff\xff\xff"))


def test_text_that_utf8_cannot_carry_is_mended() -> None:
    odd = replace(FOLDED, transcript=replace(FOLDED.transcript, messages=({"role": "user", "content": "\ud800!"},)))
    (read,) = FrameReader().feed(pack(BatchAnswer("a", trajectories=PackedTrajectories.of(odd))))
    assert read.trajectories is not None
    assert read.trajectories.trajectories().transcript.messages[0]["content"].endswith("!")
