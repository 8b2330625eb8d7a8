"""The progress of a run: a live table or lines on stderr, metrics.jsonl, a reward curve, and the totals at the end."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...client.evaluation import Summary
from ...common.text_table import escape
from ...gateway.record.reasons import MEANINGS, UNAVOIDABLE
from ...rollout import Action, Rollout
from ...rollout.run_folder.run_text import read_metrics, read_object
from ...rollout.run_folder.run_writer import write_anew
from ..settings import TrainSettings

_COLUMNS = (
    *("step", "reward", "held-out", "length", "cut", "entropy", "kl", "stale", "tokens/s", "failed", "fidelity"),
    *("unbridged", "seconds", "left"),
)
_OPTIONAL = ("held-out", "cut", "entropy", "kl", "stale", "unbridged")
"""Columns that are shown once a step has a value there: with all of them, the table is 100 characters wide."""
_SHOWN_STEPS = 15
_NOTHING_LEARNED = (
    "nothing could be learned: in every group of every step, all rollouts had the same reward, so no gradient was "
    "possible\nhint: take rows that the model solves now and then, rewards in between, or more rollouts a row"
)
_LIVE_SECONDS = 0.5

Metrics = dict[str, Any]


class Report:
    """Reports how a run is going. With `quiet` it only writes metrics.jsonl."""

    def __init__(self, settings: TrainSettings, *, quiet: bool = False) -> None:
        self._settings, self._quiet = settings, quiet
        self.steps: list[Metrics] = []
        """The metrics of every step so far."""
        self._held_out: dict[int, float | None] = {}
        self._live: Any = None
        self._part = ""
        self._columns: list[str] = []
        self.line_seconds = 10.0
        """Without a terminal, a line about a step's rollouts comes at most this often."""
        self._step_ended = time.monotonic()

    def resume(self, step: int) -> None:
        """Read the metrics up to a step, and drop those of later steps, which run again."""
        self.steps = keep_steps(self._settings.folder / "metrics.jsonl", step)

    def __enter__(self) -> Report:
        self._step_ended = time.monotonic()
        if not self._quiet and sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                from rich.console import Console
                from rich.live import Live

                self._live = Live(console=Console(stderr=True), auto_refresh=False)
                self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Write one line to stderr."""
        if self._quiet:
            return
        text = escape(text)
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def part(self, title: str, total: int) -> PartProgress:
        """Show the progress of a step or an evaluation of `total` rollouts."""
        return PartProgress(title, total, self._show_part, self.line_seconds if self._live is None else _LIVE_SECONDS)

    def _show_part(self, text: str) -> None:
        if self._live is None:
            self.say(text)
        else:
            self._part = text
            self._show_steps()

    def add_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of a finished step, and show them."""
        now = time.monotonic()
        seconds, self._step_ended = metrics.get("step_time") or now - self._step_ended, now
        line = {"step": step, "seconds": round(seconds, 3), **{k: v for k, v in metrics.items() if v is not None}}
        self.steps.append(line)
        self._part = ""
        with (self._settings.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._show_steps()

    def show_evaluation(self, step: int, summary: Summary) -> None:
        self._step_ended = time.monotonic()
        self._held_out[step] = summary.reward
        self._part = ""
        interval = "" if summary.interval is None else " [{:.3f}, {:.3f}]".format(*summary.interval)
        reward = _number(summary.reward)
        left_out = summary.rollouts - summary.rewarded
        counted = f"{summary.rewarded} rollouts" + (f", {left_out} left out" if left_out else "")
        self.say(f"held-out rows at step {step}: mean reward {reward}{interval} of {counted}")
        if self._live is not None:
            self._show_steps()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Explain avoidable breaks in the token sequence, and say where the run's files are."""
        for reason, count in _counts(self.steps, "fidelity/unbridged/").items():
            if reason not in UNAVOIDABLE:
                self.say(f"{count} turns began a new row ({reason}): {MEANINGS.get(reason, reason)}")
        if summary.get("nothing_learned"):
            self.say(_NOTHING_LEARNED)
        curve = self._draw_curve()
        if curve is not None:
            self.say(f"reward curve   {curve}")
        for name in ("checkpoint", "rollouts_folder"):
            if summary.get(name):
                self.say(f"{name.partition('_')[0].ljust(14)} {summary[name]}")
        if not summary.get("nothing_learned") and Path(summary.get("checkpoint") or "-").is_dir():
            run = self._settings
            if summary.get("interrupted"):
                self.say("\nNext: the same command with --resume continues the run")
                return
            words = ["agentcore-rl", "eval", run.agent, "--data", run.eval_data or "HELD_OUT"]
            self.say(f"\nNext: {shlex.join([*words, '--model', run.model, '--model', run.output])}")

    def _draw_curve(self) -> str | None:
        """Draw the rewards, if matplotlib is installed; the path of the picture."""
        points = [(line["step"], line["reward"]) for line in self.steps if line.get("reward") is not None]
        if not points:
            return None
        try:
            import matplotlib

            matplotlib.use("agg")
            from matplotlib import pyplot
        except ImportError:
            return None
        figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
        axes.plot(*zip(*points, strict=True), label="training rollouts", color="tab:blue", linewidth=1)
        held_out = [(step, reward) for step, reward in sorted(self._held_out.items()) if reward is not None]
        if held_out:
            axes.plot(*zip(*held_out, strict=True), "o-", label="held-out rows", color="tab:orange")
        axes.set(xlabel="step", ylabel="mean reward")
        axes.grid(alpha=0.3)
        axes.legend()
        path = self._settings.folder / "reward.png"
        figure.tight_layout()
        figure.savefig(path)
        pyplot.close(figure)
        return str(path)

    def _cells(self, line: Metrics) -> dict[str, str | None]:
        """A step's value in each column, None where it has none."""
        latest = [step["seconds"] for step in self.steps[-5:]]
        left = (self._settings.steps - line["step"]) * sum(latest) / len(latest)
        return {
            "step": str(line["step"]),
            "reward": _text(line.get("reward"), ".3f"),
            "held-out": _text(self._held_out.get(line["step"]), ".3f"),
            "length": _text(line.get("length/sampled_tokens"), ".0f"),
            "cut": _text(line.get("length/truncated") or None, ".0%"),
            "entropy": _text(line.get("entropy"), ".3f"),
            "kl": _text(line.get("sampler/kl"), ".0e"),
            "stale": _text(line.get("staleness/mean") or None, ".1f"),
            "tokens/s": f"{line.get('tokens_per_second', 0):.0f}",
            "failed": str(int(line.get("rollouts/failed", 0))),
            "fidelity": _text(line.get("fidelity"), ".1%"),
            "unbridged": _text(line.get("fidelity/unbridged") or None, ".0f"),
            "seconds": f"{line['seconds']:.1f}",
            "left": f"{left // 60:.0f}:{left % 60:02.0f}",
        }

    def _show_steps(self) -> None:
        shown = _SHOWN_STEPS if self._live is not None else 1
        rows = [self._cells(line) for line in self.steps[-shown:]]
        known = {name for row in rows for name, value in row.items() if value is not None}
        known |= {*_COLUMNS} - {*_OPTIONAL} | {*self._columns}
        before, self._columns = self._columns, [name for name in _COLUMNS if name in known]
        if self._live is None:
            if self._columns != before:
                self.say(" ".join(name.rjust(6) for name in self._columns))
            self.say(" ".join((rows[-1][name] or "-").rjust(max(6, len(name))) for name in self._columns))
            return
        from rich.table import Table

        title = f"{self._settings.model} · {self._settings.agent}"
        look: dict[str, Any] = {"title_style": "dim", "box": None, "padding": (0, 1, 0, 0)}
        table = Table(caption=self._part or None, title=title, **look)
        for name in self._columns:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*(row[name] or "-" for name in self._columns))
        self._live.update(table, refresh=True)


