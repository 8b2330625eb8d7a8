"""The seeds' spelling, and ours, as stock verl takes them."""

from __future__ import annotations

import runpy
import sys

import pytest

from agentcore_rl_toolkit.backends.verl.overrides import MANAGER, NEEDED, translate, write_overrides

ROLLOUT = "actor_rollout_ref.rollout"


def test_other_command_lines_stay_as_they_are() -> None:
    for told in ([], ["--help"], [f"{ROLLOUT}.name=vllm", "data.train_files=agentcore"], ["name=agentcore"]):
        assert translate(told) == told


def test_the_seeds_spelling_becomes_verls_own() -> None:
    told = translate(
        [
            f"{ROLLOUT}.agentcore.agent_name=math",
            f"{ROLLOUT}.name=agentcore",
            f"+{ROLLOUT}.agentcore.failures.timeout=train",
            "trainer.nnodes=2",
            "--cfg",
            "job",
        ]
    )
    assert told[0] == f"++{ROLLOUT}.custom.agentcore.agent_name=math"
    assert told[1] == f"{ROLLOUT}.name=vllm"
    assert told[2 : 2 + len(NEEDED)] == write_overrides(NEEDED)
    assert told[2 + len(NEEDED) :] == [
        f"++{ROLLOUT}.custom.agentcore.failures.timeout=train",
        "trainer.nnodes=2",
        "--cfg",
        "job",
    ]


def test_what_was_said_is_not_said_again() -> None:
    start = f"{ROLLOUT}.name=agentcore"
    told = translate([start, "algorithm.adv_estimator=gae", "data.custom_cls.path=mine.py", f"++{MANAGER}=my.Manager"])
    keys = [one.lstrip("+").partition("=")[0] for one in told]
    assert len(keys) == len(set(keys))
    assert "data.custom_cls.name" not in keys
    assert "algorithm.adv_estimator=gae" in told


def test_the_server_that_samples_can_be_chosen() -> None:
    told = translate([f"{ROLLOUT}.name=agentcore", f"{ROLLOUT}.agentcore.engine=sglang"])
    assert told[0] == f"{ROLLOUT}.name=sglang"
    assert not any("agentcore.engine" in one for one in told)


def test_the_plugin_rewrites_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["main_ppo.py", f"{ROLLOUT}.name=agentcore", f"{ROLLOUT}.agentcore.s3_bucket=b"])
    monkeypatch.delitem(sys.modules, "agentcore_rl_toolkit.backends.verl.plugin", raising=False)
    runpy.run_module("agentcore_rl_toolkit.backends.verl.plugin")
    assert sys.argv[0] == "main_ppo.py"
    assert sys.argv[1] == f"{ROLLOUT}.name=vllm"
    assert sys.argv[-1] == f"++{ROLLOUT}.custom.agentcore.s3_bucket=b"


def test_the_sampler_of_an_adapter_gets_merged_weights() -> None:
    start, rank = f"{ROLLOUT}.name=agentcore", "actor_rollout_ref.model.lora_rank=8"
    merge = "actor_rollout_ref.model.lora.merge=true"
    assert merge in translate([start, rank])
    assert merge not in translate([start])
    assert merge not in translate([start, rank, "actor_rollout_ref.model.lora.merge=false"])
