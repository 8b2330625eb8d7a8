"""verl's own configuration: what its program makes of the seeds' spelling, and of a plan."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.import_utils import load_class_from_fqn

from agentcore_rl_toolkit.backends.base import is_installed
from agentcore_rl_toolkit.backends.verl.backend import BACKEND, VerlSettings
from agentcore_rl_toolkit.backends.verl.compose import RolloutConfig, check_overrides, compose_config
from agentcore_rl_toolkit.backends.verl.environment import ATTENTION
from agentcore_rl_toolkit.backends.verl.overrides import MANAGER, run_overrides, translate
from agentcore_rl_toolkit.engine.tiny import path as tiny
from agentcore_rl_toolkit.errors import ConfigError

ROOT = Path(__file__).parents[2]
ROLLOUT = "actor_rollout_ref.rollout"
ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math-AbCdEf1234"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/agents/math:dev"
START = [
    f"{ROLLOUT}.name=agentcore",
    f"{ROLLOUT}.agentcore.agent_runtime_arn={ARN}",
    f"{ROLLOUT}.agentcore.s3_bucket=my-bucket",
    f"{ROLLOUT}.n=4",
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "1 + 1", "answer": "2"}\n' * 16)
    return path


def spelled(*more: str) -> Any:
    return compose_config(translate([*START, *more]))


def test_the_example_is_understood_by_stock_verl() -> None:
    """Its program reads the seeds' spelling, with our plugin, and shows what it makes of it."""
    script = ROOT / "examples" / "strands_math_agent" / "train_verl.sh"
    told = {"PYTHON": sys.executable, "IMAGE": IMAGE, "BUCKET": "my-bucket", "PYTHONWARNINGS": "ignore"}
    shown = subprocess.run([script, "--cfg", "job"], capture_output=True, text=True, env={**os.environ, **told})
    assert shown.returncode == 0, shown.stderr[-2000:]
    config = OmegaConf.create(shown.stdout)
    rollout = config.actor_rollout_ref.rollout
    assert rollout.name == "vllm"
    ours = rollout.custom.agentcore
    assert (ours.agent_name, ours.container_uri, ours.s3_bucket) == ("strands_math_agent", IMAGE, "my-bucket")
    assert load_class_from_fqn(OmegaConf.select(config, MANAGER)).__name__ == "AgentCoreManager"
    assert RolloutConfig.read(config).settings.image is not None
    assert config.algorithm.adv_estimator == "grpo"


def test_the_guides_command_is_understood_by_verl() -> None:
    guide = (ROOT / "docs" / "guides" / "verl.md").read_text()
    block = guide.split("<!-- verl command -->")[1].split("```bash")[1].split("```")[0]
    python, module, name, *overrides = shlex.split(block.replace("\\\n", ""))
    assert (python, module, name) == ("python", "-m", "verl.trainer.main_ppo")
    assert any("accepts its configuration" in note for note in check_overrides(translate(overrides)))


def test_verls_own_types_take_it() -> None:
    config = spelled(f"{ROLLOUT}.agentcore.failures.timeout=train", f"{ROLLOUT}.agentcore.engine=sglang")
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert (rollout.name, rollout.agent.num_workers) == ("sglang", 1)
    assert rollout.custom["agentcore"]["failures"] == {"timeout": "train"}
    found = RolloutConfig.read(config)
    assert (found.settings.agent, found.settings.n, found.context) == (ARN, 4, 1024)
    assert found.settings.failures == {"timeout": "train"}


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (f"{ROLLOUT}.agentcore.n=3", "agentcore.n is verl's own setting"),
        (f"{ROLLOUT}.agentcore.s3_buckt=b", "unknown setting 's3_buckt'"),
        ("algorithm.adv_estimator=rloo", "rloo counts a rollout of several rows several times"),
        ("trainer.use_v1=false", "V1 trainer"),
        ("algorithm.adv_estimator=agentcore_turns", "doesn't go with credit=rollout"),
        (f"{ROLLOUT}.agentcore.discount=0.5", "discount=0.5 has no effect"),
        (f"{ROLLOUT}.n=1", "GRPO compares"),
        (f"{ROLLOUT}.agentcore.agent_runtime_arn=''", "no agent to run"),
        (f"{ROLLOUT}.agentcore.s3_bucket=./results", "can't store results in a folder"),
    ],
)
def test_what_would_not_work_is_refused(override: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        RolloutConfig.read(spelled(override))


def test_turn_credit_brings_its_estimator() -> None:
    credit = f"{ROLLOUT}.agentcore.credit=turn"
    config = spelled(credit)
    assert config.algorithm.adv_estimator == "agentcore_turns"
    assert RolloutConfig.read(config).settings.turn_credit is not None
    for override, problem in (
        ("algorithm.adv_estimator=grpo", "adv_estimator=grpo doesn't go with credit=turn"),
        ("algorithm.use_kl_in_reward=True", "would add the penalty to the advantages"),
        ("algorithm.filter_groups.enable=True", "set agentcore.dynamic_sampling=True"),
    ):
        with pytest.raises(ConfigError, match=problem):
            RolloutConfig.read(spelled(credit, override))


def test_without_an_agent_verl_is_told_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="which agent to run"):
        RolloutConfig.read(compose_config([f"{ROLLOUT}.name=vllm"]))


