"""Whether a run runs and how it ended: what the page and the terminal say, here and of a copy of the folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from agentcore_rl_toolkit.rollout.run_folder.run_lock import locked_run
from agentcore_rl_toolkit.studio.server.run_answers import list_runs
from agentcore_rl_toolkit.studio.server.run_catalog import RunCatalog


def state(folder: Path) -> str:
    """What the page says."""
    (one,) = list_runs(RunCatalog([folder]))["runs"]
    return str(one["state"])


def copied(folder: Path) -> str:
    """What the page says of a copy whose files are all new, the summary's the oldest."""
    copy = folder.with_name(f"copy-{len(list(folder.parent.iterdir()))}")
    shutil.copytree(folder, copy, copy_function=shutil.copy)
    if (copy / "summary.json").exists():
        os.utime(copy / "summary.json", (1, 1))
    return state(copy)


def age(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))


def write_summary(folder: Path, **known: object) -> None:
    (folder / "summary.json").write_text(json.dumps(known))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    return tmp_path / "run"


def test_a_run_runs_as_long_as_it_holds_its_lock(run: Path) -> None:
    with locked_run(run):
        age(run)
        assert (state(run), copied(run)) == ("running", "unfinished"), "however long ago its last rollout ended"
    assert state(run) == "unfinished"


def test_whoever_writes_rollouts_runs(run: Path) -> None:
    with RunWriter(run, process=3):
        age(run)
        assert (state(run), copied(run)) == ("running", "unfinished")
    assert state(run) == "unfinished"


def test_a_run_with_a_summary_has_ended_in_a_copy_too(run: Path) -> None:
    write_summary(run, interrupted=False)
    assert (state(run), copied(run)) == ("ended", "ended")
    write_summary(run, interrupted=True)
    assert (state(run), copied(run)) == ("interrupted", "interrupted")
    with locked_run(run):
        assert state(run) == "running"


def test_a_run_that_a_guard_stopped(run: Path) -> None:
    finding = {"guard": "fidelity", "step": 1, "action": "stop", "problem": "odd", "example": None}
    (run / "guards.jsonl").write_text(json.dumps(finding) + "\n")
    assert (state(run), copied(run)) == ("stopped", "stopped")
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 2}\n')
    assert state(run) == "unfinished", "it was resumed, and then cut off"


def test_the_terminal_says_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said() -> str:
        assert main(["show", str(run)]) == 0
        return capsys.readouterr().out.splitlines()[1].partition(", ")[2]

    assert said() == "cut off, or a copy of a run that runs elsewhere"
    write_summary(run)
    assert said() == "completed"
    with locked_run(run):
        assert said() == "still running"
