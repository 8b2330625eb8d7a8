"""Turns that share their tokens: each reads back what it was made of, whoever else goes on from the same one."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.gateway.record.turn import LOGPROBS, Turn


def made(index: int, parent: Turn | None, keep: int, delta: list[int], sampled: list[int]) -> Turn:
    logprobs = array(LOGPROBS, [0.0] * len(sampled))
    return Turn(index, parent, keep, array(IDS, delta), array(IDS, sampled), logprobs, "stop")


def buffers(turns: list[Turn]) -> int:
    return len({id(turn.buffer) for turn in turns})


numbers = st.lists(st.integers(0, 99), max_size=4)


@given(st.data())
def test_a_turn_reads_back_what_it_was_made_of(data: st.DataObject) -> None:
    turns: list[Turn] = []
    wholes: list[list[int]] = []
    for index in range(data.draw(st.integers(1, 12))):
        place = data.draw(st.none() | st.integers(0, index - 1)) if index else None
        parent, before = (None, []) if place is None else (turns[place], wholes[place])
        keep = data.draw(st.just(len(before)) | st.integers(0, len(before)))
        delta, sampled = data.draw(numbers), data.draw(numbers)
        turns.append(made(index, parent, keep, delta, sampled))
        wholes.append([*before[:keep], *delta, *sampled])
        for turn, whole in zip(turns, wholes, strict=True):  # also those that were there before
            assert turn.tokens().tolist() == whole
            assert turn.tokens(turn.prompt_length).tolist() == whole[: turn.prompt_length]
        assert (turns[-1].delta.tolist(), turns[-1].sampled.tolist()) == (delta, sampled)
        start, end = sorted(data.draw(st.tuples(st.integers(0, len(whole) + 2), st.integers(0, len(whole) + 2))))
        assert turns[-1].tokens(end, start).tolist() == whole[start:end]


def test_turns_that_continue_each_other_share_one_buffer() -> None:
    first = made(0, None, 0, [1, 2], [3])
    second = made(1, first, 3, [4], [5, 6])
    third = made(2, second, 6, [7], [8])
    assert buffers([first, second, third]) == 1
    assert first.tokens(99).tolist() == [1, 2, 3]


def test_another_that_continues_the_same_turn_has_a_buffer_of_its_own() -> None:
    first = made(0, None, 0, [1, 2], [3])
    one, other = made(1, first, 3, [4], [5]), made(2, first, 3, [40], [50])
    shorter = made(3, other, 4, [6], [7])
    assert buffers([first, one, other, shorter]) == 3
    assert [turn.tokens().tolist() for turn in (first, one, other, shorter)] == [
        [1, 2, 3],
        [1, 2, 3, 4, 5],
        [1, 2, 3, 40, 50],
        [1, 2, 3, 40, 6, 7],
    ]


def test_what_is_read_is_a_copy() -> None:
    turn = made(0, None, 0, [1], [2])
    for read in (turn.tokens(), turn.delta, turn.sampled):
        read[0] = 9
    assert turn.tokens().tolist() == [1, 2]
