"""The order of rows where a trainer leaves it to us."""

from __future__ import annotations

from agentcore_rl_toolkit.backends.loop.row_order import rows_of_step


def test_rows_go_round_in_another_order_each_time_and_the_same_on_every_run() -> None:
    rows = [{"prompt": str(n)} for n in range(5)]
    steps = [[row["prompt"] for row in rows_of_step(rows, step, 2, seed=1)] for step in range(5)]
    flat = [prompt for step in steps for prompt in step]
    assert sorted(flat[:5]) == sorted(flat[5:]) == ["0", "1", "2", "3", "4"]
    assert flat[:5] != flat[5:]
    assert rows_of_step(rows, 3, 2, seed=1) == [rows[int(n)] for n in steps[3]]
    assert [rows_of_step(rows, step, 2, seed=2) for step in range(5)] != [
        rows_of_step(rows, s, 2, seed=1) for s in range(5)
    ]