def test_the_context_is_the_shortest_that_is_set() -> None:
    assert RolloutConfig.read(spelled(f"{ROLLOUT}.max_model_len=900")).context == 900
    assert RolloutConfig.read(spelled(f"{ROLLOUT}.agentcore.context_limit=800")).context == 800


def test_workers_share_the_limits() -> None:
    url = f"{ROLLOUT}.agentcore.gateway_public_url='http://{{host}}:{{port}}'"
    more = ["agentcore.gateway_port=9000", "agentcore.concurrency=9", "agentcore.tps_limit=20", "agent.num_workers=4"]
    found = RolloutConfig.read(spelled(url, *(f"{ROLLOUT}.{one}" for one in more)))
    mine = found.for_worker(2, 4, "agent.py", "10.0.0.7")
    assert (mine.concurrency, mine.tps_limit, mine.gateway_port) == (2, 5.0, 9002)
    assert (mine.gateway_public_url, mine.agent) == ("http://10.0.0.7:9002", "agent.py")


def test_the_gateway_is_where_its_agents_are() -> None:
    aws, local = (
        RolloutConfig.read(spelled(*more)) for more in ([], [f"{ROLLOUT}.agentcore.agent_runtime_arn=agent.py"])
    )
    assert aws.for_worker(0, 1, ARN, "10.0.0.7").gateway_host == "10.0.0.7"
    assert local.for_worker(0, 1, "agent.py", "10.0.0.7").gateway_host == "127.0.0.1"
    told = RolloutConfig.read(spelled(f"{ROLLOUT}.agentcore.gateway_host=0.0.0.0"))
    assert told.for_worker(0, 1, ARN, "10.0.0.7").gateway_host == "0.0.0.0"


def test_a_plan_is_composed_and_checked(agent: Path, rows: Path) -> None:
    settings = VerlSettings(agent=str(agent), data=str(rows), n=4, context_limit=4096, output="runs/it's")
    plan = BACKEND.plan(settings)
    assert plan.command[:3] == (sys.executable, "-m", "verl.trainer.main_ppo")
    assert any("accepts its configuration" in note for note in plan.notes)
    config = compose_config(plan.command[3:])
    assert config.data.train_batch_size == settings.rows_per_step
    assert config.trainer.default_local_dir.endswith("runs/it's/checkpoints")
    assert config.actor_rollout_ref.rollout.prompt_length + config.actor_rollout_ref.rollout.response_length == 4096
    read = RolloutConfig.read(config).settings
    assert (read.agent, read.n, read.context_limit) == (str(agent), 4, 4096)
    data = create_rl_dataset(config.data.train_files, config.data, None, None)
    assert (len(data), data[3]["payload"]) == (16, {"prompt": "1 + 1", "answer": "2"})


def test_options_have_the_last_word_and_typos_are_refused(agent: Path, rows: Path) -> None:
    settings = VerlSettings(agent=str(agent), data=str(rows), options={"trainer.logger": "[a, b]"})
    assert compose_config(BACKEND.plan(settings).command[3:]).trainer.logger == ["a", "b"]
    with pytest.raises(ConfigError, match="loger"):
        BACKEND.plan(VerlSettings(agent=str(agent), data=str(rows), options={"trainer.loger": "wandb"}))
    odd = {"data.train_batch_size": 3, "trainer.n_gpus_per_node": 2, "actor_rollout_ref.actor.use_dynamic_bsz": False}
    with pytest.raises(ConfigError, match="verl refuses its configuration"):
        BACKEND.plan(VerlSettings(agent=str(agent), data=str(rows), n=3, options=odd))


