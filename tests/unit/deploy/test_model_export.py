"""`agentcore-rl export`: what the folder holds, and that a wrong one never appears."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.deploy import model_export
from agentcore_rl_toolkit.deploy.model_export import export_model, older_config
from agentcore_rl_toolkit.errors import AgentCoreRLError, ConfigError
from agentcore_rl_toolkit.rollout import RolloutWriter
from support.rollouts import make_rollout, make_row
from support.tokenizers import PLAIN_TEMPLATE, make_tokenizer

TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tokenizer = make_tokenizer(template=PLAIN_TEMPLATE)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        num_key_value_heads=1,
        head_dim=8,
        rope_parameters={"rope_theta": 5e5, "rope_type": "default"},
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **sizes,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def run(base: Path, tmp_path: Path) -> Path:
    """A run's folder with two checkpoints of an adapter."""
    from peft import LoraConfig, get_peft_model

    folder = tmp_path / "runs" / "lora"
    for step in (1, 2):
        torch.manual_seed(step)
        lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), lora)
        model.save_pretrained(folder / "checkpoints" / f"checkpoint-{step}")
        AutoTokenizer.from_pretrained(base).save_pretrained(folder / "checkpoints" / f"checkpoint-{step}")
    (folder / "run.json").write_text(json.dumps({"model": str(base), "temperature": TEMPERATURE}))
    (folder / "rollouts").mkdir()
    writer = RolloutWriter(folder / "rollouts" / "step-000001.jsonl")
    writer.write(make_rollout(1.0, make_row(range(35), range(35, 40)), make_row([7], [])))
    writer.close()
    return folder


def logprobs(model: Any, ids: list[int]) -> Any:
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor([ids])).logits.float().log_softmax(-1)


def test_the_adapter_is_merged_and_the_folder_loads_as_the_policy_that_was_trained(base: Path, run: Path) -> None:
    from peft import AutoPeftModelForCausalLM

    output = run.parents[1] / "exported"
    report = export_model(str(run), output, dtype="float32")
    checkpoint = run / "checkpoints" / "checkpoint-2"
    policy = AutoPeftModelForCausalLM.from_pretrained(str(checkpoint), dtype=torch.float32)
    exported = AutoModelForCausalLM.from_pretrained(output, dtype="auto")
    ids = list(range(30, 60))
    assert torch.allclose(logprobs(policy, ids), logprobs(exported, ids), atol=1e-4)
    assert not torch.allclose(
        logprobs(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), ids),
        logprobs(exported, ids),
        atol=1e-2,
    )
    assert (report.model, report.merged_adapter, report.dtype) == (str(checkpoint), True, "float32")
    assert report.source == str(run / "rollouts" / "step-000001.jsonl")
    assert (report.compared_tokens, report.largest_difference < 1e-3) == (39, True)
    assert json.loads((output / "export.json").read_text())["output"] == str(output)
    assert not (output / "adapter_config.json").exists()


def test_older_programs_find_type_rotary_base_template_and_class(run: Path) -> None:
    output = run.parents[1] / "exported"
    report = export_model(str(run), output)
    config = json.loads((output / "config.json").read_text())
    assert (report.dtype, config["torch_dtype"], config["dtype"]) == ("bfloat16", "bfloat16", "bfloat16")
    assert (config["rope_theta"], config["rope_scaling"]) == (5e5, None)
    tokenizer = json.loads((output / "tokenizer_config.json").read_text())
    assert tokenizer["chat_template"] == PLAIN_TEMPLATE
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert {tensor.dtype for tensor in load_file(output / "model.safetensors").values()} == {torch.bfloat16}
    generation = json.loads((output / "generation_config.json").read_text())
    assert (generation["temperature"], generation["top_k"], generation["do_sample"]) == (TEMPERATURE, 0, True)
    loaded = AutoTokenizer.from_pretrained(output)
    assert generation["eos_token_id"] == [loaded.eos_token_id]


