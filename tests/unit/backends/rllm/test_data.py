"""Rows as rLLM's data sets: with rLLM where it is, and a stand-in of its registry where it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.rllm import register
from agentcore_rl_toolkit.backends.rllm.data import check_ids, dataset_name
from agentcore_rl_toolkit.errors import ConfigError
from support.rllm import rllm_here

__all__ = ["rllm_here"]


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.usefixtures("rllm_here")
def test_an_agent_gets_its_row_and_nothing_else(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "level": 3}, {"prompt": "b", "tests": [1, 2]}, {"prompt": "c", "extra": {"x": 1}}]
    known = register(write(tmp_path / "rows.jsonl", *rows), "agentcore_rows", "train")
    assert [known[index] for index in range(len(known))] == rows  # a table has nulls, and 3.0
    assert (known.name, known.split) == ("agentcore_rows", "train")
    assert (tmp_path / "rllm" / "datasets" / "agentcore_rows" / "train.parquet").is_file()


@pytest.mark.usefixtures("rllm_here")
@pytest.mark.parametrize("rows", [[{"answer": 1}, {"answer": "one"}], [{"extra": {}}]])
def test_rows_that_no_table_can_hold(
    tmp_path: Path, rows: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    known = register(write(tmp_path / "rows.jsonl", *rows), "agentcore_rows", "train")
    assert [known[index] for index in range(len(known))] == rows
    assert "they are trained on, but not registered" in caplog.text


def test_rows_of_one_id_would_become_one_group() -> None:
    check_ids("rows.jsonl", [{"id": 1}, {"id": 2}, {}, {}, {"id": None}, {"id": ""}, {"id": 0}, {"id": 0}])
    with pytest.raises(ConfigError, match="several rows with id '7'"):
        check_ids("rows.jsonl", [{"id": 7}, {"id": "7"}])


def test_an_id_must_fit_into_a_results_key() -> None:
    with pytest.raises(ConfigError, match="the id 'math/1' can't be part of a key"):
        check_ids("rows.jsonl", [{"id": "math/1"}])


def test_a_data_set_never_takes_the_name_of_one_of_rllms_own() -> None:
    assert dataset_name("/data/gsm8k.jsonl") == "agentcore_gsm8k"
    assert dataset_name("../my rows.v2.jsonl") == "agentcore_my_rows_v2"
