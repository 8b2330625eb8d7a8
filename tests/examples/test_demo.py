"""`make demo`, for one step: everything is in the loop, and the story is told to its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentcore_rl_toolkit.rollout import read_rollouts
from support.process import clean_env

DEMO = Path(__file__).parents[2] / "examples" / "strands_math_agent" / "demo.py"


@pytest.mark.timeout(300)
def test_one_step(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    command = [sys.executable, str(DEMO), "--output", str(output), "--steps", "1", "--held-out", "2"]
    out = subprocess.run(command, capture_output=True, text=True, env=clean_env())
    assert out.returncode == 0, out.stderr
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["steps"], summary["rollouts"], summary["failures"], summary["fidelity"]) == (1, 64, {}, 1.0)
    assert 0 <= summary["before"] <= 1
    assert 0 <= summary["after"] <= 1
    assert "held-out accuracy before" in out.stdout
    assert "one held-out problem, after training" in out.stdout
    rollouts = list(read_rollouts(output / "rollouts" / "step-000000.jsonl"))
    assert len({rollout.session_id for rollout in rollouts}) == 64
    assert {rollout.fidelity.rows for rollout in rollouts} == {1}
    assert Path(summary["checkpoint"], "model.safetensors").is_file()
    assert (output / "reward.png").stat().st_size > 1000
