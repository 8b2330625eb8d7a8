"""Reads a JSONL data set, one payload per line. A malformed line is reported with its number; the others are used."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from .errors import ConfigError


def read_rows(source: str, limit: int | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a file, or of stdin for `-`, and the problems with its other lines."""
    with _open(source) as file:
        rows, problems = parse_rows(file)
    if not rows:
        raise ConfigError(f"{source} has no rows" + (f"; {problems[0]}" if problems else ""))
    return rows[:limit], problems


def rows_of(agent: str) -> str:
    """The data file in an agent's folder, used when the command line names none."""
    rows = os.path.join(agent, "rows.jsonl")
    if os.path.isfile(rows):
        return rows
    what = f"{rows} does not exist" if os.path.isdir(agent) else f"{agent} is not a folder"
    raise ConfigError(f"--data is missing, and {what}", hint="name a JSONL file with --data")


def parse_rows(lines: Iterable[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows, and problems with their line numbers.

    >>> parse_rows(['{"prompt": "a"}', '', '{"prompt": ', '[1]'])
    ([{'prompt': 'a'}], ['line 3: Expecting value at column 12', 'line 4: a row is an object, not a list'])
    """
    rows, problems = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            place = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            problems.append(f"line {number}: {getattr(error, 'msg', error)}{place}")
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            problems.append(f"line {number}: a row is an object, not a {type(row).__name__}")
    return rows, problems


@contextmanager
def _open(source: str) -> Iterator[TextIO]:
    if source == "-":
        yield sys.stdin
        return
    try:
        file = open(source, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(f"{source} can't be read: {error.strerror}") from None
    with file:
        yield file
