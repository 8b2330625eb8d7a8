"""Outcomes without turns: a folder of results, or the report of an evaluation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...agent.result import read_result
from ...common.text_table import format_table
from ...errors import AgentCoreRLError, ConfigError, RewardInvalid
from ...store import open_store
from ...types import RolloutId
from .run_view import show_failures
from .safe_text import BOLD, Paint, escape, shorten

_HEADER = ("key", "input", "status", "reward", "seconds", "why")
Outcome = dict[str, Any]


def read_results(folder: Path) -> list[Outcome]:
    """The results of a store in a folder."""
    store = open_store(str(folder.resolve()))
    found = []
    for key in store.keys(""):
        try:
            RolloutId.from_key(key)
        except AgentCoreRLError:
            continue  # other files
        try:
            result = read_result(store, key)
            found.append({
                "key": key, "input": key.split("/")[-2], "status": result.status.value, "reward": _last(result.rewards),
                "seconds": result.seconds, "why": None if result.status.value == "completed" else result.failure,
                "document": result.document,
            })  # fmt: skip
        except (AgentCoreRLError, RewardInvalid, ValueError) as error:
            found.append(
                {"key": key, "input": "", "status": "unreadable", "reward": None, "seconds": None, "why": str(error)}
            )
    return found


def read_report(path: Path) -> list[Outcome]:
    """The outcomes in the report that `agentcore-rl eval --output` wrote."""
    try:
        outcomes = json.loads(path.read_bytes())["outcomes"]
        return [
            {
                "key": str(one["session_id"]),
                "input": str(one["input_id"]),
                "status": str(one["status"]),
                "reward": one.get("reward"),
                "seconds": one.get("seconds"),
                "why": one.get("model"),
            }
            for one in outcomes
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "name a run's folder, a folder of results, a gateway's log, or the report of `agentcore-rl eval`"
        raise ConfigError(f"{path} is none of what can be shown: {error!r}", hint=hint) from None


def show_outcomes(name: str, outcomes: list[Outcome], paint: Paint) -> Iterator[str]:
    """The outcomes at a glance: how many, their mean reward, and failures by message."""
    rewards = [one["reward"] for one in outcomes if isinstance(one["reward"], (int, float))]
    counts = ", ".join(
        f"{count} {status}" for status, count in Counter(one["status"] for one in outcomes).most_common()
    )
    mean = f", mean reward {sum(rewards) / len(rewards):.3f}" if rewards else ""
    yield paint(BOLD, escape(f"{name}: {len(outcomes)} results ({counts}){mean}"))
    failed = [one for one in outcomes if one["status"] != "completed"]
    causes = Counter(shorten(one["why"] or one["status"], 200) for one in failed)
    examples = {shorten(one["why"] or one["status"], 200): one["key"] for one in failed}
    yield from show_failures(
        [{"cause": cause, "rollouts": count, "example": examples[cause]} for cause, count in causes.most_common()],
        paint,
    )


def list_outcomes(outcomes: list[Outcome]) -> str:
    """Outcomes, one a line."""
    return format_table(_HEADER, [[_cell(one[name]) for name in _HEADER] for one in outcomes])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else shorten(value, 60)


def _last(rewards: float | list[float] | None) -> float | None:
    return rewards[-1] if isinstance(rewards, list) and rewards else None if isinstance(rewards, list) else rewards
