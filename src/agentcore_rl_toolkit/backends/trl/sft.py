"""Fine-tuning on stored rollouts with TRL's `SFTTrainer`: a policy that can do something before rewards train it.

    stored rollouts ─▶ the best of each data row ─▶ token ids and masks as recorded ─▶ SFTTrainer ─▶ checkpoints

No text is tokenized: a row's ids are trained on where its mask says so, and every trained token counts once in the mean
of its update. `accelerate launch` may start several processes, which share every update.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState
from datasets import Dataset
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer

from ...engine.checkpoints import is_written, resolve_model
from ...errors import ConfigError
from ..loop.checkpoint_folder import CheckpointFolder
from ..loop.report import keep_steps
from .backend import SftSettings
from .demonstrations import ChosenRollouts, Demonstration, check_tokens, choose_demonstrations
from .grpo_config import adapter_config, load_policy, make_config, shared_fields
from .training import name_settings_to_change, save_once

IGNORED = -100
"""The label of a token that is not trained on."""
_FIGURES = {"loss": "loss", "mean_token_accuracy": "token_accuracy", "entropy": "entropy", "grad_norm": "grad_norm"}
"""TRL's names of figures, and ours."""


def fine_tune(settings: SftSettings, say: Any = lambda line: None) -> dict[str, Any]:
    """Fine-tune and return the summary, which is also written to `summary.json`; `say` gets a line now and then."""
    choice = choose(settings)
    with name_settings_to_change(settings.folder):
        return _SftRun(settings, choice, say).run()


def choose(settings: SftSettings) -> ChosenRollouts:
    if not settings.sources:
        raise ConfigError("no rollouts are named", hint="agentcore-rl sft runs/train --model MODEL")
    if any(settings.folder.resolve() == Path(source).resolve() for source in settings.sources):
        raise ConfigError(f"{settings.output} is one of the sources", hint="choose another output")
    return choose_demonstrations(
        settings.sources,
        best=settings.best,
        min_reward=settings.min_reward,
        max_rollout_tokens=settings.max_rollout_tokens,
        seed=settings.seed,
    )


def training_rows(demonstrations: Sequence[Demonstration]) -> list[dict[str, list[int]]]:
    """Token ids and labels of every row with a trained token."""
    rows = [row for one in demonstrations for row in one.rollout.rows if row.trained]
    labels = [[t if bit else IGNORED for t, bit in zip(row.token_ids, row.loss_mask, strict=True)] for row in rows]
    return [{"input_ids": row.token_ids.tolist(), "labels": one} for row, one in zip(rows, labels, strict=True)]


