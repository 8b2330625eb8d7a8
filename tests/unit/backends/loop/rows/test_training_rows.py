"""A run that is resumed gets the rows of one that never stopped, because the outcomes of its steps are on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.loop.rows.training_rows import TrainingRows
from agentcore_rl_toolkit.backends.settings import LoopSettings
from agentcore_rl_toolkit.rollout import Judge
from support.rollouts import make_group, make_rollout, make_row

STEPS, COUNT = 12, 7


def open_rows(folder: Path, start: int | None, ahead: int = 0) -> TrainingRows:
    settings = LoopSettings(data="all.jsonl", output=str(folder), rows_per_step=2, skip_epochs=2, async_steps=ahead)
    rows = TrainingRows(settings, lambda path: [{"number": number} for number in range(COUNT)])
    rows.resume(start)
    return rows


def run_steps(rows: TrainingRows, start: int, end: int) -> list[list[int]]:
    """The numbers of the rows of these steps; only rows 0, 3 and 6 teach something."""
    asked = []
    for step in range(start, end):
        chosen = rows.of_step(step)
        asked.append([row["number"] for row in chosen])
        groups = [replace(make_group(*_rollouts(row)), payload=row) for row in chosen]
        rows.measure(step, groups, Judge())
    return asked


def _rollouts(row: dict[str, Any]) -> list[Any]:
    rewards = (0.0, 1.0) if row["number"] % 3 == 0 else (1.0, 1.0)
    return [make_rollout(reward, make_row(), sample=sample) for sample, reward in enumerate(rewards)]


def test_a_resumed_run_goes_on_with_the_same_rows(tmp_path: Path) -> None:
    whole = run_steps(open_rows(tmp_path, None), 0, STEPS)
    assert {number for step in whole[4:] for number in step} >= {0, 3, 6}
    kept = (tmp_path / "row_outcomes.jsonl").read_text()
    for start in range(1, STEPS):
        (tmp_path / "row_outcomes.jsonl").write_text(kept + '{"st')  # as a kill may leave it
        assert run_steps(open_rows(tmp_path, start), start, STEPS) == whole[start:]
        steps = [json.loads(line)["step"] for line in (tmp_path / "row_outcomes.jsonl").read_text().splitlines()]
        assert steps == list(range(STEPS)), "each step counts once"


def test_a_new_run_forgets_the_outcomes_of_an_earlier_one(tmp_path: Path) -> None:
    whole = run_steps(open_rows(tmp_path, None), 0, STEPS)
    assert run_steps(open_rows(tmp_path, None), 0, STEPS) == whole
    assert len((tmp_path / "row_outcomes.jsonl").read_text().splitlines()) == STEPS


@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 0), (1, 2)])
def test_a_run_that_is_resumed_with_other_async_steps_replays_its_steps_with_those_they_had(
    tmp_path: Path, before: int, after: int
) -> None:
    """Otherwise a row of its epoch would be left out or run twice, without a word."""
    earlier = run_steps(open_rows(tmp_path, None, before), 0, 6)
    resumed = open_rows(tmp_path, 6, after)
    later = run_steps(resumed, 6, STEPS)
    assert [[row["number"] for row in resumed.of_step(step)] for step in range(6)] == earlier
    again = open_rows(tmp_path, 9, before)
    assert [[row["number"] for row in again.of_step(step)] for step in range(9)] == (earlier + later)[:9]
