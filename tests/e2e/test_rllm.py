"""`agentcore-rl train --backend rllm`, the whole command: rLLM itself is stood in for, and what it drives is real.

`make test-rllm` runs the same with rLLM, and trains.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_vllm import MODEL, FakeVllm
from support.process import clean_env
from support.rllm import STAND_IN
from support.runtime import eventually

AGENT = Path(__file__).parents[1] / "real_rllm" / "agent" / "rl_app.py"
ROWS: list[dict[str, Any]] = [
    {"id": 1, "prompt": "one", "rewards": [0.25, 0.5]},
    {"id": 2, "prompt": "two", "rewards": 1, "variables": ["MODE"]},
    {"id": 3, "prompt": "three", "fail": "no such luck"},
]
SLOW = [{"prompt": "four", "seconds": 600}]


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with FakeVllm(context_length=4096).serving() as server:
        yield server


def command(folder: Path, model: Any, rows: list[dict[str, Any]], *more: str) -> list[str]:
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    port = model.url.rpartition(":")[2]
    return [
        *(sys.executable, "-m", "agentcore_rl_toolkit.cli", "train", "--backend", "rllm", "--trainer", "tinker"),
        *(str(AGENT), "--data", str(data), "--model", MODEL, "--output", str(folder / "run")),
        *("--rows-per-step", "1", "--n", "2", "--options", f"rllm.gateway.port={port}", *more),
    ]


def environment(folder: Path) -> dict[str, str]:
    told = {"PYTHONPATH": str(STAND_IN), "RLLM_HOME": str(folder / "home"), "TINKER_API_KEY": "tml-none"}
    return clean_env(**told)


def test_one_command(tmp_path: Path, model: Any) -> None:
    more = ["--eval-data", str(tmp_path / "rows.jsonl"), "--exp-id", "exp-1", "--store", "my-bucket"]
    more += ["--env", "MODE=not-to-be-shown", "--memory-mb", "512", "--allow", "10.0.0.5:5432"]
    line = command(tmp_path, model, ROWS, *more)
    done = subprocess.run(line, env=environment(tmp_path), capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    known = {"backend": "rllm", "output": str(tmp_path / "run"), "exit_code": 0, "interrupted": False}
    assert json.loads(done.stdout) == known | {"sessions": 6, "failed_sessions": 2}

    seen = json.loads((tmp_path / "run" / "checkpoints" / "seen.json").read_text())
    results = seen["train"]
    assert (seen["trainer"], seen["held_out"], len(results)) == ("tinker", 3, 6)
    assert [r["rewards"] for r in results[:4]] == [[0.25, 0.5], [0.25, 0.5], 1.0, 1.0]
    second = ROWS[1] | {"MODE": "not-to-be-shown"}
    assert [r["got"] for r in results[:4]] == [ROWS[0], ROWS[0], second, second]  # nothing added, nothing lost
    assert [r["status_code"] for r in results[4:]] == [500, 500]
    assert all("no such luck" in r["stop_reason"] for r in results[4:])
    assert len(list((tmp_path / "run" / "buckets" / "my-bucket" / "exp-1" / "1").glob("*.json"))) == 2
    assert "no table can hold these rows" in done.stderr
    said = (tmp_path / "run" / "command.sh").read_text()
    assert "agentcore_rl_toolkit.backends.rllm.main" in said
    assert "not-to-be-shown" not in said + json.dumps(seen["config"])
    assert not (tmp_path / "run" / "session_env.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_either_signal_ends_all_of_it(tmp_path: Path, model: Any, number: signal.Signals) -> None:
    line, before = command(tmp_path, model, SLOW), len(model.requests)
    process = subprocess.Popen(line, env=environment(tmp_path), stdout=subprocess.PIPE, text=True)
    try:
        eventually(lambda: len(model.requests) == before + 2, seconds=60)  # both sessions are at work
        started = descendants(process.pid)
        assert len(started) >= 4  # the trainer, the agent's template, two sessions
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert json.loads(out.splitlines()[-1])["interrupted"] is True
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["interrupted"] is True
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


def descendants(pid: int) -> set[int]:
    """Everything a process has started, and what that has."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child} | descendants(child)
    return found


def test_a_run_whose_sessions_all_failed_is_no_success(tmp_path: Path, model: Any) -> None:
    line = command(tmp_path, model, [ROWS[2], {"id": 4, "prompt": "four", "fail": "no such luck"}])
    done = subprocess.run(line, env=environment(tmp_path), capture_output=True, text=True, timeout=90)
    assert done.returncode == 1
    assert "error: all 4 sessions failed, for example: " in done.stderr
    assert "no such luck" in done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["failed_sessions"] == 4


def test_a_dry_run_starts_nothing(tmp_path: Path, model: Any) -> None:
    line = command(tmp_path, model, ROWS, "--dry-run")
    done = subprocess.run(line, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "overrides fit rLLM's configuration" in done.stdout
    assert "rllm.remote_runtime.enabled=true" in done.stdout
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "home").exists()


def test_a_run_that_breaks(tmp_path: Path, model: Any) -> None:
    line = command(tmp_path, model, ROWS)
    (tmp_path / "rl_app.py").write_text("import nothing_of_that_name")
    line[line.index(str(AGENT))] = str(tmp_path / "rl_app.py")
    done = subprocess.run(line, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "nothing_of_that_name" in done.stderr
    assert "rLLM ended with code 1" in done.stderr
