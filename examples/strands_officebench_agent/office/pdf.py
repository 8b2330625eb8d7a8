"""PDF documents: read by pypdf, written by fpdf2 with the fonts that every reader has."""

from __future__ import annotations

from pathlib import Path

import pypdf
from fpdf import FPDF

_ASCII = str.maketrans({"–": "-", "—": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "…": "...", "•": "-", "€": "EUR"})


def write_lines(path: Path, lines: list[str]) -> None:
    """A document with these lines; long ones are wrapped, and pages follow each other as needed."""
    document = FPDF()
    document.set_font("Helvetica", size=11)
    document.add_page()
    for line in lines:
        document.multi_cell(0, 6, _printable(line) or " ", new_x="LMARGIN", new_y="NEXT")
    document.output(str(path))


def read_text(path: Path) -> str:
    """The text of all pages."""
    with pypdf.PdfReader(path) as reader:
        return "\n".join(page.extract_text() for page in reader.pages)


def _printable(line: str) -> str:
    text = line.translate(_ASCII)
    try:
        text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise ValueError(f"the PDF's font has no {text[error.start]!r}; write it another way") from None
    return text
