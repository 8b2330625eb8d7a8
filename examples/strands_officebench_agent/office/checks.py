"""Checks in OfficeBench's manner: what has to be true of the files, not how the agent got there.

A check looks at the workspace, at what it was at the start (`before`), and at reference files. A file that is missing
or can't be read fails its check; it doesn't end the evaluation.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from . import calendar, excel
from .content import text_of


@dataclass(frozen=True)
class Evidence:
    """The folders that checks look at."""

    after: Path
    before: Path
    references: Path


class _Check(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Contain(_Check):
    """Every keyword is in a file, or in the mail of a user; case, and commas in numbers, don't count."""

    check: Literal["contain", "not_contain"]
    file: str = ""
    mail_of: str = ""
    keywords: list[str] = Field(min_length=1)


class Exists(_Check):
    """A file is there."""

    check: Literal["file_exist", "file_not_exist"]
    file: str


class DiffContain(_Check):
    """The lines that changed in a file since the start have every keyword."""

    check: Literal["diff_contain"]
    file: str
    was: str = ""
    """The file at the start, if it had another name."""
    keywords: list[str]


class CellValue(BaseModel):
    """One cell and what may be in it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    row: int
    column: int
    values: list[str] = Field(min_length=1)


class Cells(_Check):
    """Cells have one of their values; 3 and 3.0 are the same."""

    check: Literal["cells"]
    file: str
    cells: list[CellValue] = Field(min_length=1)


class ExactMatch(_Check):
    """A file has the content of a reference: the same cells, or the same text."""

    check: Literal["exact_match"]
    file: str
    reference: str


class NoOverlap(_Check):
    """No two events of a user's calendar share time."""

    check: Literal["no_overlap"]
    username: str


Check = Annotated[Contain | Exists | DiffContain | Cells | ExactMatch | NoOverlap, Field(discriminator="check")]


def run_check(check: Any, evidence: Evidence) -> str:
    """Empty if the check passes, else why it doesn't."""
    try:
        return _RUN[type(check)](check, evidence)
    except FileNotFoundError as error:
        return f"there is no {Path(str(error.filename)).name}"
    except Exception as error:  # the agent's file, and a dozen libraries' own ways to say that it is broken
        return f"can't be read: {type(error).__name__}: {error}"


def _contain(check: Contain, evidence: Evidence) -> str:
    wanted = check.check == "contain"
    if check.mail_of:
        text = _mail_of(evidence.after, check.mail_of)
    elif not wanted and not (evidence.after / check.file).exists():
        return ""
    else:
        text = text_of(evidence.after / check.file)
    missing = [word for word in check.keywords if not _has(text, word)]
    if wanted:
        return f"{missing[0]!r} is missing" if missing else ""
    return "" if missing else f"{check.keywords[0]!r} is there"


def _has(text: str, keyword: str) -> bool:
    if keyword.replace(".", "", 1).removeprefix("-").isdigit():
        text = text.replace(",", "")
    return keyword.lower() in text.lower()


def _mail_of(root: Path, user: str) -> str:
    folders = root / "emails"
    found = [f for f in sorted(folders.glob("*")) if f.name.lower() == user.lower()] if folders.is_dir() else []
    return "\n".join(text_of(path) for folder in found for path in sorted(folder.glob("*.eml")))


def _exists(check: Exists, evidence: Evidence) -> str:
    there = (evidence.after / check.file).exists()
    return "" if there == (check.check == "file_exist") else f"there is {'a' if there else 'no'} {check.file}"


def _diff(check: DiffContain, evidence: Evidence) -> str:
    before = text_of(evidence.before / (check.was or check.file)).splitlines()
    after = text_of(evidence.after / check.file).splitlines()
    changed = "\n".join(list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:])
    if not changed:
        return "nothing has changed"
    return next((f"{word!r} is not in what changed" for word in check.keywords if word not in changed), "")


def _cells(check: Cells, evidence: Evidence) -> str:
    cells = excel.read_cells(evidence.after / check.file)
    for wanted in check.cells:
        value = cells.get((wanted.row, wanted.column))
        if not any(_same(value, text) for text in wanted.values):
            return f"({wanted.row}, {wanted.column}) is {value!r}, not {' or '.join(wanted.values)}"
    return ""


def _same(value: Any, text: str) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value) == float(text)
        except ValueError:
            return False
    return ("" if value is None else str(value)) == text


def _exact_match(check: ExactMatch, evidence: Evidence) -> str:
    read = excel.read_cells if check.file.endswith(".xlsx") else text_of
    same = read(evidence.after / check.file) == read(evidence.references / check.reference)
    return "" if same else f"it differs from {check.reference}"


def _no_overlap(check: NoOverlap, evidence: Evidence) -> str:
    events = calendar.read_events(evidence.after / "calendar" / f"{check.username}.ics")
    return "two events overlap" if calendar.overlapping(events) else ""


_RUN: dict[type, Callable[[Any, Evidence], str]] = {
    Contain: _contain,
    Exists: _exists,
    DiffContain: _diff,
    Cells: _cells,
    ExactMatch: _exact_match,
    NoOverlap: _no_overlap,
}
