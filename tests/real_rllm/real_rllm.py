"""rLLM itself, from a checkout: its adapter on the local runtime, its trainer under our command. Run by `run.py`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rllm.engine.remote_agent_flow_engine import RemoteAgentFlowEngine
from rllm.engine.remote_runtime import RemoteRuntimeConfig, TaskSubmission, create_remote_runtime
from rllm.gateway.manager import GatewayManager
from rllm.trainer.algorithms.config import CompactFilteringConfig, TransformConfig
from rllm.trainer.algorithms.transform import transform_episodes_to_trajectory_groups
from rllm.workflows.workflow import TerminationReason
from transformers import AutoTokenizer

from agentcore_rl_toolkit.backends.rllm import RllmSettings
from agentcore_rl_toolkit.backends.rllm.backend import BACKEND
from agentcore_rl_toolkit.engine.tiny import path as tiny_path
from support.fake_tinker import FakeTinker
from support.process import free_port

ARN, MODEL, BASE_URL = (os.environ[f"AGENTCORE_{name}"] for name in ("AGENT_ARN", "MODEL_ID", "BASE_URL"))
AGENT = Path(__file__).parent / "agent" / "rl_app.py"


@pytest.fixture
def adapter(tmp_path: Path) -> Any:
    """rLLM's adapter, configured as its trainer does it."""
    remote = {"agent_runtime_arn": ARN, "s3_bucket": str(tmp_path), "tps_limit": 25}
    config = RemoteRuntimeConfig(enabled=True, backend="agentcore", agentcore=remote)
    runtime = create_remote_runtime(config, exp_id="exp-1", model_id=MODEL)
    runtime.initialize()
    return runtime


def submission(**row: Any) -> TaskSubmission:
    return TaskSubmission(
        task={"prompt": "hi"} | row, session_id=str(uuid.uuid4()), task_id="t", inference_url=BASE_URL
    )


def test_rewards_failures_and_timeouts_come_back(adapter: Any, tmp_path: Path) -> None:
    asked = [submission(rewards=[0.25, 0.5]), submission(rewards=1), submission(fail="no luck")]
    several, one, failed = asyncio.run(adapter.execute_tasks(asked, timeout=100.0))
    (late,) = asyncio.run(adapter.execute_tasks([submission(seconds=600)], timeout=2.0))
    assert (several.finished, several.reward, one.reward) == (True, 0.5, 1.0)
    assert (several.termination_reason, several.raw_result["metrics"].keys()) == (
        TerminationReason.ENV_DONE,
        {"letters"},
    )
    assert (failed.finished, failed.termination_reason) == (False, TerminationReason.ERROR)
    assert "no luck" in failed.error
    assert (late.finished, late.termination_reason) == (False, TerminationReason.TIMEOUT)
    assert len(list((tmp_path / "exp-1" / "t").glob("*.json"))) >= 3  # of the late one too, if its end was stored


@pytest.fixture
def gateway() -> Iterator[Any]:
    from omegaconf import OmegaConf

    config = OmegaConf.create(
        {"rllm": {"gateway": {"host": "127.0.0.1", "port": free_port()}}, "model": {"name": MODEL}}
    )
    manager = GatewayManager(config, mode="thread")
    manager._start_thread()
    manager.client.add_worker(url=BASE_URL.removesuffix("/v1"))
    yield manager
    manager.stop()


def test_with_our_settings_a_failed_session_enters_no_group(adapter: Any, gateway: Any, tmp_path: Path) -> None:
    """Its reward of 0 would count in the group's mean, and its tokens would be trained on."""
    rows = [{"prompt": "a", "rewards": 1}, {"prompt": "a", "rewards": 0.5}, {"prompt": "a", "rewards": "none"}]
    engine = RemoteAgentFlowEngine(adapter, gateway, session_timeout=100.0)
    episodes = asyncio.run(engine.execute_tasks(rows, task_ids=["t", "t", "t"]))
    assert [episode.trajectories[0].reward for episode in episodes] == [1.0, 0.5, 0.0]
    assert all(len(step.response_ids) == 8 for episode in episodes for step in episode.trajectories[0].steps)
    config, _ = composed(tmp_path, trainer="tinker", model=MODEL)
    filtering = CompactFilteringConfig.from_config(config.rllm.compact_filtering)
    (group,), _ = transform_episodes_to_trajectory_groups(episodes, TransformConfig(), filtering)
    assert [trajectory.reward for trajectory in group.trajectories] == [1.0, 0.5]


