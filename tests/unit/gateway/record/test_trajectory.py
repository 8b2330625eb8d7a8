"""Turns folded into rows: every sampled token trained once or masked for a reason, whatever the tree looks like."""

from __future__ import annotations

import itertools
import math
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.engine.base import IDS, Routes, Sampled
from agentcore_rl_toolkit.gateway.record.reasons import ABORTED, ENGINE_ERROR, NO_LOGPROB, TRUNCATED, UNDELIVERED
from agentcore_rl_toolkit.gateway.record.trajectory import Row, Trajectories, fold
from agentcore_rl_toolkit.gateway.record.turn import LOGPROBS, Draft, Turn

WIDTH = 2


class Session:
    """Turns with ids that occur nowhere else, so that each token of a row tells where it comes from."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._ids = itertools.count(1)

    def turn(
        self,
        parent: Turn | None = None,
        keep: int | None = None,
        *,
        delta: int = 2,
        sampled: int = 3,
        lost: Sequence[int] = (),
        **settings: Any,
    ) -> Turn:
        """A turn that goes on from `parent` with `delta` new tokens; logprobs are minus the id, `lost` ones NaN."""
        ids = array(IDS, itertools.islice(self._ids, sampled))
        turn = Turn(
            index=len(self.turns),
            parent=parent,
            keep=0 if parent is None else parent.length if keep is None else keep,
            delta_ids=array(IDS, itertools.islice(self._ids, delta)),
            sampled_ids=ids,
            logprobs=array(LOGPROBS, [math.nan if i in lost else -float(token) for i, token in enumerate(ids)]),
            finish=settings.pop("finish", "stop"),
            **settings,
        )
        self.turns.append(turn)
        return turn

    def fold(self, **settings: Any) -> Trajectories:
        return fold(self.turns, **settings)


def trained(row: Row) -> list[int]:
    return [token for token, train in zip(row.token_ids, row.loss_mask, strict=True) if train]


def route(position: int, token: int) -> int:
    return (position * 7 + token) % 251


def routes(turn: Turn, start: int) -> Routes | None:
    """What an engine says of a turn: routes from `start` on, of all but the last token, which it never ran."""
    ids = turn.tokens()
    data = b"".join(bytes([route(place, ids[place])]) * WIDTH for place in range(start, turn.length - 1))
    return Routes(start, data, WIDTH) if data else None


def known(turn: Turn | None, end: int) -> set[int]:
    """Positions below `end` that a turn or those before it have routes of."""
    if turn is None:
        return set()
    own = turn.routes
    covered = known(turn.parent, min(end, turn.keep))
    return covered | ({p for p in range(own.start, own.start + own.count) if p < end} if own is not None else set())


def ancestors(turn: Turn) -> Iterator[tuple[Turn, int]]:
    """Turns before, and how many of their tokens are part of the turn."""
    kept = turn.keep
    for before in itertools.islice(turn.path(), 1, None):
        kept = min(kept, before.length)
        yield before, kept
        kept = min(kept, before.keep)


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    session = Session()
    for _ in range(draw(st.integers(1, 9))):
        parent = draw(st.sampled_from([*session.turns, None]))
        full = 0 if parent is None else parent.length
        sampled = draw(st.sampled_from([2, 1, 3, 4, 0]))
        split = draw(st.integers(0, sampled))
        turn = session.turn(
            parent,
            draw(st.one_of(st.just(full), st.integers(0, full))),
            delta=draw(st.integers(0, 3)),
            sampled=sampled,
            lost=draw(st.sampled_from([(), (), (0,), (1,), (0, 1, 2, 3)])),
            masked=draw(st.sampled_from([None] * 6 + [ABORTED, ENGINE_ERROR, UNDELIVERED])),
            finish=draw(st.sampled_from(["stop", "stop", "length"])),
            origin=draw(st.sampled_from(["bridge", "render"])),
            versions=draw(st.sampled_from([(), (("1", sampled),), (("1", split), ("2", sampled - split))])),
            parse_failures=draw(st.integers(0, 1)),
        )
        if turn.length > 1 and draw(st.booleans()):
            before = known(parent, turn.keep)
            first = next(p for p in itertools.count() if p not in before)
            turn.routes = routes(turn, draw(st.integers(0, min(first, turn.length - 1))))
    return session


def reason(session: Session, turn: Turn, mask_truncated: bool) -> str | None:
    """Why a turn is not trained on, said in another way than the code does."""
    why = turn.masked
    if why == UNDELIVERED:
        after = [t for t in session.turns if t.parent is turn]
        if any((t.origin == "bridge" and t.keep > turn.prompt_length) or t.keep == turn.length for t in after):
            why = None
    return why or (TRUNCATED if mask_truncated and turn.finish == "length" else None)


@given(sessions(), st.booleans())
def test_every_sampled_token_is_trained_once_or_masked_for_one_reason(session: Session, mask_truncated: bool) -> None:
    folded = session.fold(mask_truncated=mask_truncated)
    expected: set[int] = set()
    masked: dict[str, int] = {}
    for turn in session.turns:
        why = reason(session, turn, mask_truncated)
        for token, logprob in zip(turn.sampled, turn.logprobs, strict=True):
            out = why or (NO_LOGPROB if math.isnan(logprob) else None)
            if out is None:
                expected.add(token)
            else:
                masked[out] = masked.get(out, 0) + 1
    seen = [token for row in folded.rows for token in trained(row)]
    assert len(seen) == len(set(seen))
    assert set(seen) == expected
    fidelity = folded.fidelity
    assert fidelity.masked == masked
    assert fidelity.trained == len(expected)
    assert fidelity.sampled == fidelity.trained + sum(fidelity.masked.values())
    assert fidelity.rows == len(folded.rows)
    assert fidelity.turns == len(session.turns)
    assert fidelity.parse_failures == sum(turn.parse_failures for turn in session.turns)
    assert fidelity.bridges == sum(turn.origin == "bridge" for turn in session.turns)
    assert fidelity.renders == sum(turn.origin == "render" for turn in session.turns)


@given(sessions())
def test_a_row_is_what_the_model_saw(session: Session) -> None:
    for row in session.fold().rows:
        end = session.turns[row.spans[-1].turn]
        assert row.token_ids == end.tokens()
        assert len(row.loss_mask) == len(row.logprobs) == len(row.token_ids)
        sampled = {place for span in row.spans for place in range(span.start, span.end)}
        for place, (token, logprob) in enumerate(zip(row.token_ids, row.logprobs, strict=True)):
            if place in sampled and not math.isnan(logprob):
                assert logprob == -float(token)
            else:
                assert math.isnan(logprob)
                assert not row.loss_mask[place]
        assert row.prompt_length == min(sampled)


@given(sessions())
def test_spans_and_versions_are_those_of_the_turns_in_the_row(session: Session) -> None:
    for row in session.fold().rows:
        end = session.turns[row.spans[-1].turn]
        whole = [turn for turn, kept in ancestors(end) if kept == turn.length]
        assert [span.turn for span in row.spans] == [turn.index for turn in [*reversed(whole), end]]
        versions = []
        for span in row.spans:
            turn = session.turns[span.turn]
            assert (span.start, span.end, span.finish) == (turn.prompt_length, turn.length, turn.finish)
            assert row.token_ids[span.start : span.end] == turn.sampled
            usable = [not math.isnan(logprob) for logprob in turn.logprobs]
            assert row.loss_mask[span.start : span.end].tolist() == [span.trained and use for use in usable]
            versions += [(version, token) for version, count in turn.versions for token in range(count)]
        assert [(v, i) for v, start, stop in row.versions for i in range(stop - start)] == versions
        assert all(any(s.start <= start and stop <= s.end for s in row.spans) for _, start, stop in row.versions)


@given(sessions(), st.booleans())
def test_a_session_counts_once_and_rows_by_what_they_train(session: Session, mask_truncated: bool) -> None:
    folded = session.fold(mask_truncated=mask_truncated)
    if folded.rows:
        assert math.fsum(row.weight for row in folded.rows) == pytest.approx(1.0)
    for row in folded.rows:
        assert row.trained == len(trained(row)) > 0
        assert row.weight == pytest.approx(row.trained / folded.fidelity.trained)


@given(sessions(), st.booleans())
def test_no_row_could_have_been_trained_as_part_of_another(session: Session, mask_truncated: bool) -> None:
    """So a masked or empty end takes none of the turns before it into its own row."""
    rows = session.fold(mask_truncated=mask_truncated).rows
    for one, other in itertools.permutations(rows, 2):
        assert other.token_ids[: len(one.token_ids)] != one.token_ids
    for row in rows:
        assert row.spans[-1].trained


@given(sessions())
def test_routes_stay_with_their_tokens_across_turns(session: Session) -> None:
    for row in session.fold().rows:
        end = session.turns[row.spans[-1].turn]
        if row.routes is None:
            assert all(turn.routes is None for turn in end.path())
            continue
        there = {place for place, flag in enumerate(row.routes.known) if flag}
        assert there == known(end, end.length)
        for place, token in enumerate(row.token_ids):
            wanted = route(place, token) if place in there else 0
            assert row.routes.data[place].tolist() == [wanted] * WIDTH


# Shapes


def test_turns_that_go_on_from_each_other_are_one_row() -> None:
    session = Session()
    turn = session.turn()
    for _ in range(5):
        turn = session.turn(turn, origin="bridge")
    folded = session.fold()
    (row,) = folded.rows
    assert row.weight == 1.0
    assert len(row.token_ids) == 6 * 5
    assert row.loss_mask.tolist() == [0, 0, 1, 1, 1] * 6
    assert row.prompt_length == 2
    assert (folded.fidelity.trained, folded.fidelity.bridges, folded.fidelity.masked) == (18, 5, {})


def test_choices_of_one_call_are_rows_that_share_a_prompt() -> None:
    session = Session()
    root = session.turn(delta=4)
    first = session.turn(root)
    others = [session.turn(first, first.prompt_length, delta=0) for _ in range(2)]
    after = session.turn(others[0])
    rows = session.fold().rows
    assert [row.spans[-1].turn for row in rows] == [first.index, others[1].index, after.index]
    assert [row.trained for row in rows] == [6, 3, 6]  # the root is trained in the first, which came first
    assert [len(row.spans) for row in rows] == [2, 2, 3]
    assert all(row.token_ids[: first.prompt_length] == first.tokens(first.prompt_length) for row in rows)


def test_compaction_is_a_second_row_with_what_is_left_of_the_prompt() -> None:
    session = Session()
    one = session.turn(delta=6)
    two = session.turn(one)
    compacted = session.turn(one, 4, delta=5, origin="render")
    last = session.turn(compacted)
    rows = session.fold().rows
    assert [[span.turn for span in row.spans] for row in rows] == [
        [one.index, two.index],
        [compacted.index, last.index],
    ]
    assert rows[1].token_ids[:4] == one.tokens(4)
    assert rows[1].prompt_length == 9
    assert [row.weight for row in rows] == [0.5, 0.5]


def test_a_branch_of_a_branch_has_only_what_both_kept() -> None:
    session = Session()
    one = session.turn(delta=4)
    branch = session.turn(one, 2, delta=9)
    again = session.turn(branch, branch.prompt_length - 1)
    assert [[span.turn for span in row.spans] for row in session.fold().rows] == [
        [one.index],
        [branch.index],
        [again.index],
    ]


def test_a_sub_agent_is_a_row_and_the_main_agent_stays_one() -> None:
    session = Session()
    main = session.turn(delta=6)
    helper = session.turn(delta=3, origin="render")
    helped = session.turn(helper)
    resumed = session.turn(main)
    rows = session.fold().rows
    assert [[span.turn for span in row.spans] for row in rows] == [
        [helper.index, helped.index],
        [main.index, resumed.index],
    ]


def test_an_undelivered_retry_is_masked_alone() -> None:
    session = Session()
    first = session.turn()
    lost = session.turn(first, masked=ABORTED)
    again = session.turn(lost, lost.prompt_length, delta=0)
    folded = session.fold()
    (row,) = folded.rows
    assert [span.turn for span in row.spans] == [first.index, again.index]
    assert folded.fidelity.masked == {ABORTED: 3}


def test_of_two_masked_ends_the_shorter_takes_nothing_from_the_longer() -> None:
    session = Session()
    first = session.turn()
    session.turn(first, masked=ABORTED)
    second = session.turn(first)
    session.turn(second, masked=ENGINE_ERROR)
    (row,) = session.fold().rows
    assert [span.turn for span in row.spans] == [first.index, second.index]
    assert row.trained == 6


def test_a_turn_with_nothing_sampled_takes_nothing_with_it() -> None:
    session = Session()
    first = session.turn()
    session.turn(first, sampled=0)
    second = session.turn(first)
    session.turn(first, lost=(0, 1, 2))
    (row,) = session.fold().rows
    assert [span.turn for span in row.spans] == [first.index, second.index]


def test_a_masked_turn_in_the_middle_is_context() -> None:
    session = Session()
    first = session.turn()
    cut = session.turn(first, finish="length")
    session.turn(cut)
    folded = session.fold(mask_truncated=True)
    (row,) = folded.rows
    assert row.loss_mask.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert [span.trained for span in row.spans] == [True, False, True]
    assert row.logprobs[7:10].tolist() == [-float(token) for token in cut.sampled]
    assert folded.fidelity.masked == {TRUNCATED: 3}
    assert session.fold().fidelity.masked == {}


def test_an_undelivered_reply_that_is_gone_on_from_was_received() -> None:
    session = Session()
    first = session.turn(masked=UNDELIVERED)
    assert session.fold().fidelity.masked == {UNDELIVERED: 3}
    session.turn(first, origin="bridge")
    assert session.fold().fidelity.masked == {}


def test_an_undelivered_choice_was_not_received_because_there_is_another_one() -> None:
    session = Session()
    first = session.turn()
    lost = session.turn(first, masked=UNDELIVERED, origin="bridge")
    session.turn(lost, lost.prompt_length, delta=0, masked=UNDELIVERED, origin="bridge")
    assert session.fold().fidelity.masked == {UNDELIVERED: 6}


def test_an_undelivered_reply_that_another_only_begins_like_was_not_received() -> None:
    session = Session()
    lost = session.turn(masked=UNDELIVERED)
    session.turn(lost, lost.prompt_length + 1, origin="render")
    assert session.fold().fidelity.masked == {UNDELIVERED: 3}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_logprob_that_is_not_a_number_is_never_trained_on(value: float) -> None:
    session = Session()
    turn = session.turn()
    turn.logprobs[1] = value
    folded = session.fold()
    assert folded.rows[0].loss_mask.tolist() == [0, 0, 1, 0, 1]
    assert folded.fidelity.masked == {NO_LOGPROB: 1}


def test_a_session_with_nothing_to_train_on_has_no_row() -> None:
    session = Session()
    session.turn(masked=ABORTED)
    session.turn(sampled=0)
    folded = session.fold()
    assert folded.rows == ()
    assert (folded.fidelity.sampled, folded.fidelity.trained, folded.fidelity.turns) == (3, 0, 2)
    assert fold([]).rows == ()


def test_the_route_of_the_last_sampled_token_comes_from_the_next_turns_prefill() -> None:
    session = Session()
    one = session.turn()
    one.routes = routes(one, 0)
    two = session.turn(one)
    two.routes = routes(two, one.length - 1)
    (row,) = session.fold().rows
    assert row.routes is not None
    assert row.routes.known.tolist() == [1] * (two.length - 1) + [0]
    assert row.routes.data[one.length - 1].tolist() == [route(one.length - 1, one.sampled[-1])] * WIDTH


def test_a_branch_takes_only_the_routes_of_what_it_kept() -> None:
    session = Session()
    one = session.turn(delta=4)
    one.routes = routes(one, 0)
    session.turn(one, 2)
    table = session.fold().rows[1].routes
    assert table is not None
    assert table.known.tolist() == [1, 1, 0, 0, 0, 0, 0]
    assert not table.data[2:].any()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_routes_of_any_size_are_read_little_endian(size: int) -> None:
    session = Session()
    turn = session.turn(delta=1, sampled=2)
    turn.routes = Routes(0, b"".join(n.to_bytes(size, "little") for n in (200, 3, 5, 7)), 2, size)
    table = session.fold().rows[0].routes
    assert table is not None
    assert table.data.tolist() == [[200, 3], [5, 7], [0, 0]]


# Tokens, cost and memory


@given(sessions(), st.data())
def test_any_stretch_of_a_turns_tokens_is_cut_from_the_whole(session: Session, data: st.DataObject) -> None:
    for turn in session.turns:
        whole = turn.tokens()
        assert len(whole) == turn.length
        assert turn.tokens(turn.prompt_length) == whole[: turn.prompt_length]
        start, end = sorted(data.draw(st.tuples(st.integers(0, turn.length), st.integers(0, turn.length))))
        assert turn.tokens(end, start) == whole[start:end]


def chain(turns: int) -> Session:
    session = Session()
    turn = session.turn(delta=8, sampled=8)
    for _ in range(turns - 1):
        turn = session.turn(turn, delta=8, sampled=8)
    return session


def kept_bytes(turns: Sequence[Turn]) -> int:
    buffers = {id(turn.buffer): len(turn.buffer) for turn in turns}
    return 4 * sum(buffers.values()) + sum(turn.logprobs.itemsize * len(turn.logprobs) for turn in turns)


def test_a_session_keeps_four_bytes_a_token_and_four_a_logprob() -> None:
    session = chain(50)
    last = session.turns[-1]
    assert kept_bytes(session.turns) == 4 * last.length + 4 * 50 * 8
    assert not hasattr(last, "__dict__")
    (row,) = session.fold().rows
    assert sys.getsizeof(row.token_ids) < 5 * last.length
    assert len(repr(last)) < 500
    assert row.loss_mask.nbytes + row.logprobs.nbytes == 5 * last.length


def test_tokens_of_no_known_version_keep_the_others_in_place() -> None:
    draft = Draft(0.0)
    draft.add_chunk(Sampled([5, 6], [-1.0, -1.0]), None)
    draft.add_chunk(Sampled([7], [-1.0], weight_version="2"), None)
    draft.add_chunk(Sampled([8], [-1.0], weight_version="3"), None)
    assert draft.known_versions() == (("", 2), ("2", 1), ("3", 1))
    turn = Turn(0, None, 0, array(IDS, [1, 2]), draft.sampled, draft.logprobs, "stop", draft.known_versions())
    (row,) = fold([turn]).rows
    assert row.versions == (("2", 4, 5), ("3", 5, 6))


def test_no_known_version_at_all_is_none() -> None:
    draft = Draft(0.0)
    draft.add_chunk(Sampled([5, 6], [-1.0, -1.0]), None)
    assert draft.known_versions() == ()
