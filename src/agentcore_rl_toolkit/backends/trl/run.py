"""One run: a model, an engine that shares its weights, a gateway, sessions of the agent, and TRL between them.

    step k:  rows → sessions → gateway → engine        (weights of step k)
             rollouts → rows/step-k.jsonl → TRL → step k + 1

Everything a run leaves behind belongs to a step, so that a run that was killed goes on from its latest checkpoint, and
what came after it is run again and counted once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from ...client.batch import INFRASTRUCTURE
from ...errors import AgentCoreRLError, ConfigError
from ...evaluation import Outcome, Summary, summarize
from ...gateway.engine.transformers import TransformersEngine
from ...gateway.serve import Gateway
from ...rollout import Group, Rollout, RolloutRunner, RolloutWriter, read_rollouts, step_metrics
from ...rows import read_rows
from ...tiny import resolve
from ...types import Status
from .backend import TrlSettings
from .config import trl_config
from .report import Report
from .trainer import AgentGRPOTrainer

_INTERVAL = 0.25  # seconds between two pieces of a stream: nobody reads along, and each piece costs the sampler time


def train(settings: TrlSettings, *, report: Report | None = None) -> dict[str, Any]:
    """Train; gives the summary that is also written to `summary.json`."""
    with _with_hints():
        return _Run(settings, report or Report(settings)).run()


class _Run:
    def __init__(self, settings: TrlSettings, report: Report) -> None:
        self.settings, self.report = settings, report
        self.rows = _rows(settings.data, report)
        self.held_out = _rows(settings.eval_data, report) if settings.eval_data else []
        if len(self.rows) < settings.rows_per_step:
            raise ConfigError(f"{settings.data} has {len(self.rows)} rows, and a step takes {settings.rows_per_step}")
        self.name = settings.model
        self.started = time.monotonic()
        self.evaluations: dict[int, Summary] = {}
        self.examples: dict[int, dict[str, Rollout]] = {}

    def run(self) -> dict[str, Any]:
        settings = self.settings
        checkpoint = _prepare(settings)
        transformers.utils.logging.disable_progress_bar()
        transformers.set_seed(settings.seed)
        model, tokenizer = load(settings)
        if not knows_tools(tokenizer):
            self.report.say(
                f"warning: the chat template of {settings.model} leaves tools out, so an agent's tools will never be "
                "called. Give one that has them with chat_template, unless the agent has none."
            )
        self.trainer = AgentGRPOTrainer(
            model,
            self.rows,
            self.run_groups,
            trl_config(settings),
            processing_class=tokenizer,
            peft_config=_lora(settings),
            callbacks=[_Callback(self)],
        )
        self.engine = TransformersEngine(
            self.trainer.accelerator.unwrap_model(self.trainer.model),
            tokenizer=tokenizer,
            name=self.name,
            dtype=settings.dtype if settings.dtype != "float32" else None,
            max_batch=settings.concurrency,
            interval=_INTERVAL,
        )
        with (
            Gateway(self.engine, tokenizer=tokenizer, **settings.gateway) as gateway,
            settings.client() as client,
            contextlib.closing(
                RolloutRunner(client, gateway, settings.rollout_options(self.name, self.version))
            ) as runner,
            self.report,
        ):
            self.runner = runner
            if checkpoint is None:
                self.evaluate(0)
            else:
                self._go_on(checkpoint)
            interrupted = self._train(checkpoint)
            step = self.trainer.state.global_step
            if not interrupted:
                self._save()
                self.evaluate(step)
            return self._finish(step, interrupted)

    def _go_on(self, checkpoint: str) -> None:
        """Take up what is known of the steps before."""
        step = _step_of(checkpoint)
        self.report.go_on(step)
        for path in sorted((self.settings.folder / "evaluations").glob("step-*.jsonl")):
            if _step_of(path.stem) <= step:
                self._evaluated(_step_of(path.stem), list(read_rollouts(path)))
            else:
                path.unlink()

    def _train(self, checkpoint: str | None) -> bool:
        """Train; True if it was interrupted, with a checkpoint made."""
        try:
            self.trainer.train(resume_from_checkpoint=checkpoint)
        except KeyboardInterrupt:
            # The weights are those of the latest whole step: the one under way had not changed them yet.
            with _uninterrupted():
                self.report.say("interrupted; saving a checkpoint …")
                self._save()
            return True
        except AgentCoreRLError:
            if self.trainer.state.global_step:
                self._save()
            raise
        return False

    def _save(self) -> None:
        place = self.settings.folder / "checkpoints" / f"checkpoint-{self.trainer.state.global_step}"
        if not place.exists():
            self.trainer._save_checkpoint(self.trainer.model, trial=None)

    def version(self) -> int:
        """The number of the current weights: updates so far."""
        return int(self.trainer.state.global_step)

    # --- rollouts ----------------------------------------------------------------------------------------------------

    def run_groups(self, rows: list[dict[str, Any]], n: int, step: int) -> Sequence[Group]:
        """The trainer's rollouts of one step."""
        began = time.monotonic()
        self.engine.update(str(step))
        self.runner.failures_reset()
        with RolloutWriter(_step_file(self.settings, step, clear=True)) as writer:
            self.runner.on_rollout = writer.write
            groups = list(self.runner.run(self._supply(rows, step), groups=len(rows)))
            self.runner.on_rollout = None
        metrics = step_metrics(groups) | {"seconds/rollouts": time.monotonic() - began}
        sampled = sum(r.fidelity.sampled for group in groups for r in (*group.rollouts, *group.others))
        metrics["tokens_per_second"] = sampled / max(1e-9, metrics["seconds/rollouts"])
        self.trainer.step_metrics = metrics
        kept = sorted((g for g in groups if g.dropped is None), key=lambda g: g.index)
        dropped = sorted((g for g in groups if g.dropped is not None), key=lambda g: g.index)
        if step == 0 and not any(group.has_variance for group in groups):
            rewards = sorted({reward for group in groups for reward in group.rewards})
            self.report.say(
                f"warning: every row's rollouts got the same reward ({rewards}): nothing can be learned from that. "
                "Is the reward right, and are the tasks neither trivial nor impossible for this model?"
            )
        return [*kept, *dropped][: len(rows)]

    def _supply(self, rows: list[dict[str, Any]], step: int) -> Iterator[dict[str, Any]]:
        """The step's rows; then, to make up for dropped groups, others."""
        yield from rows
        if self.settings.dynamic_sampling:
            dice = random.Random(f"{self.settings.seed}/{step}")
            for _ in range(2 * len(rows)):
                yield dice.choice(self.rows)

    def evaluate(self, step: int) -> None:
        """Run the held-out rows."""
        if not self.held_out or step in self.evaluations:
            return
        self.engine.update(str(step))
        self.runner.failures_reset()
        path = self.settings.folder / "evaluations" / f"unfinished-{step:06d}.jsonl"
        path.unlink(missing_ok=True)
        rollouts: list[Rollout] = []
        with RolloutWriter(path) as writer, self.report.evaluating(step, len(self.held_out)) as advance:

            def ended(rollout: Rollout) -> None:
                writer.write(rollout)
                rollouts.append(rollout)
                advance()

            self.runner.on_rollout = ended
            for _ in self.runner.run(self.held_out, n=self.settings.eval_samples, oversample=0, max_batch_tokens=None):
                pass
            self.runner.on_rollout = None
        path.rename(path.with_name(f"step-{step:06d}.jsonl"))
        self._evaluated(step, rollouts)

    def _evaluated(self, step: int, rollouts: list[Rollout]) -> None:
        self.evaluations[step] = summarize(_outcome(rollout, self.settings.failed_reward) for rollout in rollouts)
        self.examples[step] = {rollout.input_id: rollout for rollout in rollouts if rollout.rows}
        self.report.evaluated(step, self.evaluations[step])

    # --- the end -----------------------------------------------------------------------------------------------------

    def _finish(self, step: int, interrupted: bool) -> dict[str, Any]:
        settings = self.settings
        decode = self.trainer.processing_class.decode
        summary = {
            "model": settings.model,
            "agent": settings.agent,
            "seed": settings.seed,
            "steps": step,
            "interrupted": interrupted,
            "seconds": round(time.monotonic() - self.started, 1),
            **self.report.totals(self.evaluations),
            "examples": {str(at): conversation(rollout, decode) for at, rollout in self._example().items()},
            "checkpoint": _latest_checkpoint(settings.folder),
            "rollouts_folder": str(settings.folder / "rollouts"),
        }
        (settings.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        self.report.finished(summary)
        return summary

    def _example(self) -> dict[int, Rollout]:
        """One held-out row at the first and the last evaluation; one that got better, if there is one."""
        if not self.examples:
            return {}
        steps = min(self.examples), max(self.examples)
        before, after = (self.examples[step] for step in steps)
        both = [input_id for input_id in before if input_id in after]
        better = [i for i in both if (after[i].reward or 0.0) > (before[i].reward or 0.0)]
        return {step: self.examples[step][(better or both)[0]] for step in steps} if both else {}


class _Callback(transformers.TrainerCallback):  # type: ignore[misc]
    """Tells the report of each step, and evaluates in between."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self._run.report.stepped(state.global_step, logs)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        every = self._run.settings.eval_every
        if every and state.global_step % every == 0 and state.global_step < state.max_steps:
            self._run.evaluate(state.global_step)


def load(settings: TrlSettings) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    place = resolve(settings.model)
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).to(device)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model {settings.model!r} can't be loaded: {error}") from error
    if settings.chat_template is not None:
        tokenizer.chat_template = Path(settings.chat_template).read_text()
    if tokenizer.chat_template is None:
        raise ConfigError(f"{settings.model} has no chat template", hint="give one with chat_template")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def knows_tools(tokenizer: Any) -> bool:
    """Whether the chat template tells the model which tools there are."""
    function = {"name": "probe_of_tools", "description": "", "parameters": {"type": "object", "properties": {}}}
    try:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "hi"}], tools=[{"type": "function", "function": function}], tokenize=False
        )
    except Exception:  # whatever a template does
        return False
    return "probe_of_tools" in text


def conversation(rollout: Rollout, decode: Any) -> dict[str, Any]:
    """A rollout for people: what was said, with the special tokens that say who said it."""
    return {
        "reward": rollout.reward,
        "payload": rollout.payload,
        "text": [decode(row.token_ids.tolist()) for row in rollout.rows],
    }


def _rows(path: str, report: Report) -> list[dict[str, Any]]:
    rows, problems = read_rows(path)
    for problem in problems:
        report.say(f"{path}: {problem}; the other lines are used")
    return rows


def _prepare(settings: TrlSettings) -> str | None:
    """The checkpoint to go on from; what a run left behind after it is removed."""
    folder = settings.folder
    latest = _latest_checkpoint(folder)
    if latest is not None and not settings.resume:
        raise ConfigError(f"{folder} has a run already", hint="resume it (--resume), or choose another output")
    if latest is None:
        for name in ("rollouts", "evaluations", "metrics.jsonl"):
            _remove(folder / name)
    else:
        for path in (folder / "rollouts").glob("step-*.jsonl"):
            if _step_of(path.stem) >= _step_of(latest):  # those of step k lead to checkpoint k + 1
                path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    return latest


def _latest_checkpoint(folder: Path) -> str | None:
    """The newest whole checkpoint; one that a kill has cut off is removed."""
    found = sorted((folder / "checkpoints").glob("checkpoint-*"), key=lambda path: _step_of(path.name))
    for path in [path for path in found if not (path / "trainer_state.json").is_file()]:
        found.remove(path)
        _remove(path)
    return str(found[-1]) if found else None


def _step_of(name: str) -> int:
    """The step in the name of a checkpoint or a file."""
    return int(name.rpartition("-")[2])


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _step_file(settings: TrlSettings, step: int, *, clear: bool = False) -> Path:
    path = settings.folder / "rollouts" / f"step-{step:06d}.jsonl"
    if clear:
        path.unlink(missing_ok=True)
    return path


def _lora(settings: TrlSettings) -> Any:
    if not settings.lora_rank:
        return None
    try:
        from peft import LoraConfig
    except ImportError:
        raise ConfigError("an adapter needs peft", hint="pip install peft") from None
    return LoraConfig(
        r=settings.lora_rank, lora_alpha=2 * settings.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def _outcome(rollout: Rollout, failed_reward: float) -> Outcome:
    """For the mean of held-out rows, where a failure of the agent's own counts as one: leaving it out would flatter."""
    status, reward = rollout.status, rollout.reward
    if status not in INFRASTRUCTURE and status is not Status.COMPLETED:
        status, reward = Status.COMPLETED, failed_reward
    return Outcome(rollout.input_id, rollout.session_id, status, reward, sum(rollout.seconds.values()))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not cut a checkpoint in half."""
    known = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, known)


@contextlib.contextmanager
def _with_hints() -> Iterator[None]:
    """Failures that have a setting to turn, with its name."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        hint = "lower batch_size or concurrency, or set gradient_checkpointing"
        raise AgentCoreRLError(f"out of memory: {str(error).splitlines()[0]}", hint=hint) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        hint = "make room, or set output, keep or save_every, and resume"
        raise AgentCoreRLError(f"the disk is full: {error}", hint=hint) from error
