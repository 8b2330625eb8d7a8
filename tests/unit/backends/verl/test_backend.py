"""verl's settings and plans, where verl itself is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends import verl
from agentcore_rl_toolkit.backends.base import find
from agentcore_rl_toolkit.backends.verl.backend import BACKEND, RuntimeImage, VerlSettings
from agentcore_rl_toolkit.backends.verl.overrides import run_overrides
from agentcore_rl_toolkit.errors import ConfigError
from support.fake_agentcore_control import FakeAgentCoreControl

IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/agents/math:abc"
ROLE = "arn:aws:iam::123456789012:role/math"


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "rl_app.py").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n' * 8)
    known = {"agent": "rl_app.py", "data": "rows.jsonl", "output": "runs/math"}
    return {name: str(tmp_path / value) for name, value in known.items()}


def overrides(settings: dict[str, Any], **changes: Any) -> dict[str, str]:
    """By key, as Hydra reads them."""
    pairs = [override.partition("=") for override in run_overrides(VerlSettings(**settings | changes))]
    found = {key.lstrip("+"): value for key, _, value in pairs}
    assert len(found) == len(pairs)
    return found


def test_it_is_found_by_its_name() -> None:
    assert find("verl") is BACKEND


def test_our_settings_are_verls_where_it_has_them(settings: dict[str, Any], tmp_path: Path) -> None:
    told = overrides(settings, n=4, steps=7, gpus=2, temperature=0.5, eval_data=settings["data"], eval_every=3)
    assert told["actor_rollout_ref.rollout.n"] == "4"
    assert told["trainer.total_training_steps"] == "7"
    assert told["trainer.n_gpus_per_node"] == "2"
    assert told["actor_rollout_ref.rollout.temperature"] == "0.5"
    assert (told["trainer.test_freq"], told["trainer.val_before_train"]) == ("3", "true")
    assert (told["trainer.save_freq"], told["trainer.max_actor_ckpt_to_keep"]) == ("20", "2")
    ours = {name for name in told if ".custom.agentcore." in name}
    assert {name.rpartition(".")[2] for name in ours} == {"agent", "output"}


def test_the_rest_goes_to_the_workers(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {"concurrency": 64, "timeout": 60.0, "failures": {"timeout": "train"}}
    sandbox = {"env": {"API_KEY": "sk-12345678"}, "allow": ("10.0.0.5:5432",), "memory_mb": 512}
    told = overrides(settings, agent="rl_app.py", **changes, **sandbox)
    ours = {name.rpartition(".")[2]: value for name, value in told.items() if ".custom.agentcore." in name}
    assert ours == {
        "agent": str(tmp_path / "rl_app.py"),
        "output": str(tmp_path / "runs" / "math"),
        "concurrency": "64",
        "timeout": "60.0",
        "failures": "{timeout:train}",
        "env": "{API_KEY:'***'}",
        "allow": "['10.0.0.5:5432']",
        "memory_mb": "512",
    }


def test_without_rows_held_out_nothing_is_validated(settings: dict[str, Any]) -> None:
    told = overrides(settings)
    assert (told["trainer.test_freq"], told["trainer.val_before_train"]) == ("-1", "false")
    assert told["data.val_files"] == told["data.train_files"] == settings["data"]


def test_held_out_rows_run_before_and_after_at_the_temperature(settings: dict[str, Any]) -> None:
    told = overrides(settings, steps=7, temperature=0.5, eval_data=settings["data"])
    assert (told["trainer.test_freq"], told["trainer.val_before_train"]) == ("7", "true")
    drawn = {name: told[f"actor_rollout_ref.rollout.val_kwargs.{name}"] for name in ("temperature", "top_p", "top_k")}
    assert drawn == {"temperature": "0.5", "top_p": "1.0", "top_k": "-1"}
    assert told["actor_rollout_ref.rollout.val_kwargs.do_sample"] == "true"


def test_a_run_is_not_overwritten(settings: dict[str, Any], tmp_path: Path) -> None:
    assert overrides(settings, resume=True)["trainer.resume_mode"] == "auto"
    assert overrides(settings)["trainer.resume_mode"] == "disable"
    BACKEND.plan(VerlSettings(**settings))
    saved = tmp_path / "runs" / "math" / "checkpoints"
    saved.mkdir(parents=True)
    (saved / "latest_checkpointed_iteration.txt").write_text("20")
    with pytest.raises(ConfigError, match="has a run already"):
        BACKEND.plan(VerlSettings(**settings))
    BACKEND.plan(VerlSettings(**settings, resume=True))
    BACKEND.plan(VerlSettings(**settings, options={"trainer.resume_mode": "auto"}))
    assert VerlSettings(**settings, options={"trainer.resume_mode": "auto"}).resumes
    elsewhere = {"trainer.default_local_dir": str(tmp_path / "other")}
    BACKEND.plan(VerlSettings(**settings, options=elsewhere))


def test_an_adapter_is_saved_in_verls_own_format(settings: dict[str, Any]) -> None:
    key = "actor_rollout_ref.actor.checkpoint.save_contents"
    assert overrides(settings)[key] == "[model,optimizer,extra,hf_model]"
    lora = {"actor_rollout_ref.model.lora_rank": 8}
    assert overrides(settings, options=lora)[key] == "[model,optimizer,extra]"
    plan = BACKEND.plan(VerlSettings(**settings, options=lora))
    assert any("the newest one is converted" in note for note in plan.notes)


def test_the_sampler_of_an_adapter_gets_merged_weights(settings: dict[str, Any]) -> None:
    key = "actor_rollout_ref.model.lora.merge"
    assert key not in overrides(settings)
    for rank in ("lora_rank", "lora.rank"):
        assert overrides(settings, options={f"actor_rollout_ref.model.{rank}": 8})[key] == "true"
    own = {"actor_rollout_ref.model.lora_rank": 8, key: False}
    assert overrides(settings, options=own)[key] == "false"


def test_options_replace_ours(settings: dict[str, Any]) -> None:
    told = overrides(settings, options={"++trainer.logger": ["wandb"], "actor_rollout_ref.rollout.n": 2, "+a": "[b,c]"})
    assert told["trainer.logger"] == "[wandb]"
    assert (told["actor_rollout_ref.rollout.n"], told["a"]) == ("2", "[b,c]")


def test_a_plan_without_verl_says_what_it_could_not_check(settings: dict[str, Any]) -> None:
    plan = BACKEND.plan(VerlSettings(**settings))
    assert plan.command[1:3] == ("-m", "verl.trainer.main_ppo")
    assert "actor_rollout_ref.rollout.name=vllm" in plan.command
    assert "verl is not installed here, so its configuration was not composed" in plan.notes
    assert any("8 rows" in note for note in plan.notes)


def test_training_without_verl_says_what_to_install(settings: dict[str, Any]) -> None:
    with pytest.raises(ImportError, match=r"agentcore-rl-toolkit\[verl\]"):
        BACKEND.train(VerlSettings(**settings))
    with pytest.raises(ImportError, match=r"agentcore-rl-toolkit\[verl\]"):
        verl.AgentCoreManager  # noqa: B018
    assert verl.VerlEngine.__name__ == "VerlEngine"  # that needs none


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"engine": "hf"}, "engine must be one of vllm, sglang, trtllm"),
        ({"max_batch_tokens": 100}, "verl can't keep max_batch_tokens"),
        ({"gpus": 0}, "gpus must be at least 1"),
        ({"workers": 2, "gateway_public_url": "http://a:80"}, "2 workers can't share the gateway_public_url"),
        ({"gateway_public_url": "http://a:{port}"}, "gateway_port is not set"),
    ],
)
def test_what_can_not_work_is_refused(settings: dict[str, Any], changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        VerlSettings(**settings | changes)


# --- from an image --------------------------------------------------------------------------------------------------


def test_a_plan_with_an_image_asks_nobody(settings: dict[str, Any]) -> None:
    aws = settings | {
        "agent": "math_agent",
        "container_uri": IMAGE,
        "store": "bucket",
        "gateway_public_url": "http://gw:80",
    }
    plan = BACKEND.plan(VerlSettings(**aws))
    assert plan.notes[0] == f"agent: the runtime math_agent, created or updated from {IMAGE} when verl starts"
    assert "own address" not in str(plan.notes)
    near = BACKEND.plan(VerlSettings(**aws | {"gateway_public_url": None}))  # in the cluster's VPC
    assert any("at its node's own address" in note for note in near.notes)
    with pytest.raises(ConfigError, match="can't reach a gateway"):
        BACKEND.plan(VerlSettings(**aws | {"gateway_public_url": "http://127.0.0.1:9000"}))
    with pytest.raises(ConfigError, match="is not an image in ECR"):
        BACKEND.plan(VerlSettings(**aws | {"container_uri": "math:dev"}))
    with pytest.raises(ConfigError, match="which needs a name"):
        BACKEND.plan(VerlSettings(**aws | {"agent": ""}))


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAgentCoreControl]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with FakeAgentCoreControl().serving() as fake:
        for name, value in {**fake.env, "AWS_REGION": "us-west-2"}.items():
            monkeypatch.setenv(name, value)
        yield fake


def test_a_runtime_is_made_and_then_updated_with_nothing_else_changed(control: FakeAgentCoreControl) -> None:
    fake, plane = control, {"pause": 0.001, "timeout": 5.0}
    with pytest.raises(ConfigError, match="the runtime math doesn't exist yet, and needs a role"):
        RuntimeImage(name="math", uri=IMAGE).deploy(**plane)
    arn = RuntimeImage(name="math", uri=IMAGE, role_arn=ROLE).deploy(**plane)
    assert fake.changes == ["CreateAgentRuntime"]
    (known,) = fake.runtimes.values()
    assert known["agentRuntimeArn"] == arn
    vpc = {
        "networkMode": "VPC",
        "networkModeConfig": {"subnets": ["subnet-0a1b2c3d"], "securityGroups": ["sg-0a1b2c3d"]},
    }
    known |= {"environmentVariables": {"TABLE": "x"}, "networkConfiguration": vpc}
    assert RuntimeImage(name="math", uri=IMAGE).deploy(**plane) == arn  # nothing differs
    assert fake.changes == ["CreateAgentRuntime"]
    assert RuntimeImage(name="math", uri=f"{IMAGE}2").deploy(**plane) == arn
    assert fake.changes == ["CreateAgentRuntime", "UpdateAgentRuntime"]
    (known,) = fake.runtimes.values()
    assert known["agentRuntimeArtifact"]["containerConfiguration"]["containerUri"] == f"{IMAGE}2"
    assert (known["roleArn"], known["environmentVariables"], known["networkConfiguration"]) == (
        ROLE,
        {"TABLE": "x"},
        vpc,
    )