def sft_config(settings: SftSettings, processes: int = 1) -> SFTConfig:
    """TRL's own configuration for this run."""
    if settings.rows_per_step % processes:
        raise ConfigError(f"rows_per_step={settings.rows_per_step} can't be shared by {processes} processes")
    ours = shared_fields(settings, settings.rows_per_step // processes)
    ours |= {
        "num_train_epochs": settings.epochs,
        "report_to": [],
        "max_length": None,
        "packing": False,
        "dataset_kwargs": {"skip_prepare_dataset": True},
    }
    defaults = {"lr_scheduler_type": "linear", "dataloader_pin_memory": torch.cuda.is_available()}
    return make_config(SFTConfig, settings, ours, defaults)


class _SftRun:
    def __init__(self, settings: SftSettings, choice: ChosenRollouts, say: Any) -> None:
        self.settings, self.choice = settings, choice
        self.state = PartialState(cpu=settings.device == "cpu")
        self.say = say if self.state.is_main_process else lambda line: None
        first = self.state.is_main_process
        self.folder = CheckpointFolder(settings.folder, is_written, resume=settings.resume, first=first)
        self.began = time.monotonic()

    def run(self) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            with self.state.main_process_first():
                start = stack.enter_context(self.folder.opened())
            return self._run(start)

    def _run(self, start: int | None) -> dict[str, Any]:
        settings, chosen = self.settings, self.choice.demonstrations
        transformers.utils.logging.disable_progress_bar()
        transformers.set_seed(settings.seed)
        model, tokenizer = load_policy(settings)
        check_tokens(chosen, tokenizer, model.get_input_embeddings().num_embeddings, settings.model)
        self.rows = training_rows(chosen)
        self.log = _SftLog(settings.folder / "metrics.jsonl", self.say, self.state.is_main_process, start)
        self.trainer = SFTTrainer(
            model,
            sft_config(settings, self.state.num_processes),
            train_dataset=Dataset.from_list(self.rows),
            processing_class=tokenizer,
            peft_config=adapter_config(settings),
            callbacks=[self.log],
        )
        self.trainer.remove_callback(PrinterCallback)
        self._describe()
        interrupted = self._train(None if start is None else str(self.folder.checkpoint(start)))
        return self._finish(interrupted)

    def _describe(self) -> None:
        """Write what the run is, and which rollouts it is trained on."""
        settings, choice = self.settings, self.choice
        of = f"{choice.rollouts} rollouts of {choice.rows} data rows, reward at least {choice.min_reward:.4g}"
        self.say(f"training on {len(choice.demonstrations)} of {of}: {self._trained} tokens in {len(self.rows)} rows")
        if not self.state.is_main_process:
            return
        names = ("model", "sources", "epochs", "best", "rows_per_step", "seed", "learning_rate", "lora_rank")
        known = {"kind": "sft", "started": time.time(), "min_reward": choice.min_reward}
        known |= {name: getattr(settings, name) for name in names} | {"model_folder": resolve_model(settings.model)}
        (settings.folder / "run.json").write_text(json.dumps(known, indent=2) + "\n")
        lines = "".join(json.dumps(one.to_dict()) + "\n" for one in choice.demonstrations)
        (settings.folder / "demonstrations.jsonl").write_text(lines)

    @property
    def _trained(self) -> int:
        return sum(one.trained for one in self.choice.demonstrations)

    def _train(self, checkpoint: str | None) -> bool:
        """Train and save; True if Ctrl-C ended it."""
        interrupted = False
        try:
            self.trainer.train(resume_from_checkpoint=checkpoint)
        except KeyboardInterrupt:
            self.say("interrupted; saving a checkpoint …")
            interrupted = True
        step = int(self.trainer.state.global_step)
        if step:
            save_once(
                self.folder.checkpoint(step),
                lambda: self.trainer._save_checkpoint(self.trainer.model, trial=None),
                self.state.wait_for_everyone,
            )
        return interrupted

    def _finish(self, interrupted: bool) -> dict[str, Any]:
        latest, steps = self.folder.latest(), self.log.steps
        ends = {"before": steps[0], "after": steps[-1]} if steps else {}
        summary: dict[str, Any] = {
            "model": self.settings.model,
            "sources": list(self.settings.sources),
            "seed": self.settings.seed,
            "steps": int(self.trainer.state.global_step),
            "interrupted": interrupted,
            "seconds": round(time.monotonic() - self.began, 1),
            "rollouts": self.choice.rollouts,
            "demonstrations": len(self.choice.demonstrations),
            "min_reward": self.choice.min_reward,
            "trained_tokens": self._trained,
            **{f"{name}_{when}": at.get(name) for when, at in ends.items() for name in ("loss", "token_accuracy")},
            "checkpoint": None if latest is None else str(self.folder.checkpoint(latest)),
        }
        if self.state.is_main_process:
            (self.settings.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        return summary


class _SftLog(transformers.TrainerCallback):  # type: ignore[misc]
    """Writes the figures of every update to metrics.jsonl, and a line now and then."""

    def __init__(self, path: Path, say: Any, writes: bool, start: int | None) -> None:
        self._path, self._say, self._writes = path, say, writes
        self.steps = keep_steps(path, start) if start is not None else []
        self._ended = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs:
            return
        now = time.monotonic()
        line = {"step": state.global_step, "seconds": round(now - self._ended, 3), "epoch": round(state.epoch, 3)}
        line |= {ours: logs[name] for name, ours in _FIGURES.items() if name in logs}
        self._ended = now
        self.steps.append(line)
        if not self._writes:
            return
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if state.global_step % max(1, state.max_steps // 10) == 0 or state.global_step == state.max_steps:
            shown = f"loss {line['loss']:.3f}, token accuracy {line.get('token_accuracy', 0.0):.1%}"
            self._say(f"update {state.global_step} of {state.max_steps}: {shown}")
