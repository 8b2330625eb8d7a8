"""From OfficeBench's own tasks to rows: `tasks/<id>/subtasks/<n>.json`, with `testbed/` and `reference/` beside them.

The original's checks say the same in other words. Two of its habits are not taken over: a cell's value has to be equal
(there, a prefix is enough), and a comparator is never run as code.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from agentcore_rl_toolkit.errors import ConfigError

from .content import encode

_IMAGES = {".jpg", ".jpeg", ".png"}


def find_tasks(folder: Path) -> list[Path]:
    """The files of a folder of tasks, in the order of their numbers."""
    found = sorted(folder.glob("*/subtasks/*.json"), key=_order)
    if not found:
        raise ConfigError(f"there are no tasks in {folder}", hint="name OfficeBench's folder `tasks`")
    return found


def convert_task(path: Path) -> dict[str, Any]:
    """The row of one task."""
    home = path.parents[1]
    try:
        task = json.loads(path.read_text())
        checks = [_check(item["function"], item["args"] | _misplaced(item)) for item in task["evaluation"]]
        row: dict[str, Any] = {name: str(task[name]) for name in ("username", "date", "weekday", "time")}
        prompt = str(task["task"])
        wanted = sorted({check["reference"] for check in checks if "reference" in check})
        references = {name: encode((home / "reference" / name).read_bytes()) for name in wanted}
    except (KeyError, TypeError, ValueError, OSError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{path} can't be converted: {what}") from None
    files = {name: encode((home / "testbed" / name).read_bytes()) for name in _names(home / "testbed")}
    row |= {"prompt": prompt, "input_id": f"{home.name}-{path.stem}", "files": files, "checks": checks}
    return row | ({"references": references} if references else {})


def needs_eyes(row: dict[str, Any]) -> bool:
    """Whether a row has pictures among its files, which this agent has no tool to read."""
    return any(PurePosixPath(name).suffix.lower() in _IMAGES for name in row["files"])


def _order(path: Path) -> tuple[list[int], int]:
    return [int(part) for part in re.findall(r"\d+", path.parents[1].name)], int(re.sub(r"\D", "", path.stem) or 0)


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _misplaced(item: dict[str, Any]) -> dict[str, Any]:
    """A few of the original's checks have `file` beside `args`."""
    return {"file": item["file"]} if "file" in item else {}


def _check(function: str, args: dict[str, Any]) -> dict[str, Any]:
    name = function.removeprefix("evaluate_")
    if name not in _CHECKS:
        raise ValueError(f"its check {function!r} is unknown")
    return _CHECKS[name](name, args)


def _contain(name: str, args: dict[str, Any]) -> dict[str, Any]:
    where = {"mail_of": args["username"]} if args["doc_type"] == "email" else {"file": _plain(args["file"])}
    return {"check": name, **where, "keywords": args["keywords"]}


def _exists(name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"check": name, "file": _plain(args["file"])}


def _diff(name: str, args: dict[str, Any]) -> dict[str, Any]:
    was = args["input_file"].rpartition("/testbed/")[2]
    return {
        "check": "diff_contain",
        "file": _plain(args["output_file"]),
        "was": _plain(was),
        "keywords": args["keywords"],
    }


def _cells(name: str, args: dict[str, Any]) -> dict[str, Any]:
    cells = [
        {"row": int(match["row"]), "column": int(match["col"]), "values": _values(match)} for match in args["matches"]
    ]
    return {"check": "cells", "file": _plain(args["file"]), "cells": cells}


def _values(match: dict[str, Any]) -> list[str]:
    if "comparator" not in match:
        return [str(match["value"])]
    try:
        tree: Any = ast.parse(match["comparator"], mode="eval").body
        (operator,), (values,) = tree.body.ops, tree.body.comparators
        if isinstance(operator, ast.In):
            return [str(value) for value in ast.literal_eval(values)]
    except (SyntaxError, ValueError, TypeError, AttributeError):
        pass
    raise ValueError(f"its comparator {match['comparator']!r} is not of the form `lambda x: x in […]`")


def _exact_match(name: str, args: dict[str, Any]) -> dict[str, Any]:
    reference = args["expected_file"].rpartition("/reference/")[2]
    return {"check": name, "file": _plain(args["result_file"]), "reference": _plain(reference)}


def _no_overlap(name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"check": "no_overlap", "username": args["username"]}


def _plain(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"its path {name!r} leads out of the workspace")
    return str(path)


_CHECKS: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    "contain": _contain,
    "not_contain": _contain,
    "file_exist": _exists,
    "file_not_exist": _exists,
    "diff_contain_text": _diff,
    "excel_cell_value": _cells,
    "excel_cell_comparator": _cells,
    "exact_match": _exact_match,
    "calendar_no_overlap": _no_overlap,
}
