"""The rollouts of a run, step by step: what a training loop in this process needs beside a trainer.

    step k:  rows → sessions → gateway → engine        (weights after k updates)
             rollouts → rollouts/step-k.jsonl → the trainer → k + 1

Several processes may share a run: each runs its part of a step's rows and of the held-out rows.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...client.evaluation import Outcome, Summary, summarize
from ...errors import ConfigError, RolloutsStopped
from ...rollout import Causes, Group, Rollout, RolloutRunner, RolloutWriter, merge_metrics, read_rollouts, step_metrics
from ...rows import read_rows
from ...types import INFRASTRUCTURE, Status
from ..settings import LoopSettings
from .report import Report
from .run_folder import RunFolder

_BARREN_STEPS = 3
"""So many steps in a row with nothing to train on end a run."""

Gather = Callable[[Any], list[Any]]
"""Gives what every process has, in the order of processes; all of them have to call it."""


class Loop:
    """The rollouts of one run. `runner` is set once there is a gateway."""

    runner: RolloutRunner

    def __init__(
        self,
        settings: LoopSettings,
        report: Report,
        folder: RunFolder,
        *,
        update: Callable[[int], None],
        process: int = 0,
        processes: int = 1,
        gather: Gather = lambda one: [one],
    ) -> None:
        """`update` makes the engine sample with the weights after so many updates."""
        self.settings, self.report, self.folder = settings, report, folder
        self._update, self._process, self._processes, self._gather = update, process, processes, gather
        self.rows = self._read(settings.data)
        self.held_out = self._read(settings.eval_data) if settings.eval_data else []
        if len(self.rows) < settings.rows_per_step:
            raise ConfigError(f"{settings.data} has {len(self.rows)} rows, and a step takes {settings.rows_per_step}")
        self._warn_of_overlap()
        self.evaluations: dict[int, Summary] = {}
        self.metrics: dict[str, float] = {}
        """Of the latest step."""
        self._examples: dict[int, dict[str, Rollout]] = {}
        self._began = time.monotonic()
        self._causes, self._barren = Causes(), 0

    def groups(self, rows: list[dict[str, Any]], step: int) -> Sequence[Group]:
        """Run a step's rows; gives one group for each, dropped ones last."""
        began = time.monotonic()
        self._update(step)
        self.runner.failures_reset()
        with RolloutWriter(self.folder.rollouts(step)) as writer:
            self.runner.on_rollout = writer.write
            groups = list(self.runner.run(self._supply(rows, step), groups=len(rows)))
            self.runner.on_rollout = None
        self._measure(groups, time.monotonic() - began)
        self._causes.add(groups)
        barren = not self.metrics["rollouts/trained"] and not self.metrics.get("dropped/no_variance")
        self._barren = self._barren + 1 if barren else 0
        if self._barren == _BARREN_STEPS:
            raise self._nothing_trained(f"nothing could be trained on in {_BARREN_STEPS} steps in a row")
        if step == 0:
            self._warn_of_sameness(groups)
        kept = sorted((g for g in groups if g.dropped is None), key=lambda g: g.index)
        dropped = sorted((g for g in groups if g.dropped is not None), key=lambda g: g.index)
        return [*kept, *dropped][: len(rows)]

    def evaluate(self, step: int) -> None:
        """Run the held-out rows, unless they have been with these weights."""
        if not self.held_out or step in self.evaluations:
            return
        self._update(step)
        self.runner.failures_reset()
        mine = self.held_out[self._process :: self._processes]
        path = self.folder.evaluation(step)
        unfinished = path.with_name(f"unfinished-{path.name}")
        unfinished.unlink(missing_ok=True)
        rollouts: list[Rollout] = []
        with RolloutWriter(unfinished) as writer, self.report.evaluating(step, len(self.held_out)) as advance:

            def ended(rollout: Rollout) -> None:
                writer.write(rollout)
                rollouts.append(rollout)
                advance()

            self.runner.on_rollout = ended
            for _ in self.runner.run(mine, n=self.settings.eval_samples, oversample=0, max_batch_tokens=None):
                pass
            self.runner.on_rollout = None
        unfinished.rename(path)
        self._evaluated(step, rollouts)

    def go_on(self, step: int) -> None:
        """Take up what is known of the steps up to this one."""
        self.report.go_on(step)
        for at, path in self.folder.evaluations():
            self._evaluated(at, list(read_rollouts(path)))

    def finish(self, step: int, *, interrupted: bool, decode: Callable[[list[int]], str]) -> dict[str, Any]:
        """The run in figures, written to its folder and told. A run that trained on nothing is an error."""
        settings, latest = self.settings, self.folder.latest()
        causes = self._all_causes()
        summary: dict[str, Any] = {
            "model": settings.model,
            "agent": settings.agent,
            "seed": settings.seed,
            "steps": step,
            "interrupted": interrupted,
            "seconds": round(time.monotonic() - self._began, 1),
            **self.report.totals(self.evaluations, step),
            "not_trained_on": causes.figures(),
            "examples": {str(at): conversation(rollout, decode) for at, rollout in self._example().items()},
            "checkpoint": None if latest is None else str(self.folder.checkpoint(latest)),
            "rollouts_folder": str(settings.folder / "rollouts"),
        }
        if self._process == 0:
            (settings.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
            self.report.finished(summary)
        first: dict[str, Any] = self._gather(summary)[0]
        if step and not first["trained"] and not interrupted:
            raise self._nothing_trained(f"nothing could be trained on in {step} steps")
        return first

    # --- parts -------------------------------------------------------------------------------------------------------

    def _all_causes(self) -> Causes:
        return Causes.merged(self._gather(self._causes))

    def _nothing_trained(self, what: str) -> RolloutsStopped:
        causes = self._all_causes()
        return RolloutsStopped(
            f"{what}. What became of the rollouts:\n{causes.text()}\n\nAll of them are in "
            f"{self.settings.folder / 'rollouts'}.",
            hint=causes.hint or "run one by hand: agentcore-rl rollout AGENT --data FILE --limit 1",
        )

    def _warn_of_overlap(self) -> None:
        """Held-out rows that are trained on measure memory, not skill."""
        trained = {json.dumps(row, sort_keys=True, default=repr) for row in self.rows}
        shared = sum(json.dumps(row, sort_keys=True, default=repr) in trained for row in self.held_out)
        if shared:
            self.report.say(
                f"warning: {shared} of {len(self.held_out)} held-out rows are training rows too, so held-out rewards "
                "will flatter the model"
            )

    def _read(self, path: str) -> list[dict[str, Any]]:
        rows, problems = read_rows(path)
        for problem in problems:
            self.report.say(f"{path}: {problem}; the other lines are used")
        return rows

    def _supply(self, rows: list[dict[str, Any]], step: int) -> Iterator[dict[str, Any]]:
        """The step's rows; then, to make up for dropped groups, others."""
        yield from rows
        if self.settings.dynamic_sampling:
            dice = random.Random(f"{self.settings.seed}/{step}/{self._process}")
            for _ in range(2 * len(rows)):
                yield dice.choice(self.rows)

    def _measure(self, groups: Sequence[Group], seconds: float) -> None:
        mine = step_metrics(groups) | {"seconds/rollouts": seconds}
        sampled = sum(r.fidelity.sampled for group in groups for r in (*group.rollouts, *group.others))
        mine["tokens_per_second"] = sampled / max(1e-9, seconds)
        self.metrics = merge_metrics(self._gather(mine))

    def _warn_of_sameness(self, groups: Sequence[Group]) -> None:
        if not any(group.has_variance for group in groups):
            rewards = sorted({reward for group in groups for reward in group.rewards})
            self.report.say(
                f"warning: every row's rollouts got the same reward ({rewards}): nothing can be learned from that. "
                "Is the reward right, and are the tasks neither trivial nor impossible for this model?"
            )

    def _evaluated(self, step: int, rollouts: list[Rollout]) -> None:
        mine = [held_out_outcome(rollout, self.settings.failed_reward) for rollout in rollouts]
        self.evaluations[step] = summarize(outcome for part in self._gather(mine) for outcome in part)
        self._examples[step] = {rollout.input_id: rollout for rollout in rollouts if rollout.rows}
        self.report.evaluated(step, self.evaluations[step])

    def _example(self) -> dict[int, Rollout]:
        """One held-out row at the first and the last evaluation; one that got better, if there is one."""
        if not self._examples:
            return {}
        steps = min(self._examples), max(self._examples)
        before, after = (self._examples[step] for step in steps)
        both = [input_id for input_id in before if input_id in after]
        better = [i for i in both if (after[i].reward or 0.0) > (before[i].reward or 0.0)]
        return {step: self._examples[step][(better or both)[0]] for step in steps} if both else {}


def conversation(rollout: Rollout, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """A rollout for people: what was said, with the special tokens that say who said it."""
    return {
        "reward": rollout.reward,
        "payload": rollout.payload,
        "text": [decode(row.token_ids.tolist()) for row in rollout.rows],
    }


def held_out_outcome(rollout: Rollout, failed_reward: float) -> Outcome:
    """For the mean of held-out rows, where a failure of the agent's own counts as one: leaving it out would flatter."""
    status, reward = rollout.status, rollout.reward
    if status not in INFRASTRUCTURE and status is not Status.COMPLETED:
        status, reward = Status.COMPLETED, failed_reward
    return Outcome(rollout.input_id, rollout.session_id or "", status, reward, sum(rollout.seconds.values()))
