"""The settings and the plan of a training session: what is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.base import find
from agentcore_rl_toolkit.backends.sagemaker.session import TrainingSessionSettings
from agentcore_rl_toolkit.backends.sagemaker.session.backend import BACKEND
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.errors import ConfigError
from support.agent import SCORED


@pytest.fixture
def known(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "rl_app.py").write_text(SCORED)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "hi"}) + "\n")
    return {
        "agent": str(tmp_path / "rl_app.py"),
        "data": str(tmp_path / "rows.jsonl"),
        "model": "openai-reasoning-gpt-oss-20b",
        "tokenizer": "openai/gpt-oss-20b",
        "role_arn": "arn:aws:iam::123456789012:role/session",
        "store": "bucket",
        "max_tokens": 512,
        "output": str(tmp_path / "run"),
        "rows_per_step": 1,
    }


def test_it_is_found_by_its_name() -> None:
    assert find("sagemaker-session") is BACKEND


def test_a_plan_asks_nobody_and_says_so(known: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    text = BACKEND.plan(TrainingSessionSettings(**known, temperature=0.7)).text()
    assert "checkpoints: s3://bucket/sagemaker" in text
    assert "skipped the checks on AWS" in text
    assert "loss assumes temperature 1" in text
    assert not Path(known["output"]).exists()


def test_the_command_line_shows_a_plan(known: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        word for name, value in known.items() if name != "agent" for word in (f"--{name.replace('_', '-')}", value)
    ]
    given = ["train", known["agent"], "--backend", "sagemaker-session", *map(str, flags)]
    assert main([*given, "--lora-rank", "16", "--dry-run"]) == 0
    assert 'model = "openai-reasoning-gpt-oss-20b"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"loss": "dapo"}, "loss must be one of importance_sampling, ppo, cispo"),
        ({"learning_rate": 0.1}, "learning_rate must be at most 0.01"),
        ({"lora_rank": 512}, "lora_rank must be at most 256"),
        ({"options": {"beta1": "high"}}, "the option beta1 must be a number"),
        ({"options": {"clip_high_threshold": 0.5}}, "clip_high_threshold must be from 1 to 10"),
        ({"options": {"kl": 0.5}}, "a training session has no option kl"),
    ],
)
def test_settings_that_make_no_sense_are_refused(known: dict[str, Any], wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TrainingSessionSettings(**known | wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": ""}, "SageMaker has no model named ''"),
        ({"model": "tiny"}, "SageMaker has no model named 'tiny'"),
        ({"model": "Qwen/Qwen3-8B"}, "name in SageMaker's hub"),
        ({"tokenizer": None}, "tokenizer is missing"),
        ({"role_arn": ""}, "role_arn is missing"),
        ({"role_arn": "session"}, "'session' is not the ARN of a role"),
        ({"store": None}, "s3_output is missing"),
        ({"s3_output": "/tmp/x"}, "'/tmp/x' is not a place in S3"),
        ({"max_tokens": None}, "neither max_tokens nor context_limit is set"),
    ],
)
def test_a_plan_that_can_not_work_is_refused(known: dict[str, Any], wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        BACKEND.plan(TrainingSessionSettings(**known | wrong))
    assert "hint:" in str(caught.value)


def test_options_go_to_the_optimizer_or_to_the_loss(known: dict[str, Any]) -> None:
    given = TrainingSessionSettings(**known, options={"beta2": 0.99, "clip_low_threshold": 0.8})
    assert given.adam == {"learning_rate": 1e-4, "beta2": 0.99}
    assert given.loss_config == {"clip_low_threshold": 0.8}
