"""What the page asks about a run: its figures, groups, rollouts and rows, a page of them at a time. Pure of HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...rollout.run_folder import PHASES, Run
from ...rollout.run_folder.run_text import read_metrics, read_object
from .. import run_queries
from ..guards.guards import FILE as FINDINGS
from ..guards.guards import read_findings
from ..run_state import run_state
from .clipped_values import Clipper
from .run_catalog import FileMemory, OpenRun, RunCatalog

_MOST_POINTS = 1_500
_MOST_NAMES = 150
_LONGEST_PAGE = 200
_SEARCH_SECONDS = 0.7
_SHORT_FIELD, _MOST_FIELDS = 200, 12
"""Characters of a data row's field that is shown beside its prompt, and how many of them."""

Answer = dict[str, Any]


class Query(dict[str, str]):
    """A question of the page: its parameters as texts."""

    def __missing__(self, name: str) -> str:
        raise ConfigError(f"the question lacks {name!r}")

    def whole(self, name: str, default: int = 0) -> int:
        given = self.get(name) or str(default)
        if not given.isdecimal() or len(given) > 12:
            raise ConfigError(f"{name}={given[:40]!r} is not a number")
        return int(given)

    def real(self, name: str) -> float:
        try:
            return float(self[name])
        except ValueError:
            raise ConfigError(f"{name}={self[name][:40]!r} is not a number") from None

    @property
    def step(self) -> tuple[str, int]:
        """The phase and the step."""
        return self.get("phase", "train"), self.whole("step")

    @property
    def page(self) -> slice:
        """The part of a list that the page shows."""
        offset = self.whole("offset")
        return slice(offset, offset + max(1, min(self.whole("limit", 50), _LONGEST_PAGE)))


def list_runs(catalog: RunCatalog) -> Answer:
    """The runs as their small files describe them: cheap, because it reads no rollouts."""
    found = []
    for name, path in catalog.runs().items():
        problem = catalog.check(name)
        found.append(_describe(name, path, catalog.files) if problem is None else {"run": name, "problem": problem})
    return {"runs": found}


def show_run(opened: OpenRun, query: Query) -> Answer:
    """A run at a glance."""
    sizes = opened.use(lambda run: tuple(_stat(run.path / part)[1] for part in ("metrics.jsonl", FINDINGS)))
    figures: Answer = opened.known(("figures", sizes), _figures)
    about = opened.use(lambda run: _describe(query["run"], run.path, opened.files))
    return about | figures | {"changes": opened.changes}


def show_groups(opened: OpenRun, query: Query) -> Answer:
    groups, sort = _read_groups(opened, query), query.get("sort", "group")
    orders: dict[str, Any] = {
        "group": lambda one: (one["group"] is None, one["group"] or 0),
        "reward": lambda one: (one["mean"] is None, one["mean"] or 0.0),
        "-reward": lambda one: (one["mean"] is None, -(one["mean"] or 0.0)),
        "spread": lambda one: -(one["spread"] or 0.0),
        "failed": lambda one: -one["failed"],
    }
    if sort not in orders:
        raise ConfigError(f"groups can't be sorted by {sort!r}", hint=f"use one of: {', '.join(orders)}")
    chosen = sorted(groups, key=orders[sort])[query.page]
    clipper = Clipper(longest=400)

    def with_prompts(run: Run) -> list[Answer]:
        return [one | {"prompt": clipper.clip(_prompt(run, one["samples"][0]["key"]))} for one in chosen]

    return {"groups": opened.use(with_prompts), "total": len(groups)}


def show_group(opened: OpenRun, query: Query) -> Answer:
    """The samples of one group, each with the end of what it said."""
    groups, group = _read_groups(opened, query), query["group"]
    order = [str(one["group"] if one["group"] is not None else one["input_id"]) for one in groups]
    if group not in order:
        raise ConfigError(f"step {query.whole('step')} has no group {group}")
    at = order.index(group)
    found, clipper = groups[at], Clipper(longest=4_000)

    def told(run: Run) -> list[Answer]:
        return [entry | clipper.clip(_tell(run, entry["key"])) for entry in found["samples"][:_LONGEST_PAGE]]

    around = {"previous": order[at - 1] if at else None, "next": order[at + 1] if at + 1 < len(order) else None}
    key = found["samples"][0]["key"]
    prompt, payload = opened.use(lambda run: (clipper.clip(_prompt(run, key)), _payload(run, key)))
    about = {"prompt": prompt, "row_fields": row_fields(payload), "total": len(found["samples"])}
    return found | {"samples": opened.use(told)} | about | around


