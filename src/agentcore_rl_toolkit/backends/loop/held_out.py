"""The held-out rows of a run: their evaluations by step, and what guards and the summary learn from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...client.evaluation import Outcome, Summary, summarize
from ...rollout import Rollout
from ...rollout.run_folder import RunPart
from ...studio.guards.facts import RunFacts
from ...studio.guards.recorded_facts import RecordedFacts
from ...types import UNMEASURED, Status
from ..settings import LoopSettings
from .report import Report

Gather = Callable[[Any], list[Any]]
"""Collects one value from every process, in the order of processes; all of them have to call it."""

RunRows = Callable[..., object]
"""Runs rows and returns when they have ended; takes `on_rollout` and changes to the options, as a runner does."""


class HeldOut:
    """Evaluates the held-out rows of a run."""

    def __init__(
        self,
        settings: LoopSettings,
        rows: Sequence[dict[str, Any]],
        trained: Sequence[dict[str, Any]],
        report: Report,
        facts: RunFacts,
        process: int,
        processes: int,
        gather: Gather,
    ) -> None:
        """`trained` are the rows to train on, which may share some with `rows`."""
        self._settings, self._report, self._facts, self._gather = settings, report, facts, gather
        self._mine = rows[process::processes]
        self._shared = facts.find_shared_rows(trained, rows)
        self._exist = bool(rows)
        self.evaluations: dict[int, Summary] = {}
        """By the number of updates of the weights."""
        self._rollouts: dict[int, dict[str, Rollout]] = {}

    @property
    def latest(self) -> float | None:
        """The mean reward of the latest evaluation, if there is one."""
        return self.evaluations[max(self.evaluations)].reward if self.evaluations else None

    def is_due(self, step: int) -> bool:
        """Whether the rows have still to be run with the weights after `step` updates."""
        return self._exist and step not in self.evaluations

    def evaluate(self, step: int, part: RunPart, run: RunRows) -> None:
        """Run the rows with `run`, and write their rollouts to `part`."""
        rollouts: list[Rollout] = []
        progress = self._report.part(f"held-out rows at step {step}", len(self._mine) * self._settings.eval_samples)

        def keep(rollout: Rollout) -> None:
            part.write(rollout)
            progress.add(rollout)
            rollouts.append(rollout)

        options: dict[str, Any] = {"n": self._settings.eval_samples, "oversample": 0, "max_batch_tokens": None}
        run(self._mine, on_rollout=keep, evaluation=True, **options)
        self.add(step, rollouts)

    def add(self, step: int, rollouts: list[Rollout]) -> None:
        """Add the rollouts of an evaluation, which may be from before the run was resumed."""
        mine = [held_out_outcome(rollout, self._settings.failed_reward) for rollout in rollouts]
        summary = self.evaluations[step] = summarize(outcome for part in self._gather(mine) for outcome in part)
        self._facts.add_evaluation(step, summary)
        self._rollouts[step] = {rollout.input_id: rollout for rollout in rollouts if rollout.rows}
        self._report.show_evaluation(step, summary)

    def find_shared_example(self) -> None:
        """Let guards know a rollout of a row that is trained on too, whichever process ran it."""
        shared, self._shared = self._shared, set()
        if shared:
            self._facts.shared_example = RecordedFacts(self._settings.folder).held_out_example(shared)

    def example(self, decode: Callable[[list[int]], str]) -> dict[str, dict[str, Any]]:
        """One row at the first and the last evaluation, by step; one that improved, if there is one."""
        if not self._rollouts:
            return {}
        steps = min(self._rollouts), max(self._rollouts)
        before, after = (self._rollouts[step] for step in steps)
        both = [input_id for input_id in before if input_id in after]
        better = [i for i in both if (after[i].reward or 0.0) > (before[i].reward or 0.0)]
        chosen = (better or both)[:1]
        return {str(at): describe_rollout(self._rollouts[at][i], decode) for i in chosen for at in steps}


def describe_rollout(rollout: Rollout, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """A rollout for people to read: its text includes the special tokens that mark who speaks."""
    return {
        "reward": rollout.reward,
        "payload": rollout.payload,
        "text": [decode(row.token_ids.tolist()) for row in rollout.rows],
    }


def held_out_outcome(rollout: Rollout, failed_reward: float) -> Outcome:
    """A rollout of an evaluation.

    The agent's own failures count with `failed_reward`: leaving them out would inflate the mean.
    """
    status, reward = rollout.status, rollout.reward
    if status in UNMEASURED:
        reward = None
    elif status is not Status.COMPLETED:
        status, reward = Status.COMPLETED, failed_reward
    return Outcome(rollout.input_id, rollout.session_id or "", status, reward, sum(rollout.seconds.values()))