class PartProgress:
    """Counts the rollouts of a part as they end, and passes a line to `show`, at most one every `seconds`."""

    def __init__(self, title: str, total: int, show: Callable[[str], None], seconds: float) -> None:
        self._title, self._total, self._show, self._seconds = title, total, show, seconds
        self._began = self._shown = time.monotonic()
        self._done = self._failed = self._tokens = 0

    def add(self, rollout: Rollout, *, show: bool = True) -> None:
        """Count a rollout, and show the line unless `show` is off. One that runs again has failed, but is not done."""
        self._done += rollout.action is not Action.REFILL
        self._failed += rollout.failed
        self._tokens += rollout.fidelity.sampled
        now = time.monotonic()
        if show and now - self._shown >= self._seconds and self._done < self._total:
            self._shown = now
            speed = self._tokens / max(1e-9, now - self._began)
            counted = f"{self._done} of {self._total} rollouts, {self._failed} failed"
            self._show(f"{self._title}: {counted}, {speed:.0f} tokens/s, {now - self._began:.0f} s")


def keep_steps(path: Path, step: int) -> list[Metrics]:
    """The metrics in a file up to a step; those of later steps are removed from it."""
    kept = [line for line in read_metrics(path) if isinstance(line.get("step"), int) and line["step"] <= step]
    write_anew(path, "".join(json.dumps(line) + "\n" for line in kept))
    return kept


