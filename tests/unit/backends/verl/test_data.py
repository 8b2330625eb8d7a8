"""Plain JSONL as verl's data set."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.verl.data import JsonlRows
from agentcore_rl_toolkit.errors import ConfigError


def test_rows_of_several_files_as_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "gsm8k.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\nnonsense\n{"task": 3}\n')
    (tmp_path / "chats.jsonl").write_text('{"prompt": [{"role": "system", "content": "be brief"}]}\n')
    with caplog.at_level(logging.WARNING):
        rows = JsonlRows([str(tmp_path / "gsm8k.jsonl"), str(tmp_path / "chats.jsonl")])
    assert len(rows) == 3
    assert "line 2" in caplog.text
    assert rows[0] == {
        "raw_prompt": [{"role": "user", "content": "1 + 1"}],
        "payload": {"prompt": "1 + 1", "answer": "2"},
        "index": 0,
        "data_source": "gsm8k",
        "reward_model": {"ground_truth": "2"},
    }
    assert rows[1]["raw_prompt"] == [{"role": "user", "content": '{"task": 3}'}]
    assert (rows[2]["raw_prompt"], rows[2]["data_source"]) == ([{"role": "system", "content": "be brief"}], "chats")


def test_some_of_them(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n' * 5)
    assert len(JsonlRows(str(tmp_path / "rows.jsonl"), max_samples=2)) == 2
    assert len(JsonlRows(str(tmp_path / "rows.jsonl"), max_samples=-1)) == 5


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        JsonlRows(str(tmp_path / "none.jsonl"))
