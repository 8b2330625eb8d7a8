"""Plain text tables, readable without colour and without a dependency."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a header, columns padded to their widest cell; columns of numbers are aligned right.

    >>> print(format_table(["name", "n"], [["a", "10"], ["bcd", "9"]]))
    name   n
    ────  ──
    a     10
    bcd    9
    """
    columns = list(zip(header, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    right = [bool(rows) and all(_is_number(cell) for cell in column[1:]) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), "  ".join("─" * w for w in widths), *(line(row) for row in rows)])


def _is_number(text: str) -> bool:
    try:
        float(text.rstrip("%×") or "0")
    except ValueError:
        return text == "-"
    return True