def changed_settings(run: Path, now: Mapping[str, Any]) -> list[str]:
    """Warnings about settings that choose the rows of a resumed run, and differ from those in `run.json`."""
    before = read_object(run / "run.json") or {}
    now = json.loads(json.dumps(now, default=str))
    return [
        f"warning: {name} is {now[name]!r} but was {before[name]!r}: the remaining steps draw different rows"
        for name in ("seed", "data", "mix", "rows_per_step", "skip_epochs")
        if name in before and name in now and before[name] != now[name]
    ]


def rewards_were_equal(steps: Sequence[Metrics]) -> bool:
    """Whether rollouts were trained on, and no group of them had rewards that differ.

    >>> rewards_were_equal([{"reward/group_std": 0.0}, {}]), rewards_were_equal([{}])
    (True, False)
    """
    spreads = [line["reward/group_std"] for line in steps if "reward/group_std" in line]
    return bool(spreads) and not any(spreads)


def run_totals(steps: Sequence[Metrics], evaluations: Mapping[int, Summary], last: int) -> dict[str, Any]:
    """The figures of a run up to step `last`, from the metrics of its steps.

    `before` is the evaluation before training, `after` that of the final weights; each only if it was made.
    """
    fidelity = [line["fidelity"] for line in steps if "fidelity" in line]
    totals: dict[str, Any] = {
        "rollouts": sum(int(line.get("rollouts/run", 0)) for line in steps),
        "trained": sum(int(line.get("rollouts/trained", 0)) for line in steps),
        "fidelity": sum(fidelity) / len(fidelity) if fidelity else None,
        "failures": _counts(steps, "failures/"),
        "unbridged": _counts(steps, "fidelity/unbridged/"),
        "reward": [line.get("reward") for line in steps],
    }
    for name, step in (("before", 0), ("after", last)):
        if step in evaluations and (name == "before" or step > 0):
            totals |= {name: evaluations[step].reward, f"{name}_interval": evaluations[step].interval}
    return totals


def _counts(steps: Sequence[Metrics], prefix: str) -> dict[str, int]:
    """The sums of all metrics whose name starts with a prefix, by the rest of the name."""
    counts: Counter[str] = Counter()
    for line in steps:
        for name, count in line.items():
            if name.startswith(prefix):
                counts[name.removeprefix(prefix)] += int(count)
    return dict(counts)


def _number(value: float | None) -> str:
    return _text(value, ".3f") or "-"


def _text(value: float | None, look: str) -> str | None:
    return None if value is None else format(value, look)
