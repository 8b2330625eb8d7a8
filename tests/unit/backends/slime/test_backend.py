"""A run with slime before it starts: its flags, its files, what is refused; and its start."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentcore_rl_toolkit.backends.base import TrainingPlan
from agentcore_rl_toolkit.backends.slime import SlimeRunner
from agentcore_rl_toolkit.backends.slime.backend import BACKEND, SlimeSettings
from agentcore_rl_toolkit.backends.slime.checkout import Checkout
from agentcore_rl_toolkit.backends.slime.flags import SETTINGS
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.cli.rollouts.train import read_train_arguments
from agentcore_rl_toolkit.errors import AgentCoreRLError, ConfigError
from support.process import clean_env
from support.runtime import eventually
from support.slime import CHECKOUT, PLACE

ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/my_agent"
STANDIN = Path(__file__).parents[3] / "support" / "slime" / "standin"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings as slime's users write them."""
    for name in ("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", "RAY_ADDRESS", "MEGATRON_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"q{i}", "answer": i}) + "\n" for i in range(8)))
    (tmp_path / "model").mkdir()
    config = {"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    return {
        "agent_runtime_arn": ARN,
        "s3_bucket": "my-bucket",
        "exp_id": "exp-1",
        "model_dir": str(tmp_path / "model"),
        "data_path": str(tmp_path / "rows.jsonl"),
        "model_type": "qwen2.5-0.5B",
        "gateway_public_url": "http://10.0.0.7:9000",
        "gateway_host": "0.0.0.0",
        "gateway_port": 9000,
        "rows_per_step": 8,
        "slime_dir": str(PLACE),
        "output": str(tmp_path / "run"),
    }


def flags_of(plan: TrainingPlan) -> dict[str, str]:
    """The command's flags, those without a value as an empty text."""
    words = plan.command[4:]
    assert plan.command[1:3] == ("-m", "agentcore_rl_toolkit.backends.slime.driver")
    found: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            found[word] = ""
            name = word
        else:
            found[name] = f"{found[name]} {word}".strip()
    return found


def test_a_plan(told: dict[str, Any], tmp_path: Path) -> None:
    plan = SlimeRunner(**told).plan(num_rollout=200)
    assert plan.command[3] == str(PLACE / "train.py")
    flags = flags_of(plan)
    run = tmp_path / "run"
    expected = {
        "--num-layers": "24",
        "--normalization": "RMSNorm",
        "--rotary-base": "1000000",
        "--swiglu": "",
        "--hf-checkpoint": str(tmp_path / "model"),
        "--ref-load": str(tmp_path / "model"),
        "--save": str(run / "checkpoints"),
        "--load": str(run / "checkpoints"),
        "--num-rollout": "200",
        "--rollout-batch-size": "8",
        "--n-samples-per-prompt": "8",
        "--global-batch-size": "64",
        "--prompt-data": str(run / "slime" / "data.jsonl"),
        "--input-key": "prompt",
        "--metadata-key": "metadata",
        "--rollout-function-path": "agentcore_rl_toolkit.backends.slime.rollout.generate_rollout",
        "--custom-reward-post-process-path": "agentcore_rl_toolkit.backends.slime.rewards.post_process",
        "--custom-config-path": str(run / "slime" / "custom.yaml"),
        "--colocate": "",
        "--use-dynamic-batch-size": "",
        "--seed": "1",
    }
    assert {name: flags.get(name) for name in expected} == expected
    assert "--eval-interval" not in flags
    assert "--rollout-max-context-len" not in flags
    (path,) = plan.files
    assert path == flags["--custom-config-path"]
    section = yaml.safe_load(plan.files[path])["agentcore"]
    assert section["agent"] == ARN
    assert (section["store"], section["exp_id"], section["gateway_public_url"]) == (
        "my-bucket",
        "exp-1",
        told["gateway_public_url"],
    )
    assert section["output"] == str(run)
    assert "sqs_url" not in section
    read = SlimeSettings.from_mapping(section)
    assert (read.timeout, read.concurrency) == (300.0, 32)
    assert plan.environment["PYTHONPATH"].split(os.pathsep)[0] == str(PLACE)
    assert not run.exists(), "a plan writes nothing"
    assert "--num-rollout" in plan.text()


def test_paths_of_a_custom_configuration_are_absolute(
    told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rl_app.py").write_text("")
    (tmp_path / "mine.py").write_text("def never(run):\n    return None\n")
    monkeypatch.chdir(tmp_path)
    changes = {"agent_runtime_arn": "rl_app.py", "s3_bucket": "./results", "output": "run", "model_dir": "model"}
    guards: dict[str, Any] = {"guard": {"fidelity": "warn"}, "guards_from": ["mine.py"]}
    sandbox = {"env": {"API_KEY": "sk-12345678"}, "allow": ["10.0.0.5:5432"], "memory_mb": 512}
    plan = SlimeRunner(**told | changes | guards | sandbox).plan()
    assert "sk-12345678" not in plan.text()
    section = yaml.safe_load(next(iter(plan.files.values())))["agentcore"]
    assert (section["guard"], section["guards_from"]) == ({"fidelity": "warn"}, [str(tmp_path / "mine.py")])
    assert {name: section[name] for name in sandbox} == sandbox | {"env": {"API_KEY": "***"}}
    assert section["agent"] == str(tmp_path / "rl_app.py")
    assert section["store"] == str(tmp_path / "results")
    assert section["output"] == str(tmp_path / "run")
    assert flags_of(plan)["--hf-checkpoint"] == str(tmp_path / "model")


def test_evaluation_and_options(told: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "held-out.jsonl").write_text('{"prompt": "q"}\n')
    (tmp_path / "megatron" / "megatron").mkdir(parents=True)
    changes = {
        "eval_data": str(tmp_path / "held-out.jsonl"),
        "eval_samples": 4,
        "steps": 30,
        "megatron_dir": str(tmp_path / "megatron"),
        "ray_address": "10.0.0.1:6379",
        "rollout_gpus": 4,
        "asynchronous": True,
        "gpus": 4,
        "options": {
            "tensor_model_parallel_size": 2,
            "--use-tis": False,
            "num-steps-per-rollout": 2,
            "sglang-mem-fraction-static": 0.7,
            "no-offload-train": True,
            "apply-chat-template-kwargs": {"enable_thinking": False},
        },
        "custom_config": {"my_key": 3},
    }
    plan = SlimeRunner(**told | changes).plan()
    flags = flags_of(plan)
    assert plan.command[3].endswith("train_async.py")
    assert flags["--eval-prompt-data"] == f"held-out {tmp_path / 'run' / 'slime' / 'held-out.jsonl'}"
    assert (flags["--eval-interval"], flags["--n-samples-per-eval-prompt"]) == ("30", "4")
    assert flags["--tensor-model-parallel-size"] == "2"
    assert flags["--apply-chat-template-kwargs"] == '{"enable_thinking": false}'
    assert flags["--no-offload-train"] == ""
    assert flags.keys().isdisjoint({"--use-tis", "--global-batch-size", "--colocate"})
    assert flags["--rollout-num-gpus"] == "4"
    assert yaml.safe_load(next(iter(plan.files.values())))["my_key"] == 3
    assert plan.environment["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert str(tmp_path / "megatron") in plan.environment["PYTHONPATH"].split(os.pathsep)
    left = next(note for note in plan.notes if "left to Megatron" in note)
    assert "--tensor-model-parallel-size" in left
    assert not {"--sglang-mem-fraction-static", "--no-offload-train", "--num-rollout"} & set(
        left.split(": ")[1].split(", ")
    )


def test_the_loop_can_be_left_to_slime(told: dict[str, Any]) -> None:
    flags = flags_of(SlimeRunner(**told, hook="generate", options={"partial-rollout": True}).plan())
    assert flags["--custom-generate-function-path"] == "agentcore_rl_toolkit.backends.slime.generate.generate"
    assert "--rollout-function-path" not in flags
    assert "--partial-rollout" in flags


def test_turn_credit_is_a_hook_in_slimes_trainer(told: dict[str, Any], tmp_path: Path) -> None:
    flag = "--custom-advantage-function-path"
    plan = SlimeRunner(**told, credit="turn", discount=0.9).plan()
    assert flags_of(plan)[flag] == "agentcore_rl_toolkit.backends.slime.rewards.set_advantages"
    (config,) = plan.files.values()
    assert {"credit": "turn", "discount": 0.9}.items() <= yaml.safe_load(config)["agentcore"].items()
    assert flag not in flags_of(SlimeRunner(**told).plan())
    old = tmp_path / "slime"
    shutil.copytree(PLACE, old)
    for path in (old / "slime").rglob("arguments.py"):
        path.write_text(path.read_text().replace(flag, "--another-hook"))
    with pytest.raises(ConfigError, match=f"can't train on turns: it has no {flag}"):
        SlimeRunner(**told | {"slime_dir": str(old)}, credit="turn").plan()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": ""}, "model_type is missing"),
        ({"model_type": "qwen2.5-0.6B"}, r"no model type 'qwen2.5-0.6B'\nhint: .*qwen2.5-0.5B"),
        ({"slime_dir": "."}, "is not a checkout of slime"),
        ({"model_dir": "nowhere"}, "nowhere/config.json can't be read"),
        ({"data_path": "nowhere.jsonl"}, "can't be read"),
        ({"gateway_public_url": None}, "can't reach a gateway"),
        ({"s3_bucket": None}, "can't store results"),
        ({"rows_per_step": 9}, "has 8 rows"),
        ({"hook": "plug"}, "hook must be one of rollout, generate"),
        ({"asynchronous": True}, "give rollout_gpus"),
        ({"temperature": 0.0}, "temperature must be more than 0"),
        ({"megatron_dir": "/nowhere"}, "not a checkout of Megatron-LM"),
        ({"gpus": 6, "options": {"tensor-model-parallel-size": 4}}, "6 GPUs must be a multiple of 4"),
        ({"gpus": 8, "nodes": 4}, "may have only 16 rollouts, and each of 32 data-parallel ranks"),
        ({"options": {"num_rollout": 3}}, "give steps"),
        ({"options": {"custom-config-path": "x"}}, "give custom_config"),
        ({"options": {"rollout-top-p": 0.9}}, "--rollout-top-p must be 1"),
        ({"options": {"rollout-shufle": True}}, "did you mean --rollout-shuffle"),
        ({"options": {"dynamic-sampling-filter-path": "f"}}, "give dynamic_sampling, or hook=generate"),
        ({"custom_config": {"agentcore": {}}}, "can't have a section agentcore"),
        ({"credit": "turn", "hook": "generate"}, "compares groups, which with hook=generate slime's own loop forms"),
        ({"credit": "turn", "options": {"normalize_advantages": True}}, "would replace the advantages of turns"),
        ({"learning_rte": 1.0}, "did you mean 'learning_rate'"),
    ],
)
def test_what_cannot_work_is_refused(told: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SlimeRunner(**told | changes).plan()


def test_a_model_that_is_another(told: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({"text_config": {"num_hidden_layers": 28, "hidden_size": 896}}))
    with pytest.raises(ConfigError, match="has num_hidden_layers 28, but slime gets --num-layers 24"):
        SlimeRunner(**told).plan()


def test_settings_from_a_file(told: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(told | {"backend": "slime", "num_rollout": 3}))
    runner = SlimeRunner.from_yaml(path)
    assert runner.settings().steps == 3
    assert runner.settings(num_rollout=5).steps == runner.settings(steps=5).steps == 5
    for text, said in (("[1]", "has no settings"), ("{", "is not YAML")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            SlimeRunner.from_yaml(path)
    with pytest.raises(ConfigError, match="can't be read"):
        SlimeRunner.from_yaml(tmp_path / "nowhere.yaml")


FIRST_TOOLKIT = {
    "num_gpus": 4,
    "tp_size": 2,
    "rollout_gpus_per_engine": 1,
    "acr_timeout": 900,
    "acr_tps_limit": 20,
    "max_concurrent": 100,
    "rollout_batch_size": 8,
    "n_samples_per_prompt": 4,
    "rollout_max_response_len": 1024,
    "rollout_temperature": 0.9,
    "lr": 2e-6,
    "eps_clip": 0.1,
    "weight_decay": 0.01,
    "adam_beta2": 0.95,
    "sglang_mem_fraction_static": 0.6,
    "sglang_reasoning_parser": None,
    "max_tokens_per_gpu": 4096,
    "wandb_project": "agents",
    "extra_flags": ["--eval-interval-steps=3", "--rollout-stop", "a", "b", "--no-offload-train"],
}
"""Keywords of the first toolkit's runner, in its users' files."""


def test_files_of_the_first_toolkit_are_understood(told: dict[str, Any], tmp_path: Path) -> None:
    del told["rows_per_step"]
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(told | FIRST_TOOLKIT))
    settings = SlimeRunner.from_yaml(path).settings(num_rollout=7)
    assert (settings.gpus, settings.rows_per_step, settings.n, settings.steps) == (4, 8, 4, 7)
    assert (settings.learning_rate, settings.temperature, settings.max_tokens) == (2e-6, 0.9, 1024)
    assert (settings.timeout, settings.tps_limit, settings.concurrency) == (900, 20, 100)
    assert settings.options == {
        "tensor-model-parallel-size": 2,
        "rollout-num-gpus-per-engine": 1,
        "eps-clip": 0.1,
        "weight-decay": 0.01,
        "adam-beta2": 0.95,
        "sglang-mem-fraction-static": 0.6,
        "sglang-reasoning-parser": None,
        "use-wandb": True,
        "wandb-project": "agents",
        "eval-interval-steps": "3",
        "rollout-stop": ["a", "b"],
        "no-offload-train": True,
    }
    path.write_text(yaml.safe_dump(told) + "lr: 1e-6\n")
    assert SlimeRunner.from_yaml(path).settings().learning_rate == 1e-6
    flags = flags_of(SlimeRunner(**told | {"rollout_batch_size": 8, "lr": 2e-6, "eps_clip": 0.1}).plan())
    assert (flags["--lr"], flags["--eps-clip"], flags["--rollout-batch-size"]) == ("2e-06", "0.1", "8")


def test_a_change_wins_under_any_of_its_names(told: dict[str, Any], tmp_path: Path) -> None:
    runner = SlimeRunner(**told, lr=2e-6)
    assert runner.settings(learning_rate=3e-6).learning_rate == runner.settings(lr=3e-6).learning_rate == 3e-6
    assert SlimeRunner(**told, learning_rate=2e-6).settings(lr=3e-6).learning_rate == 3e-6
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(told | {"lr": 2e-6}))
    _, settings, _ = read_train_arguments("slime", str(path), ["--learning-rate", "3e-6"])
    assert isinstance(settings, SlimeSettings)
    assert settings.learning_rate == 3e-6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lr": 1e-6, "learning_rate": 1e-6}, "the same setting"),
        ({"tp_size": 2, "options": {"tensor_model_parallel_size": 2}}, "tensor-model-parallel-size is given twice"),
        ({"renderer_family": "qwen3"}, "renderer_family .*\nhint: leave it out"),
        ({"extra_flags": "--colocate"}, "extra_flags must be a list"),
        ({"extra_flags": ["colocate"]}, "extra_flags .* doesn't start with a flag"),
    ],
)
def test_old_names_that_contradict_or_are_gone(told: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SlimeRunner(**told | changes)


def test_a_script_without_a_model(tmp_path: Path) -> None:
    if CHECKOUT:
        pytest.skip("slime's own scripts have one each")
    with pytest.raises(ConfigError, match=r"sets no MODEL_ARGS: nothing"):
        Checkout(PLACE).model_flags("broken")


def test_every_model_that_slime_has_a_script_for() -> None:
    checkout = Checkout(PLACE)
    for script in (PLACE / "scripts" / "models").glob("*.sh"):
        if script.stem != "broken":
            assert "--num-layers" in checkout.model_flags(script.stem)


def test_our_flags_are_slimes(told: dict[str, Any]) -> None:
    (left,) = [note for note in SlimeRunner(**told).plan().notes if "left to Megatron" in note]
    names = left.split(": ")[1].replace("--", "").split(", ")
    known = "optimizer lr-decay-style weight-decay adam-beta1 adam-beta2 recompute-granularity recompute-method"
    more = "recompute-num-layers attention-dropout hidden-dropout accumulate-allreduce-grads-in-fp32"
    assert set(names) <= {*known.split(), *more.split(), "attention-softmax-in-fp32"}


def test_without_slime() -> None:
    code = "from agentcore_rl_toolkit.backends.slime.rollout import slime_module; slime_module('utils.data')"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean_env())
    assert "slime can't be imported" in out.stderr
    assert "hint: clone https://github.com/THUDM/slime" in out.stderr
    assert "agentcore-rl-toolkit[slime]" in out.stderr


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in for slime's program says what it was told."""
    for name, value in {"TOLD": str(tmp_path / "told.json"), "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "told.json"


@pytest.mark.usefixtures("ray_cluster")
def test_a_run_on_a_cluster_that_is_there(
    told: dict[str, Any], ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    address = ray.get_runtime_context().gcs_address
    runner = SlimeRunner(**told | {"slime_dir": str(STANDIN), "ray_address": address})
    summary = runner.train(num_rollout=2)
    assert (summary["exit_code"], summary["interrupted"]) == (0, False)
    seen = json.loads(ran.read_text())
    assert seen["flags"][-1] == "--attention-softmax-in-fp32"
    assert seen["first"] == str(STANDIN)
    assert seen["worker"]["PYTHONPATH"].split(os.pathsep)[0] == str(STANDIN)
    assert seen["worker"]["NCCL_DEBUG"] == "WARN"
    assert seen["cluster"] == address
    rows = [json.loads(line) for line in (tmp_path / "run" / "slime" / "data.jsonl").read_text().splitlines()]
    assert [row["metadata"]["answer"] for row in rows] == list(range(8))
    assert "agentcore" in yaml.safe_load((tmp_path / "run" / "slime" / "custom.yaml").read_text())
    with pytest.raises(AgentCoreRLError, match="slime ended with code 3"):
        runner.train(options={"fail": True})
    assert [node["Alive"] for node in ray.nodes()] == [True], "whoever started the cluster still has it"


def test_an_interrupted_run_on_a_cluster_of_its_own(told: dict[str, Any], ran: Path) -> None:
    pytest.importorskip("ray")  # the driver's process imports it

    def interrupt() -> None:
        eventually(ran.exists, 250)
        os.kill(os.getpid(), signal.SIGTERM)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    changes = {"slime_dir": str(STANDIN), "ray_address": "local", "options": {"wait": True}}
    summary = SlimeRunner(**told | changes).train()
    waiting.join()
    assert (summary["exit_code"], summary["interrupted"]) == (143, True)
    assert json.loads((Path(told["output"]) / "summary.json").read_text())["interrupted"] is True
    host, port = json.loads(ran.read_text())["cluster"].rsplit(":", 1)
    with pytest.raises(OSError), socket.create_connection((host, int(port)), 5):
        pass


def test_the_guide_tells_the_truth(told: dict[str, Any], tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "guides" / "slime.md").read_text()
    table = page.split("<!-- slime settings -->")[1].split("\n\n")[1].splitlines()[2:]
    shown = {cells[1].strip("` -"): cells[2].replace("`", "").strip() for cells in (line.split("|") for line in table)}
    assert shown == SETTINGS
    (run, section) = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    here = {name: told[name] for name in ("model_dir", "data_path", "slime_dir", "output")}
    here |= {"eval_data": told["data_path"], "rows_per_step": 8, "model_type": told["model_type"]}
    flags = flags_of(SlimeRunner.from_yaml(tmp_path / "run.yaml").plan(**here))
    assert (flags["--eval-interval"], flags["--tensor-model-parallel-size"]) == ("20", "2")
    assert SlimeSettings.from_mapping(section["agentcore"]).agent == run["agent_runtime_arn"]
    told_by_hand = re.findall(r"^--\S+-path (agentcore\S+)$", page, re.MULTILINE)
    assert len(told_by_hand) == 3
    for path in told_by_hand:
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_a_dry_run_on_the_command_line(
    told: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(told))
    code = main(["train", "--backend", "slime", "--config", str(tmp_path / "run.yaml"), "--steps", "3", "--dry-run"])
    shown = capsys.readouterr().out
    assert code == 0
    assert "--num-rollout" in shown
    assert f"#     agent: {ARN}" in shown
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in shown


def test_the_backend_is_one() -> None:
    assert (BACKEND.name, BACKEND.extra, BACKEND.settings) == ("slime", "slime", SlimeSettings)
