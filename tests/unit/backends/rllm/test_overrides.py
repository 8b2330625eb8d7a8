"""A run's settings as rLLM's overrides."""

from __future__ import annotations

from typing import Any

import pytest

from agentcore_rl_toolkit.backends.launch import hydra_value
from agentcore_rl_toolkit.backends.rllm import RllmSettings
from agentcore_rl_toolkit.backends.rllm.overrides import run_overrides
from agentcore_rl_toolkit.engine.tiny import path as tiny_path
from agentcore_rl_toolkit.errors import ConfigError

ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/your-agent"
TIMEOUT = "rllm.remote_runtime.agentcore.session_timeout"


def written(rows: int = 100, **settings: Any) -> dict[str, str]:
    known = RllmSettings.from_mapping({"agent": ARN, "model": "Qwen/Qwen3-4B", "output": "/runs/math"} | settings)
    texts = run_overrides(known, ARN, "your-s3-bucket", "exp-1", rows)
    assert len({text.partition("=")[0].lstrip("+~") for text in texts}) == len(texts)
    return dict(text.partition("=")[::2] for text in texts)


def test_the_runtime_as_the_seeds_write_it() -> None:
    for trainer in ("verl", "tinker"):
        found = written(trainer=trainer, tps_limit=10, session_timeout=200)
        remote = {name: value for name, value in found.items() if name.startswith("rllm.remote_runtime.")}
        assert remote == {
            "rllm.remote_runtime.enabled": "true",
            "rllm.remote_runtime.backend": "agentcore",
            "rllm.remote_runtime.agentcore.agent_runtime_arn": ARN,
            "rllm.remote_runtime.agentcore.s3_bucket": "your-s3-bucket",
            "rllm.remote_runtime.agentcore.tps_limit": "10",
            "rllm.remote_runtime.session_timeout": "200",
        }
        assert found["rllm/backend"] == trainer


def test_each_trainer_has_its_own_names_for_the_rest() -> None:
    verl = written(n=4, rows_per_step=16)
    assert verl["+model.name"] == verl["actor_rollout_ref.model.path"] == "Qwen/Qwen3-4B"
    assert verl["rllm.rollout.n"] == "4"
    assert verl["actor_rollout_ref.actor.ppo_mini_batch_size"] == verl["rllm.data.train_batch_size"] == "16"
    assert verl["trainer.default_local_dir"] == "/runs/math/checkpoints"
    tinker = written(trainer="tinker", n=4)
    assert tinker["model.name"] == "Qwen/Qwen3-4B"
    assert (tinker["training.group_size"], tinker["validation.group_size"]) == ("4", "1")
    assert tinker["training.default_local_dir"] == "/runs/math/checkpoints"
    assert not any(name.startswith(("actor_rollout_ref", "+")) for name in tinker)
    assert written(model="tiny")["+model.name"] == hydra_value(str(tiny_path()))


def test_steps_may_take_several_passes_over_the_rows() -> None:
    found = written(rows=100, rows_per_step=30, steps=7, seed=5)
    assert found["rllm.trainer.total_batches"] == "7"
    assert found["rllm.trainer.total_epochs"] == "3"  # of three steps each: what is left of the rows is left out
    assert found["rllm.data.seed"] == "5"


def test_it_evaluates_where_there_are_held_out_rows() -> None:
    assert written()["rllm.trainer.test_freq"] == "-1"
    found = written(eval_data="test.jsonl")
    assert found["rllm.trainer.val_before_train"] == "true"
    assert "rllm.trainer.test_freq" not in found


def test_failed_sessions_are_not_trained_on() -> None:
    assert written()["rllm.compact_filtering.enable"] == "true"
    assert written(options={"rllm.compact_filtering.enable": False})["rllm.compact_filtering.enable"] == "false"


def test_results_land_under_the_experiment() -> None:
    assert written()["rllm.trainer.experiment_name"] == "exp-1"


def test_the_gateway_of_an_agent_on_this_machine_is_on_loopback() -> None:
    assert "rllm.gateway.host" not in written()
    assert written(agent="agents/math/rl_app.py")["rllm.gateway.host"] == "'127.0.0.1'"


def test_a_users_options_win() -> None:
    options = {
        "rllm.gateway.port": 9191,
        "rllm": {"trainer": {"logger": ["console", "wandb"]}, "gateway": {"tunnel": "cloudflared"}},
        "trainer.n_gpus_per_node": 8,
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser": "hermes",
        "model.name": "served-name",
        "actor_rollout_ref.rollout.name": "sglang",
        "data.reward_fn_key": "'data source'",
        "~data.sampler": None,
        "critic.model": {},
    }
    found = written(options=options)
    assert found["rllm.gateway.port"] == "9191"
    assert found["rllm.gateway.tunnel"] == "cloudflared"
    assert found["rllm.trainer.logger"] == "[console,wandb]"
    assert found["trainer.n_gpus_per_node"] == "8"
    assert found["+actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser"] == "hermes"
    assert found["+model.name"] == "served-name"  # verl's configuration has no such name, so it stays an addition
    assert found["actor_rollout_ref.rollout.name"] == "sglang"
    assert found["data.reward_fn_key"] == "'data source'"  # a text is passed on as it was written
    assert found["~data.sampler"] == ""
    assert found["critic.model"] == "{}"


@pytest.mark.parametrize("name", [TIMEOUT, f"+{TIMEOUT}"])
def test_the_time_limit_is_accepted_where_the_seeds_have_it(name: str) -> None:
    found = written(options={name: 600})
    assert found["rllm.remote_runtime.session_timeout"] == "600"
    assert name not in found


def test_contradictions_are_refused() -> None:
    for name, value in (
        ("rllm.remote_runtime.agentcore.agent_runtime_arn", f"{ARN}2"),
        ("rllm.remote_runtime.agentcore.s3_bucket", "another"),
        ("rllm.remote_runtime.enabled", False),
        ("rllm.remote_runtime.backend", "harbor"),
        ("rllm/backend", "tinker"),
    ):
        with pytest.raises(ConfigError, match="contradicts this run's"):
            written(options={name: value})
    assert written(options={"rllm.remote_runtime.agentcore.agent_runtime_arn": ARN}) == written()
    with pytest.raises(ConfigError, match="is given twice, as 100 and 200"):
        written(options={TIMEOUT: 100, "rllm.remote_runtime.session_timeout": 200})
