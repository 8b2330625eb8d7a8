"""What the page asks about a run: its figures, groups, rollouts and rows, a page of them at a time. Pure of HTTP."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...rollout.run_folder import PHASES, Run
from ...rollout.run_folder.run_text import read_metrics, read_object
from .. import run_queries
from ..guards.guards import FILE as FINDINGS
from .clipped_values import Clipper
from .run_catalog import FileMemory, OpenRun, RunCatalog

_MOST_POINTS = 1_500
_MOST_NAMES = 150
_LONGEST_PAGE = 200
_SEARCH_SECONDS = 0.7
_LIVE_SECONDS = 120
"""A run without a summary whose files changed in this time is running."""

Answer = dict[str, Any]


def list_runs(catalog: RunCatalog) -> Answer:
    """The runs with what their small files say: cheap, however many rollouts there are."""
    found = []
    for name, path in catalog.runs().items():
        problem = catalog.check(name)
        known = _describe(name, path, catalog.files) if problem is None else {"run": name, "problem": problem}
        found.append(known)
    return {"runs": found}


def show_run(opened: OpenRun, name: str) -> Answer:
    """A run at a glance."""
    sizes = opened.use(lambda run: tuple(_size(run.path / part) for part in ("metrics.jsonl", FINDINGS)))
    figures: Answer = opened.known(("figures", sizes), _figures)
    about = opened.use(lambda run: _describe(name, run.path, opened.files))
    return about | figures | {"changes": opened.changes}


def show_groups(opened: OpenRun, phase: str, step: int, offset: int, limit: int, sort: str) -> Answer:
    groups = opened.known(("groups", phase, step), lambda run: run_queries.read_groups(run, phase, step))
    orders: dict[str, Any] = {
        "group": lambda one: (one["group"] is None, one["group"] or 0),
        "reward": lambda one: (one["mean"] is None, one["mean"] or 0.0),
        "-reward": lambda one: (one["mean"] is None, -(one["mean"] or 0.0)),
        "spread": lambda one: -(one["spread"] or 0.0),
        "failed": lambda one: -one["failed"],
    }
    if sort not in orders:
        raise ConfigError(f"groups can't be sorted by {sort!r}", hint=f"use one of: {', '.join(orders)}")
    chosen = sorted(groups, key=orders[sort])[offset : offset + _page(limit)]
    clipper = Clipper(longest=400)

    def with_prompts(run: Run) -> list[Answer]:
        return [one | {"prompt": clipper.clip(_prompt(run, one["samples"][0]["key"]))} for one in chosen]

    return {"groups": opened.use(with_prompts), "total": len(groups)}


def show_group(opened: OpenRun, phase: str, step: int, group: str) -> Answer:
    """The samples of one group, each with the end of what it said."""
    groups = opened.known(("groups", phase, step), lambda run: run_queries.read_groups(run, phase, step))
    order = [str(one["group"] if one["group"] is not None else one["input_id"]) for one in groups]
    if group not in order:
        raise ConfigError(f"step {step} has no group {group}")
    at = order.index(group)
    found, clipper = groups[at], Clipper(longest=4_000)

    def told(run: Run) -> list[Answer]:
        return [entry | clipper.clip(_tell(run, entry["key"])) for entry in found["samples"][:_LONGEST_PAGE]]

    around = {"previous": order[at - 1] if at else None, "next": order[at + 1] if at + 1 < len(order) else None}
    prompt = opened.use(lambda run: clipper.clip(_prompt(run, found["samples"][0]["key"])))
    return found | {"samples": opened.use(told), "prompt": prompt, "total": len(found["samples"])} | around


def show_rollouts(opened: OpenRun, chosen: Answer, text: str | None, offset: int, limit: int) -> Answer:
    """Entries that match. A search in texts reads rollouts until a page is full or time is up: `next` goes on."""

    def find(run: Run) -> Answer:
        most = {name: chosen.pop(name, None) for name in ("least", "most")}
        places = run.select(**chosen)
        rewards = run.table["reward"][places]
        if most["least"] is not None:
            places, rewards = places[rewards >= most["least"]], rewards[rewards >= most["least"]]
        if most["most"] is not None:
            places = places[rewards <= most["most"]]
        page, following = _find_page(run, places, text, offset, _page(limit))
        return {
            "rollouts": [run.entry(at).to_dict() for at in page],
            "total": len(places),
            "next": following if following < len(places) else None,
        }

    return opened.use(find)


def show_rows(opened: OpenRun, phases: tuple[str, ...], change: str, sort: str, offset: int, limit: int) -> Answer:
    """Data rows with their rewards at each visit."""
    rows = opened.known(("rows", phases), lambda run: run_queries.read_rows(run, phases))
    bound = opened.known("bound", run_queries.solved_threshold)
    counts = {name: sum(one["change"] == name for one in rows) for name in run_queries.CHANGES}
    kept = [one for one in rows if change in ("", one["change"])]
    kept.sort(key=lambda one: one["mean"] if sort == "reward" else -len(one["visits"]) if sort == "visits" else 0.0)
    page, clipper = kept[offset : offset + _page(limit)], Clipper(longest=300)

    def with_prompts(run: Run) -> list[Answer]:
        return [one | {"prompt": clipper.clip(_prompt(run, one["visits"][0]["example"]))} for one in page]

    return {"rows": opened.use(with_prompts), "total": len(kept), "counts": counts, "solved_at": bound}


def show_row(opened: OpenRun, row: str) -> Answer:
    """Every rollout of one data row."""

    def find(run: Run) -> Answer:
        places = run_queries.visits_of_row(run, row)
        if not len(places):
            raise ConfigError(f"there is no row {row!r}")
        entries = [run.entry(at).to_dict() for at in places[:5_000].tolist()]
        return {"row": row, "rollouts": entries, "prompt": Clipper().clip(_prompt(run, entries[0]["key"]))}

    return opened.use(find)


def _describe(name: str, path: Path, files: FileMemory) -> Answer:
    info, summary = files.read(path / "run.json", _read_info), files.read(path / "summary.json", _read_summary)
    metrics = files.read(path / "metrics.jsonl", _read_metrics)
    changed = max((_modified(path / part) for part in ("metrics.jsonl", "index/0.records", "run.json")), default=0.0)
    ended = summary is not None and _modified(path / "summary.json") >= changed - 1
    newest = files.read(path / "rollouts", _newest)
    alive = time.time() - max(changed, _modified(newest) if newest is not None else 0.0)
    state = "ended" if ended else "running" if alive < _LIVE_SECONDS else "stopped"
    if ended and (summary or {}).get("interrupted"):
        state = "interrupted"
    known = {"run": name, "info": info, "summary": summary or {}, "state": state, "changed": changed}
    return known | metrics


def _read_info(path: Path) -> Answer:
    return _short(read_object(path) or {})


def _read_summary(path: Path) -> Answer | None:
    summary = read_object(path)
    return None if summary is None else _short({name: one for name, one in summary.items() if name != "examples"})


def _read_metrics(path: Path) -> Answer:
    """What the list of runs shows of the metrics."""
    metrics = read_metrics(path)
    latest = metrics[-1] if metrics else {}
    rewards = _thin([(one.get("step"), one.get("reward")) for one in metrics], 60)
    known = {"latest": {key: latest.get(key) for key in ("step", "reward", "fidelity", "tokens_per_second")}}
    return {"steps_done": len(metrics)} | _short(known | {"rewards": rewards})


def _short(values: Answer) -> Answer:
    found: Answer = Clipper(longest=2_000, budget=60_000).clip(values)
    return found


def _newest(folder: Path) -> Path | None:
    """The last file of rollouts."""
    return max(folder.glob("*"), default=None)


def _figures(run: Run) -> Answer:
    metrics = _thin(run.metrics(), _MOST_POINTS)
    names = list(dict.fromkeys(name for line in metrics for name, value in line.items() if _is_number(value)))
    columns = {name[:80]: [_number(line.get(name)) for line in metrics] for name in names[:_MOST_NAMES]}
    steps = run_queries.read_steps(run)
    kept = [one for one in steps if one["phase"] in run_queries.HELD_OUT]
    train = [one for one in steps if one["phase"] not in run_queries.HELD_OUT]
    tools = np.unique(run.table["tools"])
    return {
        "rollouts": len(run.table),
        "steps": _thin(train, _MOST_POINTS),
        "evaluations": _thin(kept, _MOST_POINTS),
        "metrics": columns,
        "findings": Clipper().clip(read_metrics(run.path / FINDINGS)[-100:]),
        "causes": Clipper().clip(run.causes()[:200]),
        "tools": sorted(_tools(run))[:500] if len(tools) else [],
        "statuses": sorted({name for one in steps for name in one["statuses"]}),
        "phases": [name for name in PHASES if any(one["phase"] == name for one in steps)],
    }


def _tools(run: Run) -> set[str]:
    firsts = np.unique(run.table[["writer", "tools"]], return_index=True)[1].tolist()
    return {name for at in firsts for name in (run.text("tools", at) or "").split()}


def _find_page(run: Run, places: Any, text: str | None, offset: int, limit: int) -> tuple[list[int], int]:
    """A page of the places from `offset` on, and where the next one begins."""
    if not text:
        return places[offset : offset + limit].tolist(), offset + limit
    found: list[int] = []
    began, at = time.monotonic(), offset
    while at < len(places) and len(found) < limit and (time.monotonic() - began < _SEARCH_SECONDS or at == offset):
        if run.contains(int(places[at]), text):
            found.append(int(places[at]))
        at += 1
    return found, at


def _prompt(run: Run, key: str) -> Any:
    """What the data row asks, as far as that can be told."""
    try:
        payload = run.rollout(run.find(key)).payload
    except (ConfigError, OSError):
        return None
    for name in ("prompt", "question", "problem", "task", "instruction", "query", "input", "messages"):
        if name in payload:
            return payload[name]
    return payload


def _tell(run: Run, key: str) -> Answer:
    """The end of what a rollout said, and the tools it called."""
    try:
        rollout = run.rollout(run.find(key))
    except (ConfigError, OSError) as error:
        return {"said": None, "calls": [], "problem": str(error)}
    replies = [turn.reply for turn in rollout.transcript.turns]
    said = next((reply["content"] for reply in reversed(replies) if reply.get("content")), None)
    calls = [
        {"name": c.get("name"), "arguments": c.get("arguments")} for r in replies for c in r.get("tool_calls") or ()
    ]
    return {"said": said, "calls": calls[:20], "error": rollout.error}


def _thin(items: list[Any], most: int) -> list[Any]:
    """At most so many of them, evenly chosen; the last one is always there."""
    every = -(-len(items) // most)
    return items if every <= 1 else [*items[:-1:every], items[-1]]


def _page(limit: int) -> int:
    return max(1, min(limit, _LONGEST_PAGE))


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) and abs(value) < 1e300 else None
