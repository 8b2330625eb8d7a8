"""A run's settings: what they refuse, and what rollouts and TRL get of them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.base import TrainingPlan, check_settings
from agentcore_rl_toolkit.backends.settings import LoopSettings, RolloutSettings, TrainSettings
from agentcore_rl_toolkit.backends.trl.backend import TrlSettings
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.remote.gateway_client import GatewayClient
from agentcore_rl_toolkit.rollout import UNALTERED, Action
from agentcore_rl_toolkit.rollout.signal.credit import TurnCredit
from agentcore_rl_toolkit.runtime.local import AgentSource
from agentcore_rl_toolkit.types import Status
from support.gateway import gateway_tokenizer

COUNTS = ("steps", "rows_per_step", "batch_size", "concurrency", "save_every", "eval_samples")


@pytest.mark.parametrize("name", COUNTS)
def test_what_must_be_at_least_one(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, not 0"):
        TrlSettings(**{name: 0})
    TrlSettings(**{name: 1})


def test_what_runs_ahead_is_bounded_by_admission_only() -> None:
    with pytest.raises(ConfigError, match="async_steps must be at least 0, not -1"):
        LoopSettings(async_steps=-1)
    for given in ({"max_staleness": 0}, {"oversample": 1}, {"max_batch_tokens": 100}):
        (name,) = given
        with pytest.raises(ConfigError, match=f"{name} can't be used with async_steps"):
            LoopSettings(async_steps=2, **given)
        assert LoopSettings(**given).async_steps == 0
    assert LoopSettings(async_steps=2, dynamic_sampling=True).async_steps == 2


@pytest.mark.parametrize("weight", [0, -1.0, float("inf"), float("nan"), True, "half"])
def test_the_share_of_a_file_is_a_number_above_0(weight: Any) -> None:
    with pytest.raises(ConfigError, match=r"mix more\.jsonl must be a number above 0(.|\n)*for each row of data"):
        LoopSettings(mix={"more.jsonl": weight})
    assert LoopSettings(mix={"more.jsonl": 0.5}).mix == {"more.jsonl": 0.5}


def test_the_file_of_data_is_not_mixed_with_itself() -> None:
    with pytest.raises(ConfigError, match=r"mix rows\.jsonl is the file of data itself"):
        LoopSettings(data="rows.jsonl", mix={"rows.jsonl": 2.0})


def test_a_group_of_one_learns_nothing() -> None:
    with pytest.raises(ConfigError, match="n must be at least 2, not 1") as caught:
        TrlSettings(n=1)
    assert "hint: GRPO compares" in str(caught.value)


def test_types_of_weights() -> None:
    with pytest.raises(ConfigError, match="one of float32, bfloat16, float16, not 'int8'"):
        TrlSettings(dtype="int8")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"credit": "token"}, "credit must be rollout or turn, not 'token'"),
        ({"discount": 0.9}, "discount=0.9 has no effect on whole rollouts\nhint: set credit=turn"),
        ({"process_weight": 0.0}, "process_weight=0.0 has no effect on whole rollouts"),
        ({"credit": "turn", "discount": 1.5}, "discount must be from 0 to 1"),
    ],
)
def test_credit_that_would_do_nothing_or_harm_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TrlSettings(**settings)


def test_credit_reaches_the_judge() -> None:
    settings = TrlSettings(credit="turn", discount=0.9, process_weight=0.5)
    assert settings.rollout_options(None).judge.credit == TurnCredit(discount=0.9, process_weight=0.5)
    assert TrlSettings().rollout_options(None).judge.credit is None


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    assert TrlSettings.from_mapping({"steps": 3, "data": "x"}) == TrlSettings(steps=3, data="x")
    with pytest.raises(ConfigError, match="unknown setting 'learning_rat'") as caught:
        TrlSettings.from_mapping({"learning_rat": 1.0, "steps": 1})
    assert "did you mean 'learning_rate'?" in str(caught.value)
    with pytest.raises(ConfigError, match="the settings are: agent, data, model"):
        TrlSettings.from_mapping({"zzz": 1})


def test_what_every_model_call_samples_with() -> None:
    assert TrlSettings(temperature=0.5).sampling == {**UNALTERED, "temperature": 0.5}
    assert TrlSettings(temperature=0.7, max_tokens=7).sampling == {**UNALTERED, "temperature": 0.7, "max_tokens": 7}


def test_every_setting_has_a_default_of_its_kind() -> None:
    assert dataclasses.asdict(TrlSettings())["output"] == "runs/train"
    assert TrlSettings().folder == Path("runs/train")


def test_how_rollouts_are_run() -> None:
    settings = TrlSettings(
        n=5,
        concurrency=7,
        timeout=11.0,
        oversample=2,
        max_failures=3,
        max_batch_tokens=999,
        temperature=0.5,
        context_limit=77,
        side_calls={"model": "*haiku*"},
        failures={"timeout": "train"},
        failed_reward=-2.0,
        min_trained_ratio=0.5,
        max_rollout_tokens=66,
        max_staleness=2,
        dynamic_sampling=True,
    )
    options = settings.rollout_options("policy", lambda: 5)
    assert (options.n, options.max_concurrent_sessions, options.timeout, options.oversample) == (5, 7, 11.0, 2)
    assert (options.max_failures, options.max_batch_tokens, options.context_limit) == (3, 999, 77)
    assert (options.model, options.keep_dropped) == ("policy", True)
    assert options.side_calls == {"model": "*haiku*"}
    assert options.enforced == {**UNALTERED, "temperature": 0.5}
    assert options.enforced["top_k"] == -1  # whatever an agent asks for, or a server's files say
    judge = options.judge
    assert (judge.failed_reward, judge.min_trained_ratio, judge.max_rollout_tokens) == (-2.0, 0.5, 66)
    assert (judge.max_staleness, judge.version()) == (2, 5)
    assert (judge.dynamic_sampling, judge.table[Status.TIMEOUT]) == (True, Action.TRAIN)


@pytest.mark.parametrize(
    ("given", "processes", "batch", "chunks"),
    [
        ({"rows_per_step": 4, "n": 4, "batch_size": 16}, 1, 16, 1),
        ({"rows_per_step": 4, "n": 4, "batch_size": 64}, 1, 16, 1),
        ({"rows_per_step": 4, "n": 4, "batch_size": 5}, 1, 4, 4),
        ({"rows_per_step": 3, "n": 5, "batch_size": 4}, 1, 3, 5),
        ({"rows_per_step": 4, "n": 4, "batch_size": 16}, 2, 8, 1),
        ({"rows_per_step": 4, "n": 4, "batch_size": 3}, 4, 2, 2),
    ],
)
def test_a_step_is_cut_into_equal_chunks(given: dict[str, Any], processes: int, batch: int, chunks: int) -> None:
    pytest.importorskip("trl")
    from agentcore_rl_toolkit.backends.trl.grpo_config import trl_config

    config = trl_config(TrlSettings(device="cpu", **given), processes)
    assert (config.per_device_train_batch_size, config.steps_per_generation) == (batch, chunks)
    assert config.gradient_accumulation_steps == chunks  # one update for all of a step's rollouts
    assert batch * chunks * processes == given["rows_per_step"] * given["n"]


def test_rows_that_can_not_be_shared_are_refused() -> None:
    pytest.importorskip("trl")
    from agentcore_rl_toolkit.backends.trl.grpo_config import trl_config

    for rows, processes in ((3, 2), (4, 3), (1, 2)):
        with pytest.raises(ConfigError, match=f"rows_per_step={rows} can't be shared by {processes} processes"):
            trl_config(TrlSettings(rows_per_step=rows, n=4, device="cpu"), processes)


def test_what_trl_gets() -> None:
    pytest.importorskip("trl")
    import torch

    from agentcore_rl_toolkit.backends.trl.grpo_config import trl_config

    settings = TrlSettings(
        output="out",
        steps=7,
        learning_rate=0.5,
        loss="grpo",
        temperature=0.7,
        seed=5,
        save_every=3,
        keep=4,
        device="cpu",
    )
    config = trl_config(settings)
    assert (config.output_dir, config.max_steps, config.learning_rate) == ("out/checkpoints", 7, 0.5)
    assert (config.loss_type, config.temperature, config.seed, config.beta) == ("grpo", 0.7, 5, 0.0)
    assert config.dataloader_pin_memory == torch.cuda.is_available()  # without a GPU, PyTorch warns of it
    assert (config.save_steps, config.save_total_limit, config.use_cpu, config.report_to) == (3, 4, True, [])
    assert trl_config(dataclasses.replace(settings, report_to="tensorboard,wandb")).report_to == [
        "tensorboard",
        "wandb",
    ]


def test_names_that_trainers_have_for_the_same() -> None:
    given = TrlSettings.from_mapping(
        {"agent_runtime_arn": "arn:x", "s3_bucket": "b", "session_timeout": 9, "data_path": "d"}
    )
    assert (given.agent, given.store, given.timeout, given.data) == ("arn:x", "b", 9, "d")
    with pytest.raises(ConfigError, match="s3_bucket and store are the same setting"):
        TrlSettings.from_mapping({"store": "a", "s3_bucket": "b"})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("steps", "7", "steps must be int, not '7'"),
        ("steps", True, "steps must be int, not True"),
        ("steps", 1.5, "steps must be int, not 1.5"),
        ("timeout", "soon", "timeout must be float, not 'soon'"),
        ("store", 3, "store must be str or nothing, not 3"),
        ("resume", "yes", "resume must be bool, not 'yes'"),
        ("options", ["a"], r"options must be Mapping, not \['a'\]"),
    ],
)
def test_a_value_of_another_kind_is_refused(name: str, value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TrlSettings.from_mapping({name: value})


def test_trls_own_settings_are_passed_on() -> None:
    pytest.importorskip("trl")
    from agentcore_rl_toolkit.backends.trl.grpo_config import trl_config

    config = trl_config(TrlSettings(device="cpu", options={"lr_scheduler_type": "linear", "warmup_steps": 3}))
    assert (config.lr_scheduler_type, config.warmup_steps, config.beta) == ("linear", 3, 0.0)
    with pytest.raises(ConfigError, match=r"TRL refuses its settings: .*no_such_field"):
        trl_config(TrlSettings(device="cpu", options={"no_such_field": 3}))
    with pytest.raises(ConfigError, match=r"options\.max_steps can't be given"):
        trl_config(TrlSettings(device="cpu", options={"max_steps": 3}))


def test_the_client_of_a_run(tmp_path: Path) -> None:
    agent = tmp_path / "a.py"
    agent.write_text("")
    with TrlSettings(agent=str(agent), output=str(tmp_path / "run"), exp_id="mine").client() as client:
        assert client.exp_id == "mine"
    with TrlSettings(agent=str(agent), output=str(tmp_path / "run")).client() as client:
        assert client.exp_id.startswith("run-20")


def test_what_the_sessions_of_a_run_get(tmp_path: Path) -> None:
    agent = tmp_path / "a.py"
    agent.write_text("")
    (tmp_path / ".env").write_text("KEY=of-the-file\nMODE=file\n")
    settings = TrlSettings.from_mapping({"agent": str(agent), "env": {"MODE": "given"}, "allow": ["10.0.0.5:5432"]})
    source = settings.local_agent()
    assert isinstance(source, AgentSource)
    assert source.env == {"KEY": "of-the-file", "MODE": "given"}
    assert (source.policy.allow, source.policy.memory_mb) == (("10.0.0.5:5432",), 2048)
    with pytest.raises(ConfigError, match="env PORT must be text, not 3"):
        dataclasses.replace(settings, env={"PORT": 3}).local_agent()


def test_another_process_of_a_run_reads_the_values_that_it_was_not_shown(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    run = {"agent": str(tmp_path / "a.py"), "output": str(tmp_path / "run")}
    shown = RolloutSettings(**run, env=RolloutSettings(**run, env={"API_KEY": "sk-12345678"}).hidden_env)
    assert "sk-12345678" not in str(shown.env)
    with pytest.raises(ConfigError, match=r"the variables of sessions can't be read from .*/run/session_env.json"):
        shown.session_targets()
    shown.folder.mkdir()
    shown.env_file.write_text('{"API_KEY": "sk-12345678"}')
    for source in (shown.session_targets(), shown.local_agent()):
        assert isinstance(source, AgentSource)
        assert source.env == {"API_KEY": "sk-12345678"}


@pytest.mark.parametrize("given", [{"env": {"A": "b"}}, {"allow": ("a:1",)}, {"memory_mb": 512}])
@pytest.mark.parametrize("kind", [TrainSettings, RolloutSettings])
def test_what_sets_up_a_sandbox_is_refused_before_a_run_on_aws(
    kind: type[TrainSettings], given: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n' * 8)
    arn = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/mine"
    where = {"agent": arn, "store": "bucket", "data": str(tmp_path / "rows.jsonl")}
    with pytest.raises(ConfigError, match=f"--{next(iter(given)).replace('_', '-')} sets up sandboxes on this machine"):
        check_settings(kind(**where, **given))


def test_a_plan_hides_the_values_of_variables() -> None:
    text = TrainingPlan(backend="trl", settings={"env": {"MODE": "something"}, "allow": ("a:1",)}).text()
    assert text.splitlines()[1:] == ['env = { "MODE" = "***" }', 'allow = ["a:1"]']


@pytest.mark.parametrize(("written", "read"), [("1e-6", 1e-6), ("3E-06", 3e-6), ("+2.e-5", 2e-5), ("1e3", 1e3)])
def test_numbers_that_yaml_takes_for_text_are_numbers(written: str, read: float) -> None:
    """YAML 1.1 wants a dot in them."""
    assert TrlSettings.from_mapping({"learning_rate": written}).learning_rate == read


@pytest.mark.parametrize(("name", "value"), [("learning_rate", "fast"), ("learning_rate", "nan"), ("steps", "1e3")])
def test_other_texts_are_no_numbers(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be .*, not '{value}'"):
        TrlSettings.from_mapping({name: value})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("timeout", 0.0, "timeout must be more than 0, not 0.0"),
        ("tps_limit", float("nan"), "tps_limit must be a finite number, not nan"),
        ("failed_reward", float("nan"), "failed_reward must be a finite number, not nan"),
        ("timeout", float("inf"), "timeout must be a finite number, not inf"),
        ("learning_rate", -1e-5, "learning_rate must be more than 0"),
        ("temperature", 0.0, "temperature must be more than 0"),
        ("max_tokens", 0, "max_tokens must be at least 1, not 0"),
        ("context_limit", -1, "context_limit must be at least 1"),
        ("eval_every", -1, "eval_every must be at least 0"),
        ("lora_rank", -4, "lora_rank must be at least 0"),
        ("min_trained_ratio", 1.5, "min_trained_ratio must be at most 1"),
        ("gateway_port", 70_000, "gateway_port must be at most 65535"),
        ("memory_mb", 0, "memory_mb must be at least 1"),
    ],
)
def test_a_number_out_of_its_range_is_refused(name: str, value: float, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        LoopSettings(**{name: value})
    LoopSettings(max_tokens=None, gateway_port=65_535, min_trained_ratio=1.0, eval_every=0, lora_rank=0)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"gateway": {"processes": 2}}, "gateway has no 'processes'"),
        ({"gateway": {"workers": "2"}}, "workers must be a whole number"),
        ({"gateway": {"workers": -1}}, "workers must be a whole number"),
        (
            {"gateway_url": "http://gw:9000", "gateway": {"workers": 2}},
            "can't be combined with settings of the run's own gateway",
        ),
        ({"gateway_url": "http://gw:9000", "gateway_port": 9000}, "write gateway_public_url"),
        ({"gateway_url": "http://gw:9000", "gateway_public_url": "http://gw:9000"}, "write gateway_public_url"),
    ],
)
def test_a_gateway_is_in_one_place(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        RolloutSettings(**given)


def test_where_the_gateway_is(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine([])
    monkeypatch.setenv("AGENTCORE_RL_ADMIN_KEY", "key")
    elsewhere = RolloutSettings(gateway_url="http://gw.example.com:9000/").open_gateway(engine, gateway_tokenizer())
    assert isinstance(elsewhere, GatewayClient)
    assert elsewhere.url == "http://gw.example.com:9000"
    assert isinstance(RolloutSettings().open_gateway(engine, gateway_tokenizer()), Gateway)
    monkeypatch.delenv("AGENTCORE_RL_ADMIN_KEY")
    with pytest.raises(ConfigError, match="set AGENTCORE_RL_ADMIN_KEY"):
        RolloutSettings(gateway_url="http://gw.example.com:9000").open_gateway(engine, gateway_tokenizer())
