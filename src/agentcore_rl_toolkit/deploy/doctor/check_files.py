"""Checks of the agent's files: the rows of its data set, and its Dockerfile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...rows import read_rows
from .finding import Check, failed, failed_with, ok, skipped


def check_rows(source: str) -> tuple[Check, list[dict[str, Any]]]:
    """Whether an agent can run on every row; and the rows that can be read."""
    try:
        rows, problems = read_rows(source)
    except ConfigError as error:
        return failed_with("data", error), []
    problems += _row_problems(rows)
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        text = f"{source}: {'; '.join(problems[:3])}{more}"
        return failed("data", text, "correct these rows, or remove them"), rows
    return ok("data", f"{len(rows)} rows in {source}, all with {', '.join(sorted(rows[0]))}"), rows


def _row_problems(rows: list[dict[str, Any]]) -> list[str]:
    """What stands out when rows are compared.

    >>> _row_problems([{"prompt": "a", "answer": 1}, {"prompt": "b"}, {"prompt": ["c"], "answer": 2}])
    ["row 2 lacks 'answer', which most rows have", 'row 3: prompt is a list, not text']
    """
    problems = []
    common = [name for name, count in Counter(name for row in rows for name in row).items() if count > len(rows) / 2]
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        problems += [f"row {number} lacks {name!r}, which most rows have" for name in common if name not in row]
        if "_rollout" in row:
            problems.append(f"row {number}: only the client may set _rollout")
        if "prompt" in row and not isinstance(row["prompt"], str):
            problems.append(f"row {number}: prompt is a {type(row['prompt']).__name__}, not text")
        if (name := row.get("input_id")) is not None and seen.setdefault(str(name), number) != number:
            problems.append(f"row {number} has the input_id of row {seen[str(name)]}")
    return problems


def check_dockerfile(folder: Path) -> Check:
    """Whether the app listens on all addresses: `app.run()` does so where it knows that it runs in a container."""
    dockerfile = folder / "Dockerfile"
    if not dockerfile.is_file():
        return skipped("container", f"{folder} has no Dockerfile; `agentcore-rl init` writes one")
    lines = dockerfile.read_text(encoding="utf-8").splitlines()
    recipe = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    code = "".join(path.read_text(encoding="utf-8", errors="replace") for path in folder.glob("*.py"))
    if "DOCKER_CONTAINER" in recipe or "0.0.0.0" in recipe + code:
        return ok("container", "the app listens on all addresses")
    fix = "write ENV DOCKER_CONTAINER=1 into the Dockerfile"
    return failed("container", "outside of Docker the app would listen on 127.0.0.1 only", fix)
