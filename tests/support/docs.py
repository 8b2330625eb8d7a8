"""The fenced blocks of the documentation's pages, and what the comments right above a block say of it.

    <!-- not run: why -->      it can't run in a test; its commands are parsed all the same
    <!-- run by: tests/… -->   that test runs it
    <!-- serves: URL -->       its last command goes on until Ctrl-C: it is started, and awaited at this address
    <!-- file: NAME -->        the content of a file that the page's commands read, or of one in the repository
    <!-- output -->            lines that blocks before it have printed; `…` is anything, and a number any other
    <!-- tree -->              folders and files that exist

Other comments say nothing here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
MADE = "<!-- made by scripts/docs/reference.py -->"
"""On pages that a test compares with the code, word for word."""

_FENCE = re.compile(r"(?P<indent> *)(?P<mark>`{3,}|~{3,})(?P<label>\S*)$")
_NOTE = re.compile(r"<!-- (not run|run by|serves|file|output|tree)(?:: (.+?))? -->$")


@dataclass(frozen=True)
class Block:
    """One fenced block: where it begins, its label, its text, and the notes above it."""

    page: Path
    line: int
    label: str
    code: str
    notes: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether the page's own run runs it."""
        kept = self.notes.keys() & {"not run", "run by", "file", "output", "tree"}
        return self.label in ("bash", "python") and not kept


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, from top to bottom."""
    lines, found, place = page.read_text().splitlines(), [], 0
    while place < len(lines):
        fence = _FENCE.match(lines[place])
        if fence is None:
            if re.match(r"[ >]*(```|~~~)", lines[place]):
                raise ValueError(f"{page}:{place + 1}: a fence is three marks and a label: {lines[place]}")
            place += 1
            continue
        end = lines.index(fence["indent"] + fence["mark"], place + 1)
        text = [line.removeprefix(fence["indent"]) for line in lines[place + 1 : end]]
        code = "".join(f"{line}\n" for line in text)
        found.append(Block(page, place + 1, fence["label"], code, _notes(lines[:place])))
        place = end + 1
    return found


def _notes(above: list[str]) -> dict[str, str]:
    """The comments that end `above`; a blank line may come after them."""
    notes = {}
    while above and (not above[-1].strip() or above[-1].strip().startswith("<!--")):
        note = _NOTE.match(above[-1].strip())
        if note:
            notes[note[1]] = note[2] or ""
        above = above[:-1]
    return notes
