"""What `agentcore-rl rollout` and `eval` make of results that an agent has made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.cli.rollouts.eval import item_outcome, stored_outcomes
from agentcore_rl_toolkit.cli.rollouts.rollout import describe
from agentcore_rl_toolkit.client import BatchItem
from agentcore_rl_toolkit.rows import parse_rows


def item(document: dict[str, Any]) -> BatchItem:
    return BatchItem(True, document, None, 0, 1.0, "row-1", session_id="session-1")


@pytest.mark.parametrize(
    ("rewards", "shown"),
    [([0, 1], [0.0, 1.0]), (True, 1.0), (None, None), (float("inf"), None), ([[1]], None), ("1", None), ({}, None)],
)
def test_an_outcome_is_a_line_of_json_whatever_the_result_says(rewards: Any, shown: Any) -> None:
    told = describe(item({"rewards": rewards, "result_key": ["no", "key"]}))
    assert (told["rewards"], told["result_key"]) == (shown, None)
    json.dumps(told, allow_nan=False)
    assert describe(item({"result_key": "x" * 1_000_000}))["result_key"] is None
    assert describe(item({"result_key": "exp/row/s.json"}))["result_key"] == "exp/row/s.json"


def test_a_result_does_not_say_whose_it_is(tmp_path: Path) -> None:
    forged = {"status_code": 200, "rewards": 1.0, "input_id": "row-2", "_rollout": {"session_id": "another"}}
    found = item_outcome(item(forged))
    assert (found.input_id, found.session_id, found.reward) == ("row-1", "session-1", 1.0)
    path = tmp_path / "exp" / "row-1" / "session-1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(forged | {"result_key": "exp/row-2/another.json"}))
    (stored,) = stored_outcomes(str(tmp_path), "exp")
    assert (stored.input_id, stored.session_id, stored.reward) == ("row-1", "session-1", 1.0)


def test_results_that_nobody_can_read_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = {"a": b'{"status_code": 200, "rewards": 0.5}', "b": b"[" * 200_000, "c": b'{"rewards": NaN}'}
    for name, data in documents.items():
        (tmp_path / "exp" / name).mkdir(parents=True)
        (tmp_path / "exp" / name / "s.json").write_bytes(data)
    assert [found.input_id for found in stored_outcomes(str(tmp_path), "exp")] == ["a"]
    assert capsys.readouterr().err.count("left out: 'exp/") == 2
    assert main(["results", str(tmp_path), "--json"]) == 0
    told = capsys.readouterr()
    assert [json.loads(line)["rewards"] for line in told.out.splitlines()] == [0.5]
    assert told.err.count("left out: 'exp/") == 2
    assert main(["results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("unreadable") == 2


def test_a_line_that_is_nested_too_deep_is_one_bad_line() -> None:
    rows, problems = parse_rows(['{"a": 1}', "[" * 200_000, '{"b": 2}'])
    assert rows == [{"a": 1}, {"b": 2}]
    assert len(problems) == 1
    assert problems[0].startswith("line 2: ")


@pytest.mark.parametrize("verb", ["rollout", "eval"])
def test_a_store_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    (tmp_path / "rl_app.py").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "hi"}\n')
    (tmp_path / "file").write_text("")
    argv = [verb, str(tmp_path), "--data", str(tmp_path / "rows.jsonl"), "--store", str(tmp_path / "file" / "results")]
    assert main(argv) == 1
    assert f"error: results can't be written to {tmp_path}/file/results: {tmp_path}/file is a file" in (
        capsys.readouterr().err
    )
