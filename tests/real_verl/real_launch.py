"""Our command with real verl, as far as it gets without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agentcore_rl_toolkit.backends.verl import VerlSettings
from agentcore_rl_toolkit.backends.verl.backend import BACKEND
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rollout.run_folder.run_lock import locked_run
from support.process import clean_env

AGENT = Path(__file__).parents[2] / "examples" / "echo_agent" / "rl_app.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="here verl would train")
def test_it_gets_to_the_gpus_that_there_are_not(tmp_path: Path) -> None:
    """However few cores there are, Ray has CPUs for all of TransferQueue's actors, and verl says what is missing."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n' * 4)
    command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "train", "--backend", "verl", str(AGENT)]
    command += ["--data", "rows.jsonl", "--n", "4", "--rows-per-step", "2", "--output", "run"]
    environment = clean_env()
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert "ValueError: Total available GPUs 0 is less than total desired GPUs 1" in done.stderr
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "error: verl ended with code 1",
        "hint: its output above says why; run/command.sh starts it again",
    ]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["exit_code"], summary["interrupted"]) == (1, False)


def test_a_second_run_removes_nothing_of_one_that_is_running(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n' * 4)
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    settings = VerlSettings(
        agent=str(AGENT), data=str(tmp_path / "rows.jsonl"), output=str(tmp_path / "run"), n=4, rows_per_step=2
    )
    with locked_run(tmp_path / "run"), pytest.raises(ConfigError, match="another run is writing to"):
        BACKEND.train(settings)
    assert (tmp_path / "run" / "rollouts").exists()
