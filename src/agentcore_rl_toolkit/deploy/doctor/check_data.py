"""Whether the rows are such that an agent can run on every one of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...errors import ConfigError
from ...rows import read_rows
from .check import Check, failed, ok, refused


def check_rows(source: str) -> tuple[Check, list[dict[str, Any]]]:
    """The check, and the rows that can be read."""
    try:
        rows, problems = read_rows(source)
    except ConfigError as error:
        return refused("data", error), []
    problems += row_problems(rows)
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        return failed("data", f"{source}: {'; '.join(problems[:3])}{more}", "mend these rows, or leave them out"), rows
    return ok("data", f"{len(rows)} rows in {source}, all with {', '.join(sorted(rows[0]))}"), rows


def row_problems(rows: list[dict[str, Any]]) -> list[str]:
    """What is odd about rows, taken together.

    >>> row_problems([{"prompt": "a", "answer": 1}, {"prompt": "b"}, {"prompt": ["c"], "answer": 2}])
    ["row 2 has no 'answer', as most have", 'row 3: prompt is a list, not text']
    """
    problems = []
    common = [name for name, count in Counter(name for row in rows for name in row).items() if count > len(rows) / 2]
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        problems += [f"row {number} has no {name!r}, as most have" for name in common if name not in row]
        if "_rollout" in row:
            problems.append(f"row {number}: _rollout is the client's to set")
        if "prompt" in row and not isinstance(row["prompt"], str):
            problems.append(f"row {number}: prompt is a {type(row['prompt']).__name__}, not text")
        if (name := row.get("input_id")) is not None and seen.setdefault(str(name), number) != number:
            problems.append(f"row {number} has the input_id of row {seen[str(name)]}")
    return problems
