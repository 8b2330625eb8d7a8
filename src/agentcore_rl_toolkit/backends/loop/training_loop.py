"""The rollouts of a run, step by step, and the frame around a trainer: evaluate, train, save, evaluate, summarize.

    step k:  rows → sessions → gateway → engine        (weights after k updates)
             rollouts → the run's folder → the trainer → k + 1

With `async_steps`, rollouts of later steps run meanwhile (`steps_ahead.py`).

Several processes may share a run: each runs its part of a step's rows and of the held-out rows.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ...client.runtimes.usage import sum_used
from ...engine import Engine
from ...engine.checkpoints import context_warning
from ...engine.remote.server import ServerEngine
from ...errors import AgentCoreRLError, ConfigError, RolloutsStopped
from ...gateway.base import RolloutGateway
from ...gateway.gateway import Gateway
from ...gateway.remote.gateway_client import GatewayClient
from ...rollout import Causes, Group, Rollout, RolloutRunner, RolloutStream, merge_metrics, step_metrics
from ...rollout.run_folder import RunPart, RunWriter
from ...rollout.run_folder.ratio_files import LogRatios
from ...rollout.step_metrics import staleness_metrics
from ...rollout.stream import Groups
from ...rows import read_rows
from ...studio.guards import Guards, RolloutFacts, StepFacts, Warned
from ...studio.guards.guards import report, stop_run
from ..base import describe_settings
from ..settings import LoopSettings
from .checkpoint_folder import CheckpointFolder
from .held_out import Gather, HeldOut, RunRows
from .report import Report, changed_settings, rewards_were_equal, run_totals
from .rows.training_rows import TrainingRows
from .steps_ahead import StepsAhead

MOST_EMPTY_STEPS = 3
"""This many steps in a row without anything to train on end the run."""


class TrainingLoop:
    """One run, apart from its trainer."""

    runner: RolloutRunner
    gateway: RolloutGateway
    writer: RunWriter

    def __init__(
        self,
        settings: LoopSettings,
        report: Report,
        folder: CheckpointFolder,
        *,
        version: Callable[[], int],
        update_engine: Callable[[int], None],
        process: int = 0,
        processes: int = 1,
        gather: Gather = lambda one: [one],
    ) -> None:
        """`version` counts the updates so far; `update_engine` makes the engine sample with the weights of a step."""
        self.settings, self.report, self.folder = settings, report, folder
        self._version, self._update_engine = version, update_engine
        self._process, self._processes, self._gather = process, processes, gather
        self._rows_per_step = settings.rows_per_step // processes
        self.training_rows = TrainingRows(settings, self._read, process, processes, gather)
        self.rows = self.training_rows.all
        self.guards = Guards(settings.guard, settings.guards_from)
        held_out = self._read(settings.eval_data) if settings.eval_data else []
        self.held_out = HeldOut(settings, held_out, self.rows, report, self.guards.facts, process, processes, gather)
        self._facts: list[RolloutFacts] = []
        self._warned: list[Warned] = []
        """What the guards found at the latest step."""
        self.metrics: dict[str, float] = {}
        """The metrics of the latest step."""
        self._began = time.monotonic()
        self._causes, self._empty_steps = Causes(), 0
        self._part: RunPart | None = None
        self._ahead: StepsAhead | None = None

    def run(
        self,
        engine: Engine,
        tokenizer: Any,
        start: int | None,
        *,
        train: Callable[[], None],
        save: Callable[[], None],
        model: str | None = None,
    ) -> dict[str, Any]:
        """Train from step `start` (None for a new run) and return the summary. `save` writes a checkpoint."""
        options = self.settings.rollout_options(model, self._version)
        with (
            RunWriter(self.folder.path, process=self._process) as self.writer,
            self._open_gateway(engine, tokenizer) as gateway,
            self.settings.client() as client,
            contextlib.closing(RolloutRunner(client, gateway, options)) as runner,
            self.report,
        ):
            self.gateway, self.runner = gateway, runner
            self.report.say(gateway.abilities.line)
            if warning := context_warning(self.settings.context_limit, self.settings.model):
                self.report.say(warning)
            if self._process == 0:
                for warning in changed_settings(self.folder.path, self.describe()) if start is not None else ():
                    self.report.say(warning)
                self.writer.describe(**self.describe())
            self.training_rows.resume(start)
            if start is None:
                self.guards.resume(self.settings.folder, None)
                self.evaluate(0, "before")
            else:
                self._resume(start)
            interrupted = self._train(train, save)
            if not interrupted:
                save()
                interrupted = self._evaluate_after()
            return self._finish(interrupted=interrupted, decode=tokenizer.decode)

    def _open_gateway(self, engine: Engine, tokenizer: Any) -> Gateway | GatewayClient:
        if self.settings.gateway_url is not None and self._processes > 1 and not isinstance(engine, ServerEngine):
            raise ConfigError(
                f"{self._processes} processes with engines of their own can't share the gateway at "
                f"{self.settings.gateway_url}: one would sample while another trains",
                hint="use --gateway workers=2, or a vLLM server",
            )
        return self.settings.open_gateway(engine, tokenizer)

    def groups(self, step: int) -> Sequence[Group]:
        """Run a step's rows, or with `async_steps` wait for those that run ahead: one group each, dropped ones last."""
        began = time.monotonic()
        groups = self._run_step(step) if not self.settings.async_steps else self._take_step(step)
        self._measure(groups, step, time.monotonic() - began)
        self._causes.add(groups)
        empty = not self.metrics["rollouts/trained"] and not self.metrics.get("dropped/no_variance")
        self._empty_steps = self._empty_steps + 1 if empty else 0
        if self._empty_steps == MOST_EMPTY_STEPS:
            raise self._nothing_trained(f"nothing could be trained on in {MOST_EMPTY_STEPS} steps in a row")
        return sorted(groups, key=lambda group: (group.dropped is not None, group.index))[: self._rows_per_step]

    def updated(self, step: int) -> None:
        """With `async_steps`: the weights have had `step` updates. Sample with them, and start what may start now."""
        if not self.settings.async_steps:
            return
        self._update_engine(step)
        if self._ahead is None:
            steps = {"ahead": self.settings.async_steps, "start": step, "steps": self.settings.steps}
            self._ahead = StepsAhead(RolloutStream(self.runner), self._open_step, **steps)
        self._ahead.advance(step)

    def add_advantages(self, advantages: Mapping[str, float]) -> None:
        """Note the advantages of the latest step's rollouts, by session."""
        if self._part is not None:
            self._part.add_advantages(advantages)

    def add_ratios(self, ratios: LogRatios) -> None:
        """Keep how the trainer's logprobs of the latest step's tokens differ from the sampler's."""
        if self._part is not None:
            self._part.add_ratios(ratios)

    def judge(self, step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Let the guards judge the step that led to `step`; gives the figures that follow from it.

        Every process calls it, with the same metrics.
        """
        figures: dict[str, float] = {}
        held_out = self.held_out.latest
        if held_out is not None and metrics.get("reward") is not None:
            figures["reward/held_out_gap"] = metrics["reward"] - held_out
        self.held_out.find_shared_example()
        self._warned = self.guards.judge(StepFacts(step, {**metrics, **figures}, self._facts))
        return figures | {f"guard/{one.guard}": 1.0 for one in self._warned}

    def end_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of a finished step, and what the guards said of it. A guard may end the run."""
        folder = self.settings.folder
        if self._process == 0:
            self.report.add_step(step, metrics)
            report(self._warned, folder, self.report.say)
        stop_run(self._warned, folder)

    def evaluate_if_due(self, step: int) -> None:
        """Evaluate between two steps, if `eval_every` asks for it; the last step is evaluated after training.

        Called before the first step, too: what is resumed may have ended in an evaluation.
        """
        every = self.settings.eval_every
        if every and step % every == 0 and step < self.settings.steps:
            self.evaluate(step)

    def evaluate(self, step: int, phase: str = "at_step") -> None:
        """Run the held-out rows, unless they have been run with these weights."""
        if not self.held_out.is_due(step):
            return
        self._update_engine(step)
        self.runner.failures_reset()
        run: RunRows = self._run_rows if self._ahead is None else self._ahead.run_first
        with self.writer.part(phase, step) as part:
            self.held_out.evaluate(step, part, partial(run, seed=self._seed("held-out", step)))

    def describe(self) -> dict[str, Any]:
        """What the run is: enough to know it by, and nothing secret."""
        return {**describe_settings(self.settings), "processes": self._processes}

    # --- the frame ---------------------------------------------------------------------------------------------------

    def _resume(self, step: int) -> None:
        self.report.resume(step)
        self.guards.resume(self.settings.folder, step)
        made = dict(self.writer.evaluations())
        for at in sorted(set.intersection(*self._gather(set(made)))):  # a kill may leave one that some have finished
            self.held_out.add(at, made[at])

    def _train(self, train: Callable[[], None], save: Callable[[], None]) -> bool:
        """Train; True if Ctrl-C ended it. The weights are then those of the latest whole step, and are saved."""
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(self._end_steps)
                train()
        except KeyboardInterrupt:
            previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut a checkpoint in half
            try:
                self.report.say("interrupted; saving a checkpoint …")
                save()
            finally:
                signal.signal(signal.SIGINT, previous)
            return True
        except AgentCoreRLError:
            if self._version():
                with contextlib.suppress(AgentCoreRLError):  # the first error is the one to report
                    save()
            raise
        return False

    def _evaluate_after(self) -> bool:
        """Evaluate the trained weights; True if Ctrl-C ended it. The summary then has no "after"."""
        try:
            self.evaluate(self._version(), "after")
        except KeyboardInterrupt:
            self.report.say("interrupted; the checkpoint is saved, and not evaluated")
            return True
        return False

    def _finish(self, *, interrupted: bool, decode: Callable[[list[int]], str]) -> dict[str, Any]:
        """Write the summary and return it. A run that trained on nothing is an error."""
        settings, step, latest = self.settings, self._version(), self.folder.latest()
        causes = Causes.merged(self._gather(self._causes))
        summary: dict[str, Any] = {
            "model": settings.model,
            "agent": settings.agent,
            "seed": settings.seed,
            "steps": step,
            "interrupted": interrupted,
            "seconds": round(time.monotonic() - self._began, 1),
            **run_totals(self.report.steps, self.held_out.evaluations, step),
            "sources": self.training_rows.totals(self.report.steps),
            "not_trained_on": causes.figures(),
            "used": sum_used(self._gather(self.runner.used)),
            "examples": self.held_out.example(decode),
            "checkpoint": None if latest is None else str(self.folder.checkpoint(latest)),
            "rollouts_folder": str(settings.folder / "rollouts"),
        }
        by_group = settings.turn_credit is None and getattr(settings, "teacher", None) is None
        if by_group and not interrupted and rewards_were_equal(self.report.steps):
            summary["nothing_learned"] = True
        if self._process == 0:
            (settings.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
            self.report.finish(summary)
        first: dict[str, Any] = self._gather(summary)[0]
        if step and not first["trained"] and not interrupted:
            raise self._nothing_trained(f"nothing could be trained on in {step} steps")
        return first

    # --- a step's rollouts -------------------------------------------------------------------------------------------

    def _run_step(self, step: int) -> list[Group]:
        """Run them now, with the weights as they are."""
        self._update_engine(step)
        self.runner.failures_reset()
        with self.writer.part("train", step) as part:
            self._part, groups = part, []
            keep, seed = self._keep_in(part, step), self._seed("train", step)
            for group in self.runner.run(self._supply(step), groups=self._rows_per_step, on_rollout=keep, seed=seed):
                part.add_group(group)
                groups.append(group)
        return groups

    def _run_rows(self, rows: Sequence[dict[str, Any]], **options: Any) -> None:
        for _ in self.runner.run(rows, **options):
            pass

    def _open_step(self, stream: RolloutStream, step: int) -> tuple[RunPart, Groups]:
        """Start them now, to be taken later."""
        part = self.writer.open_part("train", step)
        keep, supply, seed = self._keep_in(part, step), self._supply(step), self._seed("train", step)
        return part, stream.add(supply, groups=self._rows_per_step, on_rollout=keep, seed=seed)

    def _keep_in(self, part: RunPart, step: int) -> Callable[[Rollout], None]:
        """Writes a step's rollouts, and shows how far they are while training waits for them."""
        rollouts = self._rows_per_step * (self.settings.n + self.settings.oversample)
        progress = self.report.part(f"step {step + 1}", rollouts)

        def keep(rollout: Rollout) -> None:
            part.write(rollout)
            progress.add(rollout, show=step == self._version())

        return keep

    def _take_step(self, step: int) -> list[Group]:
        """Wait for those that were started before."""
        self.updated(step)
        assert self._ahead is not None
        self.runner.failures_reset()
        self._part, groups = self._ahead.take(step)
        return groups

    def _end_steps(self) -> None:
        """Cancel what runs ahead, and note which rollouts came too late to be trained on."""
        parts = [] if self._part is None else [self._part]
        if self._ahead is not None:
            parts += self._ahead.close()
            self._ahead = None
        for part in parts:
            if part.step >= self._version():
                part.drop("the run ended before this step")

    # --- parts -------------------------------------------------------------------------------------------------------

    def _nothing_trained(self, problem: str) -> RolloutsStopped:
        run = self.settings
        by_hand = f"rollout {run.agent} --data {run.data} --model {run.model} --limit 1"
        return Causes.merged(self._gather(self._causes)).error(problem, run.folder, by_hand)

    def _read(self, path: str) -> list[dict[str, Any]]:
        rows, problems = read_rows(path)
        for problem in problems:
            self.report.say(f"{path}: {problem}; the other lines are used")
        return rows

    def _supply(self, step: int) -> list[dict[str, Any]]:
        """The step's rows; with dynamic sampling, then random rows to replace dropped groups."""
        rows = self.training_rows.of_step(step)
        return [*rows, *self.training_rows.spares(step)] if self.settings.dynamic_sampling else rows

    def _seed(self, phase: str, step: int) -> str:
        """What the seeds of a phase's model calls follow from; each process counts its rows from 0."""
        return f"{self.settings.seed}/{phase}/{step}/{self._process}"

    def _measure(self, groups: Sequence[Group], step: int, seconds: float) -> None:
        """`seconds` is how long the trainer waited for the groups."""
        mine = step_metrics(groups) | {"seconds/rollouts": seconds}
        facts = self.guards.observe(groups, lambda one: "" if self._part is None else self._part.key(one))
        self._facts = [one for part in self._gather(facts) for one in part]
        if self._ahead is not None:
            seconds, mine["slots_used"] = self._ahead.measure()
            mine |= staleness_metrics(groups, step)
        sampled = sum(r.fidelity.sampled for group in groups for r in (*group.rollouts, *group.others))
        mine["tokens_per_second"] = sampled / max(1e-9, seconds)
        by_source = self.training_rows.measure(step, groups, self.runner.options.judge)
        self.metrics = merge_metrics(self._gather(mine)) | by_source


@contextlib.contextmanager
def delay_interrupt() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if received:
        raise KeyboardInterrupt
