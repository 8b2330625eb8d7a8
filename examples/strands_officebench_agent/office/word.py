"""Word documents, paragraph by paragraph."""

from __future__ import annotations

from pathlib import Path

import docx


def write_paragraphs(path: Path, paragraphs: list[str]) -> None:
    """A document with these paragraphs."""
    document = docx.Document()
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    document.save(str(path))


def append_paragraphs(path: Path, paragraphs: list[str]) -> None:
    """Add paragraphs at the end of a document; the rest of it stays as it is."""
    document = docx.Document(str(path))
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    document.save(str(path))


def read_text(path: Path) -> str:
    """The paragraphs, then the tables, a line each."""
    document = docx.Document(str(path))
    lines = [paragraph.text for paragraph in document.paragraphs]
    for table in document.tables:
        lines += ["\t".join(cell.text for cell in row.cells) for row in table.rows]
    return "\n".join(lines)
