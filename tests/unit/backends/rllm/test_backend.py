"""What is checked before a run with rLLM, and the command that it is."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.base import TrainingPlan, find
from agentcore_rl_toolkit.backends.rllm import RllmSettings
from agentcore_rl_toolkit.backends.rllm.backend import BACKEND, SessionCounts
from agentcore_rl_toolkit.errors import AgentCoreRLError, ConfigError

ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/your-agent"


@pytest.fixture(autouse=True)
def _aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", raising=False)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "answer": "2"}\n')
    where = {"agent_runtime_arn": ARN, "s3_bucket": "your-s3-bucket", "data_path": str(rows)}
    return where | {"model": "Qwen/Qwen3-4B", "rows_per_step": 2, "output": str(tmp_path / "run")}


def plan(given: dict[str, Any], **more: Any) -> TrainingPlan:
    return BACKEND.plan(RllmSettings.from_mapping(given | more))


def test_it_is_found_by_its_name() -> None:
    assert find("rllm") is BACKEND


def test_a_run_is_a_command(given: dict[str, Any], tmp_path: Path) -> None:
    made = plan(given, trainer="tinker", eval_data=given["data_path"], dataset="mine", exp_id="exp-1")
    ours, theirs = made.command[: made.command.index("--")], made.command[made.command.index("--") + 1 :]
    assert ours == (
        *(sys.executable, "-m", "agentcore_rl_toolkit.backends.rllm.main", "--trainer", "tinker"),
        *("--dataset", "mine", "--data", given["data_path"], "--eval-data", given["data_path"]),
    )
    assert f"rllm.remote_runtime.agentcore.agent_runtime_arn={ARN}" in theirs
    assert "rllm.trainer.experiment_name=exp-1" in theirs
    assert any("rllm.gateway.tunnel" in note for note in made.notes)
    assert not (tmp_path / "run").exists()


def test_an_agent_on_this_machine_gets_a_runtime(given: dict[str, Any], tmp_path: Path) -> None:
    agent = tmp_path / "math" / "rl_app.py"
    agent.parent.mkdir()
    agent.write_text("")
    del given["agent_runtime_arn"], given["s3_bucket"]
    made = plan(given, agent=str(agent))
    place = made.command.index("--agent")
    assert made.command[place : place + 4] == ("--agent", str(agent), "--buckets", str(tmp_path / "run" / "buckets"))
    assert made.command[place + 4 : place + 6] == ("--store", str(tmp_path / "run" / "results"))
    arn = "arn:aws:bedrock-agentcore:local:000000000000:runtime/math"
    assert f"rllm.remote_runtime.agentcore.agent_runtime_arn={arn}" in made.command
    assert f"rllm.remote_runtime.agentcore.s3_bucket={tmp_path}/run/results" in made.command
    assert "rllm.remote_runtime.agentcore.s3_bucket=mine" in plan(given, agent=str(agent), store="mine").command


def test_a_local_runtime_that_is_already_there(given: dict[str, Any]) -> None:
    local = "arn:aws:bedrock-agentcore:local:000000000000:runtime/math"
    made = plan(given | {"agent_runtime_arn": local, "s3_bucket": "some/folder"})
    assert "--agent" not in made.command
    assert f"rllm.remote_runtime.agentcore.s3_bucket={Path('some/folder').resolve()}" in made.command


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"trainer": "fireworks"}, "trainer must be one of verl, tinker, not 'fireworks'"),
        ({"agent_runtime_arn": "arn:aws:lambda:us-west-2:1:function:x"}, "is not the ARN of an agent runtime"),
        ({"s3_bucket": "Not_A_Bucket"}, "is not the name of a store"),
        ({"s3_bucket": None}, "sessions on AWS can't store results in a folder"),
        ({"data_path": "nowhere.jsonl"}, "can't be read"),
        ({"data_path": "-"}, "data must be a file"),
        ({"rows_per_step": 3}, "has 2 rows, and a step takes 3"),
        ({"tps_limit": 0}, "tps_limit must be more than 0"),
        ({"session_timeout": 0}, "timeout must be more than 0"),
        ({"exp_id": "a//b"}, "exp_id"),
        ({"sqs_url": "queue"}, "doesn't take sqs_url"),
        ({"trainer": "tinker", "model": "tiny"}, "Tinker doesn't have the built-in policy"),
        ({"session_timout": 3}, "unknown setting 'session_timout'"),
    ],
)
def test_what_is_refused(given: dict[str, Any], settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(AgentCoreRLError, match=problem):
        plan(given | settings)


def test_rows_of_one_id_are_refused(given: dict[str, Any]) -> None:
    Path(given["data_path"]).write_text('{"id": 1}\n{"id": 1}\n')
    with pytest.raises(ConfigError, match="several rows with id '1'"):
        plan(given)


def test_training_without_rllm_says_what_to_install(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"rllm is not installed\nhint: rLLM is not on PyPI: git clone"):
        BACKEND.train(RllmSettings.from_mapping(given))
    assert not (tmp_path / "run").exists()


# --- how its sessions ended ---------------------------------------------------------------------------------------


def log(folder: Path, *errors: str | None, step: str = "train_step_1_epoch_0") -> None:
    """Episodes as rLLM's logger writes them."""
    if not (folder / "command.sh").exists():
        (folder / "command.sh").touch()
    place = folder / "episodes" / step
    place.mkdir(parents=True, exist_ok=True)
    for number, error in enumerate(errors):
        metadata = {} if error is None else {"error": {"error_message": error, "elapsed": 1.0}}
        episode = {"episode_id": f"t:{number}", "termination_reason": "error", "metadata": metadata}
        (place / f"episode_hash1_idt_{number}.json").write_text(json.dumps(episode))
    (place / "batch_summary.json").write_text("{}")