def show_rollouts(opened: OpenRun, query: Query) -> Answer:
    """Entries that match. A search in texts reads rollouts until a page is full or time is up; `next` continues it."""
    chosen: Answer = {name: query[name] for name in ("phase", "status", "tool", "input_id") if query.get(name)}
    chosen |= {name: query[name] == "true" for name in ("failed", "trained") if query.get(name)}
    chosen |= {name: query.whole(name) for name in ("step", "group") if query.get(name)}
    if sort := query.get("sort"):
        chosen |= {"sort": sort.lstrip("-"), "descending": sort.startswith("-")}
    bounds = (("least", "reward"), ("most", "reward"), ("shortest", "sampled"), ("longest", "sampled"))
    limits = [(name, column, query.real(name)) for name, column in bounds if query.get(name)]

    def find(run: Run) -> Answer:
        places = run.select(**chosen)
        for name, column, bound in limits:
            compare = np.greater_equal if name in ("least", "shortest") else np.less_equal
            places = places[compare(run.table[column][places], bound)]
        page, following = _find_page(run, places, query.get("text"), query.page)
        clipper = Clipper(longest=200, budget=100_000)
        return {
            "rollouts": [
                run.entry(at).to_dict() | clipper.clip({"prompt": _prompt(run, run.key(at)), "found": found})
                for at, found in page
            ],
            "total": len(places),
            "next": following if following < len(places) else None,
        }

    return opened.use(find)


def show_rows(opened: OpenRun, query: Query) -> Answer:
    """Data rows with their rewards at each visit."""
    phases = run_queries.HELD_OUT if query.get("phases") == "held-out" else ("train", "rollout")
    change, sort = query.get("change", ""), query.get("sort", "reward")
    rows = opened.known(("rows", phases), lambda run: run_queries.read_rows(run, phases))
    bound = opened.known("bound", run_queries.solved_threshold)
    counts = {name: sum(one["change"] == name for one in rows) for name in run_queries.CHANGES}
    kept = [one for one in rows if change in ("", one["change"])]
    kept.sort(key=lambda one: one["mean"] if sort == "reward" else -len(one["visits"]) if sort == "visits" else 0.0)
    page, clipper = kept[query.page], Clipper(longest=300)

    def with_prompts(run: Run) -> list[Answer]:
        return [one | {"prompt": clipper.clip(_prompt(run, one["visits"][0]["example"]))} for one in page]

    return {"rows": opened.use(with_prompts), "total": len(kept), "counts": counts, "solved_at": bound}


def show_row(opened: OpenRun, query: Query) -> Answer:
    """Every rollout of one data row."""
    row = query["row"]

    def find(run: Run) -> Answer:
        places = run_queries.visits_of_row(run, row)
        if not len(places):
            raise ConfigError(f"there is no row {row!r}")
        entries = [run.entry(at).to_dict() for at in places[:5_000].tolist()]
        return {"row": row, "rollouts": entries, "prompt": Clipper().clip(_prompt(run, entries[0]["key"]))}

    return opened.use(find)


def _read_groups(opened: OpenRun, query: Query) -> list[Answer]:
    return opened.known(("groups", *query.step), lambda run: run_queries.read_groups(run, *query.step))


def _describe(name: str, path: Path, files: FileMemory) -> Answer:
    info, summary = files.read(path / "run.json", _read_info), files.read(path / "summary.json", _read_summary)
    metrics = files.read(path / "metrics.jsonl", _read_metrics)
    findings = files.read(path / FINDINGS, read_findings)
    changed = max(_stat(path / part)[0] for part in ("metrics.jsonl", "index/0.records", "run.json", "summary.json"))
    state = run_state(path, summary, findings, metrics["latest"]["step"])
    guards = list(dict.fromkeys(str(one["guard"])[:80] for one in findings))[:_MOST_NAMES]
    known = {"run": name, "info": info, "summary": summary or {}, "state": state, "changed": changed, "guards": guards}
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
    rewards = thin([(one.get("step"), one.get("reward")) for one in metrics], 60)
    known = {"latest": {key: latest.get(key) for key in ("step", "reward", "fidelity", "tokens_per_second")}}
    return {"steps_done": len(metrics)} | _short(known | {"rewards": rewards})


