"""Fine-tuning on stored rollouts: the loss and the gradient are those computed by hand with numpy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
from transformers import AutoModelForCausalLM

from agentcore_rl_toolkit.backends.trl import SftSettings, TrlSettings, fine_tune
from agentcore_rl_toolkit.backends.trl.grpo_config import load_policy
from agentcore_rl_toolkit.backends.trl.sft import sft_config, training_rows
from agentcore_rl_toolkit.engine.checkpoints import is_adapter, resolve_model
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.record.trajectory import Row
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from support.backends.trl import make_model, tokenizer
from support.rollouts import make_rollout, make_row, weighted

pytestmark = pytest.mark.filterwarnings("ignore")  # Transformers' and TRL's, a different one each release

ROWS = (
    make_row((1, 2, 3), (4, 5, 6, 7), (1, 1, 0, 1)),
    make_row((1, 2), (8, 9)),
    make_row((5,), (6, 7, 8, 9, 10, 11), (1, 0, 0, 1, 1, 1)),
)
PLAIN_SGD = {"optim": "sgd", "max_grad_norm": 1e9, "weight_decay": 0.0, "lr_scheduler_type": "constant"}


def stored(folder: Path, *rollouts: Sequence[Row]) -> str:
    """The folder of a run with these rollouts, each the best of its data row."""
    with RunWriter(folder) as run, run.part("train", 0) as part:
        for number, rows in enumerate(rollouts):
            made = make_rollout(1.0, *weighted(*rows), input_id=f"row-{number}", session_id=str(number))
            part.write(made)
    return str(folder)


def saved_model(folder: Path) -> str:
    make_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def tuned(tmp_path: Path, *rollouts: Sequence[Row], **more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "model": saved_model(tmp_path / "model"),
        "sources": (stored(tmp_path / "run", *rollouts),),
    }
    known |= {"output": str(tmp_path / "out"), "device": "cpu", "epochs": 1, "options": PLAIN_SGD, "learning_rate": 1.0}
    return fine_tune(SftSettings(**known | more))


def by_hand(rows: Sequence[Row]) -> tuple[float, np.ndarray]:
    """The mean loss of all trained tokens of an update, and its gradient for the output matrix, in double precision."""
    model, losses, gradient = make_model().double(), [], 0.0
    weight = model.lm_head.weight.detach().numpy()
    for row in rows:
        with torch.no_grad():
            hidden = model.model(torch.tensor([row.token_ids.tolist()])).last_hidden_state[0].numpy()
        for place in np.flatnonzero(row.loss_mask):
            state, token = hidden[place - 1], row.token_ids[place]
            logits = weight @ state
            chances = np.exp(logits - logits.max())
            chances /= chances.sum()
            losses.append(-np.log(chances[token]))
            wrong = chances - np.eye(len(chances))[token]
            gradient = gradient + np.outer(wrong, state)
    return float(np.mean(losses)), gradient / len(losses)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_one_update_is_the_one_by_hand(batch: int, tmp_path: Path) -> None:
    rollouts = ([ROWS[0], ROWS[1]], [ROWS[2]])  # one of two rows
    summary = tuned(tmp_path, *rollouts, rows_per_step=3, batch_size=batch)
    loss, gradient = by_hand(ROWS)
    assert summary["loss_before"] == pytest.approx(loss, rel=1e-5)
    moved = make_model().lm_head.weight - AutoModelForCausalLM.from_pretrained(summary["checkpoint"]).lm_head.weight
    np.testing.assert_allclose(moved.detach().numpy(), gradient, atol=2e-6)
    assert np.abs(gradient).max() > 1e-2
    assert (summary["steps"], summary["trained_tokens"], summary["demonstrations"]) == (1, 9, 2)


def test_ids_and_masks_are_trained_on_as_recorded() -> None:
    untrained = make_row((1,), (2, 3), (0, 0))
    rollout = make_rollout(1.0, ROWS[0], untrained)
    chosen = [type("Chosen", (), {"rollout": rollout})()]
    assert training_rows(chosen) == [
        {"input_ids": [1, 2, 3, 4, 5, 6, 7], "labels": [-100, -100, -100, 4, 5, -100, 7]},
    ]


def test_a_run_leaves_a_folder_and_goes_on_from_it(tmp_path: Path) -> None:
    rollouts = [[row] for row in ROWS]
    done = tuned(tmp_path, *rollouts, rows_per_step=1, epochs=2, save_every=2, keep=9)
    out = tmp_path / "out"
    assert json.loads((out / "run.json").read_text())["kind"] == "sft"
    assert json.loads((out / "summary.json").read_text()) == done
    chosen = [json.loads(line) for line in (out / "demonstrations.jsonl").read_text().splitlines()]
    assert [(one["row"], one["trained"], one["reward"]) for one in chosen] == [
        ("row-0", 3, 1.0),
        ("row-1", 2, 1.0),
        ("row-2", 4, 1.0),
    ]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert {"loss", "token_accuracy", "entropy", "seconds"} <= lines[0].keys()
    with pytest.raises(ConfigError, match="has a run already"):
        tuned(tmp_path, *rollouts)
    (out / "checkpoints" / "checkpoint-6" / "trainer_state.json").unlink()  # killed while it was written
    again = tuned(tmp_path, *rollouts, rows_per_step=1, epochs=2, save_every=2, keep=9, resume=True)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert again["loss_after"] == pytest.approx(done["loss_after"], rel=1e-4)


def test_an_adapter_is_a_model_that_training_starts_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    saved_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    summary = tuned(tmp_path, *[[row] for row in ROWS], lora_rank=2, epochs=3, model="model")
    monkeypatch.chdir("/")  # the adapter finds its base model from everywhere
    known = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (known["model"], known["model_folder"]) == ("model", str(tmp_path / "model"))
    assert is_adapter(summary["checkpoint"])
    assert resolve_model(str(tmp_path / "out")) == summary["checkpoint"]
    model, _ = load_policy(TrlSettings(model=str(tmp_path / "out"), device="cpu"))
    names = {name for name, value in model.named_parameters() if value.requires_grad}
    assert names == {name for name, _ in make_model().named_parameters()}  # merged: all weights train
    before = dict(make_model().named_parameters())
    assert any(not torch.equal(value, before[name]) for name, value in model.named_parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"learning_rate": 1.0}}, "options.learning_rate can't be given"),
        ({"options": {"nonsense": 1}}, "TRL refuses its settings(.|\n)*fields of SFTConfig"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"dtype": "float16"}, "dtype must be one of float32, bfloat16"),
    ],
)
def test_settings_that_can_not_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sft_config(SftSettings(**{"device": "cpu"} | settings))


def test_the_output_is_none_of_the_sources(tmp_path: Path) -> None:
    source = stored(tmp_path / "run", [ROWS[0]])
    with pytest.raises(ConfigError, match="is one of the sources"):
        fine_tune(SftSettings(sources=(source,), output=source))
    assert Path(source, "rollouts", "step-000000.jsonl").exists()
    with pytest.raises(ConfigError, match="no rollouts are named"):
        fine_tune(SftSettings())


def test_rows_of_a_batch_may_be_cut_as_they_divide() -> None:
    config = sft_config(SftSettings(rows_per_step=6, batch_size=4, device="cpu"))
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == (3, 2)
    with pytest.raises(ConfigError, match="rows_per_step=6 can't be shared by 4 processes"):
        sft_config(SftSettings(rows_per_step=6, device="cpu"), processes=4)
