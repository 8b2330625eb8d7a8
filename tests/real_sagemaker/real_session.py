"""A training session whose model is real: the demo's agent learns, as on a Tinker service (`make test-tinker`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.sagemaker.session import TrainingSessionSettings, train
from agentcore_rl_toolkit.engine import tiny
from support.fake_training_session import MODEL, ROLE, FakeTrainingSession
from support.tiny_policy import TinyPolicy

EXAMPLE = Path(__file__).parents[2] / "examples" / "strands_math_agent"


@pytest.mark.timeout(1800)
def test_the_held_out_reward_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, count in (("train", 64), ("held-out", 16)):
        command = [sys.executable, str(EXAMPLE / "problems.py"), split, str(count)]
        rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (tmp_path / f"{split}.jsonl").write_text(rows)
    known = {
        "agent": str(EXAMPLE / "rl_app.py"),
        "data": str(tmp_path / "train.jsonl"),
        "eval_data": str(tmp_path / "held-out.jsonl"),
        "eval_samples": 2,
        "model": MODEL,
        "tokenizer": str(tiny.path()),
        "role_arn": ROLE,
        "s3_output": "s3://bucket/runs",
        "max_tokens": 64,
        "context_limit": 1024,
        "steps": 4,
        "rows_per_step": 8,
        "n": 8,
        "learning_rate": 3e-4,
        "concurrency": 16,
        "output": str(tmp_path / "run"),
    }
    with FakeTrainingSession(TinyPolicy(), context_length=1024).serving() as fake:
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        summary = train(TrainingSessionSettings.from_mapping(known))
    print("\nreward", summary["reward"], "held-out", summary["before"], summary["after"])  # noqa: T201
    assert summary["fidelity"] == 1.0
    assert summary["after"] > summary["before"]
    assert summary["reward"][-1] > summary["reward"][0] + 0.15
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["sampler/ratio_max"] for line in lines if "sampler/ratio_max" in line) < 1.001
