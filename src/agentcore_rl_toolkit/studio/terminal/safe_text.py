"""The beginning of a text in one line, and colour where the terminal wants it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO

from ...common.text_table import escape

GREENS = ("\x1b[38;5;22m", "\x1b[38;5;28m", "\x1b[38;5;34m", "\x1b[38;5;46m")
RED, GREEN, DIM, BOLD, _END = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True)
class Paint:
    """Colours text, or leaves it as it is."""

    colour: bool = False

    @classmethod
    def for_stream(cls, stream: IO[str]) -> Paint:
        """Colour on a terminal that wants it (https://no-color.org)."""
        return cls(stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")

    def __call__(self, code: str, text: str) -> str:
        return f"{code}{text}{_END}" if self.colour and text else text


def shorten(text: object, width: int) -> str:
    """The beginning of a text, escaped, in one line.

    >>> shorten("two\\nlines of text", 9)
    'two line…'
    """
    line = escape(" ".join(str(text)[: 8 * width].split()))
    return line if len(line) <= width else line[: width - 1] + "…"