def test_scaled_rotary_positions_keep_their_settings() -> None:
    rope = {"rope_theta": 5e5, "rope_type": "yarn", "factor": 4.0}
    assert older_config({"rope_parameters": rope})["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0}
    assert "rope_theta" not in older_config({"rope_parameters": {"full_attention": rope}})


def test_a_step_and_a_checkpoints_folder_can_be_named(run: Path) -> None:
    output = run.parents[1] / "exported"
    assert export_model(str(run), output / "a", step=1).model.endswith("checkpoint-1")
    report = export_model(str(run / "checkpoints" / "checkpoint-1"), output / "b")
    assert (report.temperature, report.dtype) == (TEMPERATURE, "bfloat16")  # of the run, two folders above
    with pytest.raises(ConfigError, match=r"no checkpoint of step 9\nhint: it has those of 1, 2"):
        export_model(str(run), output / "c", step=9)


def test_a_step_of_verl_can_be_named(base: Path, tmp_path: Path) -> None:
    checkpoints = tmp_path / "run" / "checkpoints"
    for step in (5, 10):
        shutil.copytree(base, checkpoints / f"global_step_{step}" / "actor" / "huggingface")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("10")
    (tmp_path / "run" / "run.json").write_text(json.dumps({"model": str(base), "temperature": TEMPERATURE}))
    report = export_model(str(tmp_path / "run"), tmp_path / "a", step=5)
    assert report.model == str(checkpoints / "global_step_5" / "actor" / "huggingface")
    assert export_model(report.model, tmp_path / "b").temperature == TEMPERATURE  # of the run, four folders above


def test_a_run_with_a_relative_model_is_exported_from_another_folder(base: Path, run: Path, tmp_path: Path) -> None:
    known = {"model": "models/base", "temperature": TEMPERATURE}
    (run / "run.json").write_text(json.dumps(known))
    with pytest.raises(ConfigError, match=r"the model models/base, which training started from(.|\n)*hint: give"):
        export_model(str(run), tmp_path / "a")
    assert export_model(str(run), tmp_path / "b", dtype="float16").dtype == "float16"
    (run / "run.json").write_text(json.dumps(known | {"model_folder": str(base)}))
    assert export_model(str(run), tmp_path / "c").dtype == "bfloat16"


def test_a_folder_that_is_there_stays_as_it_is(run: Path) -> None:
    output = run.parents[1] / "exported"
    output.mkdir()
    (output / "mine").write_text("x")
    with pytest.raises(ConfigError, match="exists already"):
        export_model(str(run), output)
    assert [path.name for path in output.iterdir()] == ["mine"]


def test_a_name_of_nothing_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model found at .*nothing\nhint: give a folder"):
        export_model(str(tmp_path / "nothing"), tmp_path / "exported")


def test_weights_that_changed_on_the_way_are_refused_and_leave_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = model_export.AutoTokenizer.from_pretrained(run / "checkpoints" / "checkpoint-2").__class__.save_pretrained

    def damage(tokenizer: Any, folder: Path, **more: Any) -> Any:
        weights = load_file(Path(folder) / "model.safetensors")
        weights["model.norm.weight"] = weights["model.norm.weight"] * 1.5
        save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        return write(tokenizer, folder, **more)

    monkeypatch.setattr(
        type(AutoTokenizer.from_pretrained(run / "checkpoints" / "checkpoint-2")), "save_pretrained", damage
    )
    with pytest.raises(AgentCoreRLError, match="writing and loading the model changed a token's logprob by"):
        export_model(str(run), run.parents[1] / "exported")
    assert not list(run.parents[1].glob("exported*"))


def test_the_command_line_prints_where_and_what_to_do_next(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parents[1])
    assert main(["export", "runs/lora"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "exported/lora\n"
    assert "its adapter merged" in printed.err
    assert "Next: agentcore-rl serve exported/lora" in printed.err
    assert main(["export", "runs/lora", "--output", "again", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == "again"
    assert main(["export", "runs/lora", "--dtype", "int8"]) == 1
    assert "hint: choose float32, bfloat16, float16" in capsys.readouterr().err
    assert main(["export", "runs"]) == 1
    assert "runs does not contain a model: found lora" in capsys.readouterr().err
