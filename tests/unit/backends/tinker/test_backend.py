"""Tinker's settings and plan: what is refused before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.base import find
from agentcore_rl_toolkit.backends.loop.mismatch import Truncation
from agentcore_rl_toolkit.backends.tinker.backend import BACKEND, TinkerSettings
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.errors import ConfigError
from support.agent import SCORED
from support.process import clean_env

pytest.importorskip("tinker")


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    (tmp_path / "rl_app.py").write_text(SCORED)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "hi"}) + "\n")
    return {
        "agent": str(tmp_path / "rl_app.py"),
        "data": str(tmp_path / "rows.jsonl"),
        "model": "Qwen/Qwen3-8B",
        "output": str(tmp_path / "run"),
        "rows_per_step": 1,
    }


def test_it_is_found_by_its_name() -> None:
    assert find("tinker") is BACKEND
    assert BACKEND.settings is TinkerSettings


def test_a_plan_starts_nothing_and_says_what_was_found(known: dict[str, Any]) -> None:
    plan = BACKEND.plan(TinkerSettings(**known, base_url="http://127.0.0.1:1", options={"beta2": 0.99}))
    assert (plan.backend, plan.command, plan.files) == ("tinker", (), {})
    text = plan.text()
    assert "service: http://127.0.0.1:1" in text
    assert "TINKER_API_KEY is not set" in text
    assert not any("temperature" in note for note in plan.notes)
    assert not Path(known["output"]).exists()


def test_another_temperature_is_remarked_on(known: dict[str, Any]) -> None:
    assert "loss assumes temperature 1" in BACKEND.plan(TinkerSettings(**known, temperature=0.7)).text()


def test_asynchronous_runs_know_what_their_loss_truncates(known: dict[str, Any]) -> None:
    def given(**more: Any) -> TinkerSettings:
        return TinkerSettings(**known, async_steps=2, **more)

    assert TinkerSettings(**known, loss="ppo").truncation is None
    assert given().truncation == Truncation.symmetric(0.0, 2.0)
    assert given(loss="ppo").loss_config == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    assert given(loss="ppo").truncation == Truncation(most=1.2, least_bad=0.8)
    high = given(loss="ppo", options={"clip_high_threshold": 1.5})
    assert high.truncation == Truncation(most=1.5, least_bad=0.8)
    assert given(loss="importance_sampling").truncation == Truncation()
    said = BACKEND.plan(given(loss="importance_sampling")).text()
    assert "loss importance_sampling truncates no ratio, and rollouts are up to 2 updates old" in said
    assert "truncates no ratio" not in BACKEND.plan(given()).text()


def test_asynchronous_runs_at_another_temperature_are_refused(known: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"async_steps needs logprobs at temperature 0\.7"):
        TinkerSettings(**known, async_steps=1, temperature=0.7)


def test_the_command_line_shows_a_plan(known: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    given = ["train", known["agent"], "--backend", "tinker", "--data", known["data"], "--rows-per-step", "1"]
    assert main([*given, "--model", "Qwen/Qwen3-8B", "--lora-rank", "16", "--per", "rollout", "--dry-run"]) == 0
    assert "service: Tinker" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"loss": "dapo"}, "loss must be one of importance_sampling, ppo, cispo, not 'dapo'"),
        ({"per": "row"}, "per must be one of token, rollout"),
        ({"lora_rank": 0}, "lora_rank must be at least 1"),
        ({"ttl_days": 0.001}, "ttl_days must be at least an hour"),
        ({"options": {"beta1": "high"}}, "the option beta1 must be a number"),
        ({"options": {"beta1": True}}, "the option beta1 must be a number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(known: dict[str, Any], wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TinkerSettings(**known | wrong)


def test_an_address_that_is_none_is_refused(known: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "localhost:8000")
    with pytest.raises(ConfigError, match="base_url must be a URL, not 'localhost:8000'"):
        BACKEND.plan(TinkerSettings(**known))


def test_options_go_to_the_optimizer_or_to_the_loss(known: dict[str, Any]) -> None:
    options = {"beta2": 0.99, "grad_clip_norm": 1, "clip_low_threshold": 0.8}
    given = TinkerSettings(**known, learning_rate=3e-4, options=options)
    assert given.adam == {"learning_rate": 3e-4, "beta2": 0.99, "grad_clip_norm": 1.0}
    assert given.loss_config == {"clip_low_threshold": 0.8}


def test_without_the_sdk_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['tinker'] = None\n"
        "import agentcore_rl_toolkit.backends.tinker as t\n"
        "print(t.TinkerSettings.__name__)\n"
        "try:\n    t.train\nexcept ImportError as error:\n    print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_env())
    assert out.stdout.splitlines()[0] == "TinkerSettings"
    assert "hint: pip install 'agentcore-rl-toolkit[tinker]'" in out.stdout
