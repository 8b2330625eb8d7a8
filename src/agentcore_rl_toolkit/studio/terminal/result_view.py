"""Outcomes without turns: a folder of results, or the report of an evaluation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...agent.result import stored_results
from ...common.text_table import escape, format_table
from ...errors import AgentCoreRLError, ConfigError
from ...store import open_store
from ..run_queries import row_of
from .run_view import show_failures
from .safe_text import BOLD, Paint, shorten

_HEADER = ("key", "input", "status", "reward", "seconds", "why")
Outcome = dict[str, Any]


def read_results(folder: Path, read: Callable[[int], None] = lambda count: None) -> list[Outcome]:
    """The results in a folder, a store's or one experiment's. `read` is told how many there are so far."""
    folder = folder.resolve()
    return _read_results(folder, "", read) or _read_results(folder.parent, f"{folder.name}/", read)


def _read_results(root: Path, prefix: str, read: Callable[[int], None]) -> list[Outcome]:
    found: list[Outcome] = []
    for id, result in stored_results(open_store(str(root)), prefix):
        known: Outcome = {"key": id.result_key, "input": id.input_id, "reward": None, "seconds": None}
        try:
            if isinstance(result, Exception):
                raise result
            status = result.status.value
            known |= {"status": status, "reward": _last(result.rewards), "seconds": result.seconds}
            known |= {"why": None if status == "completed" else result.failure, "document": result.document}
        except (AgentCoreRLError, ValueError) as error:
            known |= {"input": "", "status": "unreadable", "why": str(error)}
        found.append(known)
        read(len(found))
    return found


def read_report(path: Path) -> list[Outcome]:
    """The outcomes in the report that `agentcore-rl eval --output` wrote."""
    try:
        outcomes = json.loads(path.read_bytes())["outcomes"]
        return [
            {
                "key": str(one["result_key"] or f"{one['index']}.{one['sample']}"),
                "input": str(one["input_id"]),
                "status": str(one["status"]),
                "reward": _number(_last(one["rewards"])),
                "seconds": _number(one["elapsed"]),
                "why": None if one["error"] is None else str(one["error"]),
                "model": str(one.get("model") or ""),
                "document": one,
            }
            for one in outcomes
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "name a run's folder, a folder of results, a gateway's log, or the report of `agentcore-rl eval`"
        raise ConfigError(f"{path} can't be shown: {error!r}", hint=hint) from None


def select_outcomes(
    outcomes: Sequence[Outcome],
    *,
    rollout: str | None = None,
    row: str | None = None,
    status: str | None = None,
    failed: bool = False,
    text: str | None = None,
    sort: str | None = None,
    descending: bool = False,
) -> list[Outcome]:
    """The outcomes that match. `sort` is a column of the list; outcomes without a value there come last."""
    if sort is not None and sort not in _HEADER:
        raise ConfigError(f"results can't be sorted by {sort!r}", hint=f"use one of: {', '.join(_HEADER)}")
    chosen = [
        one
        for one in (outcomes if rollout is None else _named(outcomes, rollout))
        if (row is None or one["input"].startswith(row) or row_of(one["input"]).startswith(row))
        and (status is None or one["status"] == status)
        and not (failed and one["status"] == "completed")
        and (text is None or text.lower() in json.dumps(one, ensure_ascii=False, default=str).lower())
    ]
    if sort is None:
        return chosen
    known = [one for one in chosen if one[sort] is not None]
    known.sort(key=lambda one: one[sort], reverse=descending)
    return known + [one for one in chosen if one[sort] is None]


def _named(outcomes: Sequence[Outcome], name: str) -> Sequence[Outcome]:
    """The outcomes with this key or session; without one, those whose stored key or session begins so."""
    names = [(one["key"], _session_of(one["key"])) for one in outcomes]
    exact = [one for one, known in zip(outcomes, names, strict=True) if name in known]
    stored = [(one, known) for one, known in zip(outcomes, names, strict=True) if "/" in one["key"]]
    return exact or [one for one, known in stored if any(text.startswith(name) for text in known)]


def show_outcome(one: Outcome, paint: Paint) -> Iterator[str]:
    """One outcome, and the document that its session stored, or what the report says of it."""
    reward = "none" if one["reward"] is None else f"{one['reward']:g}"
    yield paint(BOLD, escape(f"{one['key']}: row {one['input']}: {one['status']}, reward {reward}"))
    for name, value in (one.get("document") or {}).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
        yield f"{paint(BOLD, escape(name))}  {escape(text)}"


def show_outcomes(name: str, outcomes: list[Outcome], paint: Paint) -> Iterator[str]:
    """The outcomes at a glance: how many of each model, their mean reward, and failures by message."""
    for model in dict.fromkeys(one.get("model", "") for one in outcomes):
        yield paint(
            BOLD, escape(_in_figures(model or name, [one for one in outcomes if one.get("model", "") == model]))
        )
    failed = [one for one in outcomes if one["status"] != "completed"]
    examples = {shorten(one["why"] or one["status"], 200): one["key"] for one in failed}
    causes = Counter(shorten(one["why"] or one["status"], 200) for one in failed).most_common()
    yield from show_failures([{"cause": c, "rollouts": count, "example": examples[c]} for c, count in causes], paint)


def _in_figures(name: str, outcomes: list[Outcome]) -> str:
    rewards = [one["reward"] for one in outcomes if isinstance(one["reward"], (int, float))]
    statuses = Counter(one["status"] for one in outcomes)
    counts = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    mean = f", mean reward {sum(rewards) / len(rewards):.3f}" if rewards else ""
    return f"{name}: {len(outcomes)} result{'' if len(outcomes) == 1 else 's'} ({counts}){mean}"


def list_outcomes(outcomes: list[Outcome]) -> str:
    names = (*_HEADER, "model") if any(one.get("model") for one in outcomes) else _HEADER
    shown = [{**one, "key": _session_of(one["key"])} for one in outcomes]
    return format_table(names, [[_cell(one[name]) for name in names] for one in shown])


def _session_of(key: str) -> str:
    """The session that stored a result, which is short enough to be copied."""
    return key.rpartition("/")[2].removesuffix(".json")


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else shorten(value, 60)


def _last(rewards: float | list[float] | None) -> float | None:
    return next(reversed(rewards), None) if isinstance(rewards, list) else rewards
