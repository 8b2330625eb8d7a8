"""`agentcore-rl results`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.store import open_store


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    store = open_store(str(tmp_path))
    times = {"started_at": "2026-01-01T00:00:00+00:00", "finished_at": "2026-01-01T00:00:01.500000+00:00"}
    documents = {
        "exp1/a/s.json": {"status_code": 200, "stop_reason": "end_turn", "rewards": 0.5, "_rollout": times},
        "exp1/b/s.json": {"status_code": 500, "stop_reason": "boom\nlong", "error": {"kind": "agent_error"}},
        "exp2/a/s.json": {"status_code": 200, "stop_reason": "end_turn", "rewards": [0, 1]},
    }
    for key, document in documents.items():
        store.put_if_absent(key, json.dumps(document).encode())
    store.put_if_absent("exp2/b/s.json", b"not json")
    return tmp_path


def test_results_are_a_table(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", str(filled)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["result", "status", "reward", "seconds", "stop", "reason"]
    assert lines[2].split() == ["exp1/a/s.json", "completed", "0.5", "1.50", "end_turn"]
    assert lines[3].split() == ["exp1/b/s.json", "agent_error", "-", "-", "boom"]
    assert lines[4].split() == ["exp2/a/s.json", "completed", "0", "1", "-", "end_turn"]
    assert "unreadable" in lines[5]


def test_results_of_one_experiment_as_json(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", str(filled), "--exp-id", "exp1", "--json"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["status_code"] for document in documents] == [200, 500]


def test_a_relative_directory_is_fine_on_the_command_line(
    filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(filled.parent)
    assert main(["results", filled.name]) == 0


def test_nothing_there_is_said_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"no results in {tmp_path}\n")


def fill(folder: Path, documents: dict[str, Any]) -> None:
    store = open_store(str(folder))
    for key, document in documents.items():
        store.put_if_absent(key, json.dumps(document).encode())


def test_an_experiment_is_a_whole_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, {f"{exp}/a/s.json": {"status_code": 200, "exp": exp} for exp in ("exp1", "exp10", "team/exp1")})
    assert main(["results", str(tmp_path), "--exp-id", "exp1", "--json"]) == 0
    assert [json.loads(line)["exp"] for line in capsys.readouterr().out.splitlines()] == ["exp1"]


def test_an_experiment_without_results_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, {"exp1/a/s.json": {"status_code": 200}})
    assert main(["results", str(tmp_path), "--exp-id", "exp"]) == 1
    assert capsys.readouterr() == ("", f"no results in {tmp_path} for experiment 'exp'\n")


def test_only_results_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_store(str(tmp_path)).put_if_absent("exp/a/notes.txt", b"not a result")
    open_store(str(tmp_path)).put_if_absent("run/checkpoint-6/config.json", b'{"model_type": "llama"}')
    assert main(["results", str(tmp_path)]) == 1
    assert capsys.readouterr().out == ""
    fill(tmp_path, {"exp/a/s.json": {"rewards": 1}})
    assert main(["results", str(tmp_path), "--json"]) == 0
    assert [json.loads(line)["rewards"] for line in capsys.readouterr().out.splitlines()] == [1]


@pytest.mark.parametrize(
    ("document", "cells"),
    [
        ({"rewards": "much"}, ["completed", "?", "-"]),
        ({"_rollout": {"started_at": "2026-01-01T00:00:00+00:00"}}, ["completed", "-", "-"]),
        ({"_rollout": {"started_at": "yesterday", "finished_at": "today"}}, ["completed", "-", "-"]),
        ({"_rollout": {"started_at": 1, "finished_at": 2}}, ["completed", "-", "-"]),
        ({"_rollout": "mine"}, ["completed", "-", "-"]),
        ({"stop_reason": "x" * 100}, ["completed", "-", "-", "x" * 60]),
    ],
)
def test_odd_results_are_listed_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: dict[str, Any], cells: list[str]
) -> None:
    fill(tmp_path, {"exp/a/s.json": document})
    assert main(["results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["exp/a/s.json", *cells]