def _short(values: Answer) -> Answer:
    found: Answer = Clipper(longest=2_000, budget=60_000).clip(values)
    return found


def _figures(run: Run) -> Answer:
    metrics = thin(run.metrics(), _MOST_POINTS)
    names = list(dict.fromkeys(name for line in metrics for name, value in line.items() if _is_number(value)))
    columns = {name[:80]: [_number(line.get(name)) for line in metrics] for name in names[:_MOST_NAMES]}
    steps = run_queries.read_steps(run)
    kept = [one for one in steps if one["phase"] in run_queries.HELD_OUT]
    train = [one for one in steps if one["phase"] not in run_queries.HELD_OUT]
    return {
        "rollouts": len(run.table),
        "steps": thin(train, _MOST_POINTS),
        "evaluations": thin(kept, _MOST_POINTS),
        "metrics": columns,
        "findings": Clipper().clip(read_metrics(run.path / FINDINGS)[-100:]),
        "causes": Clipper().clip(run.causes()[:200]),
        "tools": sorted(_tools(run))[:500],
        "statuses": sorted({name for one in steps for name in one["statuses"]}),
        "phases": [name for name in PHASES if any(one["phase"] == name for one in steps)],
    }


def _tools(run: Run) -> set[str]:
    with_tools = np.flatnonzero(run.table["tools"])
    firsts = np.unique(run.table[["writer", "tools"]][with_tools], return_index=True)[1]
    return {name for text in run.texts("tools", with_tools[firsts]) for name in (text or "").split()}


def _find_page(run: Run, places: Any, text: str | None, page: slice) -> tuple[list[tuple[int, str | None]], int]:
    """A page of the places, each with the words around the text, and where the next page begins."""
    if not text:
        return [(at, None) for at in places[page].tolist()], page.stop
    found: list[tuple[int, str | None]] = []
    began, at, most = time.monotonic(), page.start, page.stop - page.start
    while at < len(places) and len(found) < most and (time.monotonic() - began < _SEARCH_SECONDS or at == page.start):
        words = run.excerpt(int(places[at]), text)
        if words is not None:
            found.append((int(places[at]), words))
        at += 1
    return found, at


def _prompt(run: Run, key: str) -> Any:
    """What a rollout's data row asks, as far as that can be told; else the whole row."""
    payload = _payload(run, key)
    return payload.get(_asking(payload), payload) or None


def _payload(run: Run, key: str) -> Mapping[str, Any]:
    try:
        return run.rollout(run.find(key)).payload
    except (ConfigError, OSError):
        return {}


def _asking(payload: Mapping[str, Any]) -> str:
    """The field of a data row that asks."""
    names = ("prompt", "question", "problem", "task", "instruction", "query", "input", "messages")
    return next((name for name in names if name in payload), "")


def row_fields(payload: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The short fields of a data row beside the one that asks, such as its answer."""
    asking = _asking(payload)
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, default=repr)
        for name, value in payload.items()
        if name not in (asking, "_rollout") and asking
    }
    return [(name[:80], text) for name, text in texts.items() if len(text) <= _SHORT_FIELD][:_MOST_FIELDS]


def _tell(run: Run, key: str) -> Answer:
    """The end of what a rollout said, and the tools it called."""
    try:
        rollout = run.rollout(run.find(key))
    except (ConfigError, OSError) as error:
        return {"said": None, "calls": [], "problem": str(error)}
    replies = [turn.reply for turn in rollout.transcript.turns]
    said = next((reply["content"] for reply in reversed(replies) if reply.get("content")), None)
    called = [call for reply in replies for call in reply.get("tool_calls") or ()]
    calls = [{"name": call.get("name"), "arguments": call.get("arguments")} for call in called[:20]]
    return {"said": said, "calls": calls, "error": rollout.error}


def thin(items: list[Any], most: int) -> list[Any]:
    """At most `most` of the items, evenly spaced, with the last one."""
    every = -(-len(items) // most)
    return items if every <= 1 else [*items[:-1:every], items[-1]]


def _stat(path: Path) -> tuple[float, int]:
    """When a file last changed, and its size; zeros if there is none."""
    try:
        known = path.stat()
    except OSError:
        return 0.0, 0
    return known.st_mtime, known.st_size


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) and abs(value) < 1e300 else None
