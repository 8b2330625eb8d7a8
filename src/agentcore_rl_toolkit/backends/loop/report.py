"""What a run shows while it trains, and leaves behind: a live table or lines, metrics.jsonl, a reward curve."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ...client.evaluation import Summary
from ...gateway.call.unbridged import MEANINGS, UNAVOIDABLE
from ..settings import TrainSettings

_COLUMNS = ("step", "reward", "held-out", "tokens/s", "failed", "fidelity", "unbridged", "seconds", "left")

_UNBRIDGED = "fidelity/unbridged/"


class Report:
    """Tells people, and a file, how a run is going. Everything goes to stderr."""

    def __init__(self, settings: TrainSettings, *, quiet: bool = False) -> None:
        self._settings, self._quiet = settings, quiet
        self._steps: list[dict[str, Any]] = []
        self._held_out: dict[int, float | None] = {}
        self._live: Any = None
        self._last = time.monotonic()
        self._failed: Counter[str] = Counter()
        self._unbridged: Counter[str] = Counter()
        self._rollouts = 0

    def go_on(self, step: int) -> None:
        """Take up what was reported up to a step, and forget what came after it: that is run again."""
        path = self._settings.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        known = [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be cut off
        path.write_text("".join(json.dumps(line) + "\n" for line in known if line["step"] <= step))
        for line in known:
            if line["step"] <= step:
                self._take(line)

    # --- while it trains ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Report:
        self._last = time.monotonic()
        if not self._quiet and sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                from rich.console import Console
                from rich.live import Live

                self._live = Live(console=Console(stderr=True), auto_refresh=False)
                self._live.start()
        if self._live is None:
            self.say("  ".join(name.rjust(9) for name in _COLUMNS))
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """One line."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def stepped(self, step: int, logs: dict[str, Any]) -> None:
        """A step is done."""
        now = time.monotonic()
        taken, self._last = logs.get("step_time") or now - self._last, now
        line = {"step": step, "seconds": round(taken, 3), **{k: v for k, v in logs.items() if v is not None}}
        self._take(line)
        with (self._settings.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._show()

    def _take(self, line: dict[str, Any]) -> None:
        self._steps.append(line)
        self._rollouts += int(line.get("rollouts/run", 0))
        for name, count in line.items():
            if name.startswith("failures/"):
                self._failed[name.partition("/")[2]] += int(count)
            elif name.startswith(_UNBRIDGED):
                self._unbridged[name.removeprefix(_UNBRIDGED)] += int(count)

    @contextlib.contextmanager
    def evaluating(self, step: int, rows: int) -> Iterator[Callable[[], None]]:
        """Held-out rows are being run."""
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1

        yield advance
        self._last = time.monotonic()

    def evaluated(self, step: int, summary: Summary) -> None:
        self._held_out[step] = summary.reward
        interval = "" if summary.interval is None else " [{:.3f}, {:.3f}]".format(*summary.interval)
        reward = _number(summary.reward)
        self.say(f"held-out rows at step {step}: mean reward {reward}{interval} of {summary.rollouts} rollouts")

    # --- at the end --------------------------------------------------------------------------------------------------

    def totals(self, evaluations: dict[int, Summary], last: int) -> dict[str, Any]:
        """The figures of the whole run, which has come to step `last`.

        `before` is the evaluation before training, `after` that of the final weights; each only if it was made.
        """
        sampled = sum(line.get("fidelity", 0) for line in self._steps)
        known = sum("fidelity" in line for line in self._steps)
        figures: dict[str, Any] = {
            "rollouts": self._rollouts,
            "trained": sum(int(line.get("rollouts/trained", 0)) for line in self._steps),
            "fidelity": sampled / known if known else None,
            "failures": dict(self._failed),
            "unbridged": dict(self._unbridged),
            "reward": [line.get("reward") for line in self._steps],
        }
        for name, step in (("before", 0), ("after", last)):
            if step in evaluations and (name == "before" or step > 0):
                figures |= {name: evaluations[step].reward, f"{name}_interval": evaluations[step].interval}
        return figures

    def finished(self, summary: dict[str, Any]) -> None:
        for reason, count in self._unbridged.items():
            if reason not in UNAVOIDABLE:
                self.say(f"{count} turns began a row of their own ({reason}): {MEANINGS.get(reason, reason)}")
        curve = self._curve()
        if curve is not None:
            self.say(f"reward curve   {curve}")
        for name in ("checkpoint", "rollouts_folder"):
            if summary.get(name):
                self.say(f"{name.partition('_')[0].ljust(14)} {summary[name]}")

    def _curve(self) -> str | None:
        """A picture of the rewards, if matplotlib is there."""
        if not self._steps:
            return None
        try:
            import matplotlib

            matplotlib.use("agg")
            from matplotlib import pyplot
        except ImportError:
            return None
        figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
        points = [(line["step"], line["reward"]) for line in self._steps if line.get("reward") is not None]
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

    def _cells(self, line: dict[str, Any]) -> list[str]:
        done = [known["seconds"] for known in self._steps]
        left = (self._settings.steps - line["step"]) * sum(done[-5:]) / len(done[-5:])
        held_out = self._held_out.get(line["step"])
        return [
            str(line["step"]),
            _number(line.get("reward")),
            _number(held_out),
            f"{line.get('tokens_per_second', 0):.0f}",
            str(int(line.get("rollouts/failed", 0))),
            _percent(line.get("fidelity")),
            str(int(line.get("fidelity/unbridged", 0))),
            f"{line['seconds']:.1f}",
            f"{left // 60:.0f}:{left % 60:02.0f}",
        ]

    def _show(self) -> None:
        if self._quiet:
            return
        if self._live is None:
            self.say("  ".join(cell.rjust(9) for cell in self._cells(self._steps[-1])))
            return
        from rich.table import Table

        table = Table(*_COLUMNS, title=f"{self._settings.model} · {self._settings.agent}", title_style="dim")
        for line in self._steps[-15:]:
            table.add_row(*self._cells(line))
        self._live.update(table, refresh=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
