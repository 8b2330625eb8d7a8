"""A run at a glance, and lists of its rollouts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ...common.text_table import escape, format_table
from ...rollout.run_folder import Entry, Run
from ..guards.guards import FILE, read_findings
from ..run_queries import HELD_OUT, read_rows, read_steps, row_of
from ..run_state import run_state, stopping_guard
from .safe_text import BOLD, DIM, RED, Paint, shorten

_SHOWN_STEPS = 20
_OPEN = {"running": "still running", "unfinished": "cut off, or a copy of a run that runs elsewhere"}
"""States of a run that has not ended, in words."""
LIST = (
    *("key", "phase", "step", "row", "sample", "status", "reward", "advantage"),
    *("turns", "calls", "sampled", "seconds", "why"),
)


def summarize_run(run: Run) -> dict[str, Any]:
    """The run in figures, for people and programs."""
    info, summary, metrics = run.info, run.summary(), run.metrics()
    found = read_findings(run.path / FILE) if run.path.is_dir() else []
    last = metrics[-1].get("step") if metrics else None
    state = run_state(run.path, summary, found, last)
    return {
        "run": str(run.path),
        "info": info,
        "state": state,
        "ended": _ending(state, stopping_guard(found, last)),
        "rollouts": len(run.table),
        "steps": read_steps(run),
        "metrics": metrics,
        "failures": run.causes(),
        "guards": found,
        "rows": dict(Counter(row["change"] for row in read_rows(run))),
    }


def _ending(state: str, guard: str | None) -> str | None:
    """How the run ended; None if it has not."""
    if state == "stopped":
        return f"stopped by the guard {escape(guard)}"
    return {"ended": "completed", "interrupted": "interrupted"}.get(state)


def show_run(known: dict[str, Any], paint: Paint) -> Iterator[str]:
    """The run at a glance: how it is going, what failed, and what guards said."""
    info = known["info"]
    named = [info.get("kind"), info.get("model"), info.get("agent"), info.get("backend")]
    yield paint(BOLD, escape(" · ".join([known["run"], *(str(one) for one in named if one)])))
    state = known["ended"] or _OPEN[known["state"]]
    yield f"{known['rollouts']} rollouts, {state}"
    yield from _show_steps(known)
    yield from _show_updates(known)
    rows = known["rows"]
    if rows:
        counts = (f"{count} {change}" for change, count in sorted(rows.items(), key=lambda item: -item[1]))
        yield f"training rows solved: {', '.join(counts)}"
    yield from show_failures(known["failures"], paint)
    if known["guards"]:
        yield paint(BOLD, "guards")
    for one in known["guards"]:
        yield paint(RED, f"  step {one['step'] - 1}  {escape(one['guard'])}: {escape(one.get('problem'))}")
        if one.get("example"):
            yield f"    --rollout {escape(one['example'])}"
    yield paint(DIM, "look closer: --step N, --failed, --sort reward, --grep TEXT, --rollout KEY, --diff before after")


def show_failures(causes: Sequence[dict[str, Any]], paint: Paint) -> Iterator[str]:
    """Failures by message, the commonest first."""
    if causes:
        yield paint(BOLD, "failures")
    for one in causes[:10]:
        yield f"  {one['rollouts']:>5} × {shorten(one['cause'], 100)}  --rollout {escape(one['example'])}"
    if len(causes) > 10:
        yield f"  and {len(causes) - 10} other causes"


def show_list(entries: Sequence[Entry], found: Sequence[str | None] = ()) -> str:
    """Rollouts, one a line; with the words around a text that was sought."""
    names = (*LIST[:-1], "found") if found else LIST
    cells = [_list_cells(entry) for entry in entries]
    if found:
        cells = [[*one[:-1], shorten(text or "", 80)] for one, text in zip(cells, found, strict=True)]
    return format_table(names, cells)


def _show_steps(known: dict[str, Any]) -> Iterator[str]:
    metrics = {one["step"] - 1: one for one in known["metrics"] if isinstance(one.get("step"), int)}
    steps = [one for one in known["steps"] if one["phase"] not in HELD_OUT]
    held_out = {one["step"]: one for one in known["steps"] if one["phase"] in HELD_OUT}
    places = sorted({one["step"] for one in steps} | held_out.keys())
    if len(places) > _SHOWN_STEPS:
        yield f"the latest {_SHOWN_STEPS} of {len(places)} steps; --json has all"
    trained = {one["step"]: one for one in steps}
    rows = []
    for step in places[-_SHOWN_STEPS:]:
        one, line = trained.get(step, {}), metrics.get(step, {})
        mean, total = one.get("mean", {}), one.get("sum", {})
        rows.append([
            str(step), _number(one.get("reward")), _reward_with_interval(held_out.get(step)),
            str(one.get("rollouts", "-")), str(one.get("failed", "-")), _number(mean.get("sampled"), 1),
            _number(mean.get("tool_calls"), 2), str(total.get("truncated", "-")), _number(line.get("entropy")),
            "-" if line.get("sampler/kl") is None else f"{line['sampler/kl']:.0e}", _percent(one.get("fidelity")),
            _number(line.get("seconds"), 1),
        ])  # fmt: skip
    if rows:
        names = ("step", "reward", "held-out", "rollouts", "failed", "sampled", "calls", "truncated", "entropy", "kl")
        yield format_table([*names, "fidelity", "seconds"], rows)


def _show_updates(known: dict[str, Any]) -> Iterator[str]:
    """The updates of a run without rollouts of its own: fine-tuning on stored ones."""
    lines = known["metrics"] if known["info"].get("kind") == "sft" else []
    if len(lines) > _SHOWN_STEPS:
        yield f"the latest {_SHOWN_STEPS} of {len(lines)} updates; --json has all"
    rows = [
        [str(one["step"]), _number(one.get("loss")), _percent(one.get("token_accuracy")), _number(one.get("entropy"))]
        for one in lines[-_SHOWN_STEPS:]
    ]
    if rows:
        yield format_table(["update", "loss", "token accuracy", "entropy"], rows)


def _list_cells(entry: Entry) -> list[str]:
    return [
        entry.key, entry.phase, str(entry.step), shorten(row_of(entry.input_id), 24), str(entry.sample), entry.status,
        _number(entry.reward), _number(entry.advantage), str(entry.turns), str(entry.tool_calls), str(entry.sampled),
        f"{entry.seconds:.1f}", shorten(entry.cause or entry.dropped or entry.why or "", 60),
    ]  # fmt: skip


def _reward_with_interval(one: dict[str, Any] | None) -> str:
    if one is None or one["reward"] is None:
        return "-"
    interval = "" if one["interval"] is None else " [{:.2f}, {:.2f}]".format(*one["interval"])
    return f"{one['reward']:.3f}{interval}"


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def to_json(value: Any) -> str:
    """One line of JSON, in ASCII: what a rollout says can't reach a terminal that way."""
    return json.dumps(value, default=str)
