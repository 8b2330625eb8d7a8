"""Text in a run's folder: whether a rollout contains one, and the small JSON files beside the rollouts. Only reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..rollout import Rollout

_ESCAPED = re.compile(rb"\\u(?!00[01])")
"""The escape of a character that JSON doesn't require to be escaped."""


_AROUND = 60
"""Characters of an excerpt before the text that was sought, and after it."""


def may_contain(line: bytes, text: str) -> bool:
    """Whether a rollout's line may contain a text, in any case; cheaper than parsing the line."""
    low = json.dumps(text.lower(), ensure_ascii=False)[1:-1]
    if text.isascii():
        return low.encode() in line.lower()
    if line.isascii():
        return _ESCAPED.search(line) is not None
    return low in line.decode(errors="replace").lower()


def excerpt(rollout: Rollout, text: str) -> str | None:
    """The words around a text in what a rollout said, its data row, result, error or output; None if it isn't there."""
    said = (rollout.transcript.messages, [turn.reply for turn in rollout.transcript.turns])
    wanted = text.lower()
    for part in (*said, rollout.payload, rollout.result, rollout.error, rollout.printed):
        for one in _strings(part):
            at = one.lower().find(wanted)
            if at >= 0:
                return one[max(0, at - _AROUND) : at + len(text) + _AROUND]
    return None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines; broken lines, and a last one that is incomplete, are left out."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    return [found for line in lines if line.endswith(b"\n") and isinstance(found := _parse(line), dict)]


def metrics_by_step(folder: Path) -> dict[int, dict[str, Any]]:
    """The lines of a run's metrics by their step."""
    found = read_metrics(folder / "metrics.jsonl")
    return {line["step"]: line for line in found if isinstance(line.get("step"), int)}


def read_object(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is none."""
    try:
        found = _parse(path.read_bytes())
    except OSError:
        return None
    return found if isinstance(found, dict) else None


def parse_texts(lines: bytes) -> list[str | None]:
    """The JSON string of each line; None for a broken one.

    They are parsed at once, which takes a tenth of the time, unless one of them is broken.
    """
    found = _parse(b"[" + lines[:-1].replace(b"\n", b",") + b"]") or []
    if len(found) == lines.count(b"\n") and {*map(type, found)} <= {str}:
        return list(found)
    return [one if isinstance(one := _parse(line), str) else None for line in lines.split(b"\n")[:-1]]


def _parse(data: bytes) -> Any:
    """The value of some JSON; None if it is broken."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _strings(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple)):
            waiting += one