def test_verl_saves_what_transformers_load_and_steps_alone_end_a_run(agent: Path, rows: Path, tmp_path: Path) -> None:
    known = {"agent": str(agent), "data": str(rows), "eval_data": str(rows), "output": str(tmp_path / "run")}
    config = compose_config(run_overrides(VerlSettings(**known, steps=500, save_every=5, keep=3, temperature=0.5)))
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    assert (trainer.save_freq, trainer.max_actor_ckpt_to_keep, trainer.resume_mode) == (5, 3, "disable")
    assert "hf_model" in omega_conf_to_dataclass(config.actor_rollout_ref.actor.checkpoint).save_contents
    steps_per_epoch = len(create_rl_dataset(config.data.train_files, config.data, None, None)) // 8
    assert trainer.total_training_steps == 500 <= steps_per_epoch * trainer.total_epochs
    assert (trainer.val_before_train, trainer.test_freq) == (True, 500)
    validation = omega_conf_to_dataclass(rollout).val_kwargs
    assert (validation.do_sample, validation.temperature, validation.top_p, validation.top_k) == (True, 0.5, 1.0, -1)
    resumed = compose_config(run_overrides(VerlSettings(**known, resume=True)))
    assert resumed.trainer.resume_mode == "auto"


def test_the_samplers_logprobs_correct_the_loss(agent: Path, rows: Path) -> None:
    config = spelled()
    known = config.algorithm.rollout_correction
    assert (known.rollout_is, known.rollout_is_threshold, known.bypass_mode) == ("token", 2.0, False)
    assert config.actor_rollout_ref.rollout.calculate_log_probs
    off = "algorithm.rollout_correction.rollout_is"
    assert spelled(f"{off}=null").algorithm.rollout_correction.rollout_is is None
    told = {"trainer.v1.trainer_mode": "colocate_async", off: "sequence"}
    settings = VerlSettings(agent=str(agent), data=str(rows), options=told)
    assert compose_config(run_overrides(settings)).algorithm.rollout_correction.rollout_is == "sequence"
    assert not [note for note in check_overrides(run_overrides(settings)) if "without a correction" in note]
    without = VerlSettings(agent=str(agent), data=str(rows), options=told | {off: "null"})
    assert [note for note in check_overrides(run_overrides(without)) if "without a correction" in note]


@pytest.mark.skipif(is_installed("flash_attn"), reason="here is flash-attn")
def test_the_sampler_of_an_adapter_gets_merged_weights(agent: Path, rows: Path) -> None:
    lora = {"actor_rollout_ref.model.lora_rank": 8}
    config = compose_config(
        run_overrides(VerlSettings(agent=str(agent), data=str(rows), model=str(tiny()), options=lora))
    )
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    assert model.lora_rank == 8
    assert model.lora.get("merge") is True


def test_without_flash_attn_the_model_is_loaded_with_sdpa(agent: Path, rows: Path) -> None:
    known = {"agent": str(agent), "data": str(rows)}
    config = compose_config(run_overrides(VerlSettings(**known)))
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    assert model.hf_config._attn_implementation == "sdpa"
    assert model.use_remove_padding
    assert any("attn_implementation=sdpa" in note for note in BACKEND.plan(VerlSettings(**known)).notes)
    asked = VerlSettings(**known, options={f"+{ATTENTION}": "flash_attention_2"})
    assert any("set +actor_rollout_ref" in note for note in BACKEND.plan(asked).notes)
    split = VerlSettings(**known, options={"actor_rollout_ref.actor.ulysses_sequence_parallel_size": 2})
    with pytest.raises(ConfigError, match="split sequences over 2 GPUs"):
        BACKEND.plan(split)


def test_sdpa_keeps_packed_sequences_apart() -> None:
    """As verl calls the model with `use_remove_padding`: one row, no mask, and positions that start over."""
    model = AutoModelForCausalLM.from_pretrained(str(tiny()), attn_implementation="sdpa", dtype=torch.float32).eval()
    first, second = torch.arange(3, 20)[None], torch.arange(40, 60)[None]
    positions = torch.cat([torch.arange(17), torch.arange(20)])[None]
    with torch.no_grad():
        alone = torch.cat([model(ids, use_cache=False).logits for ids in (first, second)], 1)
        both = torch.cat([first, second], 1)
        packed = model(both, attention_mask=None, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(packed, alone, atol=1e-4, rtol=1e-4)


def test_trl_beside_verl_is_warned_of(agent: Path, rows: Path) -> None:
    """The warning is right: verl's own import of TRL fails exactly where the plan warns."""
    notes = BACKEND.plan(VerlSettings(agent=str(agent), data=str(rows))).notes
    model = AutoModelForCausalLM.from_pretrained(str(tiny()))
    warned = any("separate environments" in note for note in notes)
    with pytest.raises(ImportError, match="AutoModelForCausalLMWithValueHead") if warned else nullcontext():
        apply_monkey_patch(model)


def test_losses_by_row_are_noted() -> None:
    more = ["actor_rollout_ref.actor.use_dynamic_bsz=true", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"]
    notes = check_overrides(translate([*START, *more]))
    assert any("its own sequence" in note for note in notes)
