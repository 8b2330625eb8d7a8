"""Excel workbooks, cell by cell. Formulas are kept as they are written; nothing is calculated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeAlias

import openpyxl

Cell: TypeAlias = str | int | float | bool | None
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")


def write_rows(path: Path, rows: list[list[Cell]]) -> None:
    """A workbook with one sheet."""
    workbook = openpyxl.Workbook()
    for row in rows:
        workbook.active.append(row)
    workbook.save(path)


def read_cells(path: Path, sheet: str = "") -> dict[tuple[int, int], Any]:
    """The cells that have a value, by row and column, from 1."""
    workbook = openpyxl.load_workbook(path)
    cells = {}
    for row in _sheet(workbook, sheet).iter_rows():
        cells.update({(cell.row, cell.column): cell.value for cell in row if cell.value is not None})
    workbook.close()
    return cells


def read_text(path: Path, sheet: str = "") -> str:
    """A line for each row, `(row, column): value` for each of its cells."""
    lines: dict[int, list[str]] = {}
    for (row, column), value in sorted(read_cells(path, sheet).items()):
        lines.setdefault(row, []).append(f"({row}, {column}): {value}")
    return "\n".join("\t".join(cells) for cells in lines.values())


def set_cell(path: Path, row: int, column: int, value: Cell, sheet: str = "") -> None:
    """Write one cell; the workbook is made if it isn't there."""
    workbook = openpyxl.load_workbook(path) if path.exists() else openpyxl.Workbook()
    _sheet(workbook, sheet).cell(row, column).value = value
    workbook.save(path)


def typed(text: str) -> Cell:
    """What somebody who types that into a cell gets.

    >>> typed("12"), typed("-0.5"), typed("007"), typed(""), typed("Ada")
    (12, -0.5, '007', None, 'Ada')
    """
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text or None


def _sheet(workbook: Any, name: str) -> Any:
    if not name:
        return workbook.active
    if name not in workbook.sheetnames:
        raise ValueError(f"there is no sheet {name!r}; there is: {', '.join(workbook.sheetnames)}")
    return workbook[name]
