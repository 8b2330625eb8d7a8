"""Plain text for people: tables, and what agents and models say made safe for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a header, columns padded to their widest cell; columns of numbers are aligned right. Escapes the rows.

    >>> print(format_table(["name", "n"], [["a", "10"], ["bcd", "9"]]))
    name   n
    ────  ──
    a     10
    bcd    9
    """
    rows = [[escape(cell) for cell in row] for row in rows]
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


def escape(text: object) -> str:
    """Text without characters that move the cursor, hide, or turn text around; line ends and tabs stay.

    >>> escape("a\\x1b[2Jb\\u202ec")
    'a\\\\x1b[2Jb\\\\u202ec'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in str(text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
