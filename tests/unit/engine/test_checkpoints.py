"""Which weights a name stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.engine.checkpoints import context_length, context_warning, is_adapter, resolve_model
from agentcore_rl_toolkit.errors import ConfigError


def made(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        (folder / name).write_text("{}")
    return folder


def test_a_runs_folder_stands_for_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    for step in (2, 10):
        made(tmp_path / "checkpoints" / f"checkpoint-{step}", "config.json")
    made(tmp_path / "checkpoints" / "checkpoint-11", "optimizer.pt")  # cut off by a kill
    assert resolve_model(str(tmp_path)) == str(tmp_path / "checkpoints" / "checkpoint-10")


@pytest.mark.parametrize("state", [None, "", '{"global_'])
def test_a_checkpoint_that_is_being_written_is_left_out(tmp_path: Path, state: str | None) -> None:
    for step in (2, 10):
        made(tmp_path / "checkpoints" / f"checkpoint-{step}", "config.json", "trainer_state.json")
    newest = made(tmp_path / "checkpoints" / "checkpoint-12", "config.json")
    if state is not None:
        (newest / "trainer_state.json").write_text(state)
    assert resolve_model(str(tmp_path)) == str(tmp_path / "checkpoints" / "checkpoint-10")
    (newest / "trainer_state.json").write_text('{"global_step": 12}')
    assert resolve_model(str(tmp_path)) == str(newest)


def test_a_verl_runs_folder_stands_for_its_newest_whole_weights(tmp_path: Path) -> None:
    def weights(step: int) -> Path:
        return tmp_path / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"

    for step in (2, 10, 12):
        made(weights(step), "config.json", "model.safetensors")
    made(weights(11), "config.json")  # verl saves it without `hf_model` too
    made(tmp_path / "checkpoints")
    with pytest.raises(ConfigError, match="does not contain a model"):
        resolve_model(str(tmp_path))
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("11")  # a kill cut off the twelfth
    assert resolve_model(str(tmp_path)) == str(weights(10))
    adapter = made(weights(11).with_name("lora_adapter"), "adapter_config.json", "adapter_model.safetensors")
    assert resolve_model(str(tmp_path)) == str(adapter)


def test_a_typo_of_the_built_in_policy_is_not_asked_of_the_hub() -> None:
    with pytest.raises(ConfigError, match="did you mean tiny"):
        resolve_model("tinny")
    assert (resolve_model("gpt2"), resolve_model("a/tiny")) == ("gpt2", "a/tiny")


@pytest.mark.parametrize("file", ["config.json", "adapter_config.json"])
def test_a_folder_with_a_model_or_an_adapter_is_taken_as_it_is(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "model", file)
    assert resolve_model(str(folder)) == str(folder)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("model") == str(folder)
    assert is_adapter(folder) is (file == "adapter_config.json")


def test_a_folder_without_a_model_says_what_it_has(tmp_path: Path) -> None:
    made(tmp_path, "rows.jsonl")
    with pytest.raises(
        ConfigError, match=r"does not contain a model: found rows\.jsonl\nhint: give a folder with config\.json"
    ):
        resolve_model(str(tmp_path))


def test_a_mistyped_run_is_not_looked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "runs" / "first", "run.json")
    made(tmp_path / "Qwen" / "Qwen3-0.6B", "config.json")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no model found at runs/frist\nhint: runs has the runs first"):
        resolve_model("runs/frist")
    with pytest.raises(ConfigError, match=r"no model found at ./nowhere\nhint: give a folder, a hub id"):
        resolve_model("./nowhere")
    for hub_id in ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B", "gpt2"):
        assert resolve_model(hub_id) == hub_id


def test_the_context_of_a_model(tmp_path: Path) -> None:
    assert context_length(str(tiny.path())) == 2048
    assert context_length("nowhere") is None
    assert context_warning(2048, "tiny") is None
    assert context_warning(None, "tiny") is None
    assert context_warning(9999, "an/id") is None
    made(tmp_path / "checkpoints" / "checkpoint-2", "config.json").joinpath("config.json").write_text(
        '{"text_config": {"max_position_embeddings": 64}}'
    )
    assert context_warning(65, str(tmp_path)) == (
        f"warning: context_limit=65 has no effect: {tmp_path} has a context of 64 tokens"
    )