def test_verls_own_checks_accept_our_overrides(tmp_path: Path) -> None:
    pytest.importorskip("verl", reason="needs verl beside rLLM")
    from omegaconf import OmegaConf
    from rllm.trainer.verl.utils import sync_config
    from verl.utils.config import validate_config

    config, texts = composed(tmp_path, trainer="verl", rows_per_step=4, n=2)
    sync_config(config, hydra_overrides=texts)
    OmegaConf.resolve(config)
    validate_config(config=config, use_reference_policy=False, use_critic=False)
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n, config.trainer.total_training_steps) == (
        4,
        2,
        50,
    )


def test_one_command_trains(tmp_path: Path) -> None:
    """rLLM's trainer, gateway and adapter, Tinker's SDK, our client, runtime and agent. The service is scripted."""
    with FakeTinker(replies(), context_length=4096).serving() as service:
        done = train(tmp_path, service.url, {}, "--eval-data", str(tmp_path / "rows.jsonl"), "--steps", "3")
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert [len(batch) for batch in service.data] == [8, 8, 8]
        assert service.trained.steps == 3
        odd, even = service.trained.numbers  # the agent rewards answers of an odd number of letters
        assert odd > even
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["interrupted"] is False
    assert (summary["sessions"], summary["failed_sessions"]) == (3 * 8 + 2 * 4, 0)
    assert len(list((tmp_path / "run" / "results").glob("*/*/*.json"))) == 3 * 8 + 2 * 4
    registered = json.loads((tmp_path / "home" / "datasets" / "registry.json").read_text())["datasets"]
    assert registered["agentcore_rows"]["splits"].keys() == {"train", "test"}


def test_a_run_whose_sessions_all_failed_is_no_success(tmp_path: Path) -> None:
    """rLLM itself goes on to the end, and ends well."""
    with FakeTinker(replies(), context_length=4096).serving() as service:
        done = train(tmp_path, service.url, {"fail": "no such luck"}, "--steps", "2")
        assert service.trained.steps == 0
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert "error: all 16 sessions failed, 16 of them like this: " in done.stderr
    assert "no such luck" in done.stderr.splitlines()[-2]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["exit_code"], summary["sessions"], summary["failed_sessions"]) == (0, 16, 16)


def replies() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_path()))
    return [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in ("yes", "nope")]


def train(folder: Path, url: str, row: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    """Our command, with steps of two rows and four rollouts of each."""
    options = {
        "tinker_base_url": url,
        "rollout_engine.renderer_name": "role_colon",
        "rllm.gateway.port": free_port(),
        "rllm.data.max_response_length": 64,
        "training.learning_rate": 0.5,
    }
    command = [
        *(sys.executable, "-m", "agentcore_rl_toolkit.cli", "train", "--backend", "rllm", "--trainer", "tinker"),
        *(str(AGENT), "--data", write(folder / "rows.jsonl", 4, **row), "--output", str(folder / "run")),
        *("--rows-per-step", "2", "--n", "4", *more),
        *(part for name, value in options.items() for part in ("--options", f"{name}={value}")),
    ]
    environment = os.environ | {"TINKER_API_KEY": "tml-none", "RLLM_HOME": str(folder / "home")}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=240)


def composed(folder: Path, **settings: Any) -> tuple[Any, list[str]]:
    """rLLM's configuration for a run, and the overrides that make it so."""
    from hydra import compose, initialize_config_module

    rows = write(folder / "rows.jsonl", 8)
    plan = BACKEND.plan(RllmSettings(agent=ARN, store="bucket", data=rows, output=str(folder / "run"), **settings))
    texts = list(plan.command[plan.command.index("--") + 1 :])
    with initialize_config_module(config_module="rllm.trainer.config", version_base=None):
        return compose("unified", overrides=texts), texts


def write(path: Path, count: int, **row: Any) -> str:
    path.write_text("".join(json.dumps({"prompt": f"say {n}"} | row) + "\n" for n in range(count)))
    return str(path)
