"""Which rows a step trains on: all in turn, in their shares, without those that have just taught nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.backends.loop.rows.row_order import RowOrder, name_sources
from agentcore_rl_toolkit.errors import ConfigError


def order(*files: tuple[str, int, float], count: int = 2, seed: int = 1, **more: Any) -> RowOrder:
    return RowOrder(name_sources(files or [("rows.jsonl", 5, 1.0)]), count, seed, **more)


def test_rows_go_round_in_another_order_each_time_and_the_same_on_every_run() -> None:
    steps = [order().step(step) for step in range(5)]
    flat = [number for step in steps for number in step]
    assert sorted(flat[:5]) == sorted(flat[5:]) == [0, 1, 2, 3, 4]
    assert flat[:5] != flat[5:]
    again = order()
    assert [again.step(step) for step in (3, 0, 4)] == [steps[3], steps[0], steps[4]]
    assert [order(seed=2).step(step) for step in range(5)] != steps


def test_every_step_has_its_share_of_each_file() -> None:
    mixed = order(("a.jsonl", 40, 1.0), ("b.jsonl", 10, 2.0), ("c.jsonl", 6, 0.5), count=7)
    steps = [mixed.step(step) for step in range(40)]
    named = [[mixed.source_of(number).name for number in step] for step in steps]
    assert [Counter(step) for step in named] == [Counter(a=2, b=4, c=1)] * 40
    of_b = [number for step in steps for number in step if mixed.source_of(number).name == "b"]
    assert all(sorted(of_b[at : at + 10]) == [*range(40, 50)] for at in range(0, 160, 10))  # each epoch has all of them


def test_files_of_one_name_and_the_same_file_twice() -> None:
    assert [one.name for one in name_sources([("a/x.jsonl", 1, 1.0), ("y.csv", 1, 1.0)])] == ["x", "y"]
    with pytest.raises(ConfigError, match=r"a file of rows is named twice: x\.jsonl, x\.csv"):
        name_sources([("x.jsonl", 1, 1.0), ("x.csv", 1, 1.0)])


def run(rows: RowOrder, steps: int, teaches: Mapping[int, bool]) -> list[list[int]]:
    """The rows of some steps, each of which has come to what `teaches` says."""
    chosen = []
    for step in range(steps):
        chosen.append(rows.step(step))
        rows.add(step, {number: teaches[number] for number in chosen[-1] if number in teaches})
    return chosen


def test_a_row_that_taught_nothing_is_left_out_for_a_while() -> None:
    rows = order(("r.jsonl", 4, 1.0), count=1, skip_epochs=2)
    flat = [number for (number,) in run(rows, 18, {0: False, 1: True, 2: True})]  # of row 3 nothing is known
    epochs = [flat[0:4], flat[4:7], flat[7:10], flat[10:14], flat[14:17]]
    assert [0 in epoch for epoch in epochs] == [True, False, False, True, False]
    assert [sorted({*epoch} - {0}) for epoch in epochs] == [[1, 2, 3]] * 5
    assert rows.skipped == 1
    plain = order(("r.jsonl", 4, 1.0), count=1)
    assert Counter(number for (number,) in run(plain, 16, {0: False})) == {0: 4, 1: 4, 2: 4, 3: 4}


def test_rows_come_back_if_none_teaches() -> None:
    rows = order(("r.jsonl", 3, 1.0), count=3, skip_epochs=5)
    chosen = run(rows, 6, dict.fromkeys(range(3), False))
    assert [sorted(step) for step in chosen] == [[0, 1, 2]] * 6


OUTCOMES = st.lists(st.dictionaries(st.integers(0, 8), st.booleans()), min_size=12, max_size=12)


@given(OUTCOMES, st.integers(0, 3), st.integers(0, 12), st.integers(0, 3))
def test_a_resumed_run_has_the_same_rows(
    outcomes: list[dict[int, bool]], ahead: int, resumed: int, skip_epochs: int
) -> None:
    def fresh() -> RowOrder:
        return order(("a.jsonl", 6, 1.0), ("b.jsonl", 3, 0.5), count=3, skip_epochs=skip_epochs, ahead=ahead)

    def from_step(start: int) -> list[list[int]]:
        rows, chosen = fresh(), {}
        for step in range(start):
            rows.add(step, outcomes[step])
        for version in range(start, 12):
            for step in range(version, min(12, version + ahead + 1)):  # those that may have started by then
                chosen.setdefault(step, rows.step(step))
            rows.add(version, outcomes[version])
        return [chosen[step] for step in range(start, 12)]

    assert from_step(resumed) == from_step(0)[resumed:]


def test_spares_are_seeded_in_their_shares_and_leave_out_the_same_rows() -> None:
    def spares(seed: int = 1, process: int = 0, **more: Any) -> list[int]:
        rows = order(("a.jsonl", 4, 1.0), ("b.jsonl", 4, 3.0), count=8, seed=seed, **more)
        rows.step(0)
        rows.add(0, {0: False, 4: False, 5: False})
        rows.step(1)
        return rows.spares(1, process, 400)

    assert spares() == spares()
    assert spares() != spares(seed=2)
    assert spares() != spares(process=1)
    assert {*spares()} == {*range(8)}
    assert {*spares(skip_epochs=3)} == {1, 2, 3, 6, 7}
    assert 250 < sum(number >= 4 for number in spares()) < 350