def test_sessions_are_counted_over_all_steps(tmp_path: Path) -> None:
    log(tmp_path, None, "no luck", None)
    log(tmp_path, "no luck", step="val_step_0_epoch_0")
    (tmp_path / "episodes" / "train_step_1_epoch_0" / "episode_hash1_idt_9.json").write_text('{"cut off')
    counts = SessionCounts(tmp_path)
    assert counts.read() == {"sessions": 5, "failed_sessions": 2}
    counts.check()


def test_the_commonest_failure_is_named(tmp_path: Path) -> None:
    log(tmp_path, "ValueError: odd", "the session was lost", "the session was lost")
    counts = SessionCounts(tmp_path)
    counts.read()
    with pytest.raises(AgentCoreRLError, match="all 3 sessions failed, for example: the session was lost"):
        counts.check()


def test_a_long_error_is_cut(tmp_path: Path) -> None:
    log(tmp_path, "first line\n" + "x" * 5000)
    counts = SessionCounts(tmp_path)
    counts.read()
    with pytest.raises(AgentCoreRLError) as raised:
        counts.check()
    assert "first line xxx" in str(raised.value)
    assert len(str(raised.value)) < 600


def test_those_of_an_earlier_run_don_t_count(tmp_path: Path) -> None:
    log(tmp_path, None)
    (tmp_path / "command.sh").touch()
    written = (tmp_path / "episodes" / "train_step_1_epoch_0" / "episode_hash1_idt_0.json").stat().st_mtime_ns
    os.utime(tmp_path / "command.sh", ns=(written + 1, written + 1))
    assert SessionCounts(tmp_path).read() == {"sessions": 0, "failed_sessions": 0}


def test_without_episodes_nothing_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "command.sh").touch()
    counts = SessionCounts(tmp_path)
    assert counts.read() == {"sessions": 0, "failed_sessions": 0}
    with caplog.at_level(logging.WARNING):
        counts.check()
    assert "unknown how its sessions ended" in caplog.text
