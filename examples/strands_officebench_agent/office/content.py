"""What a row says about a file, and the real file that comes of it: a table for .xlsx, events for .ics, a mail …"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, field_validator

from . import archive, calendar, excel, mail, pdf, word


class Raw(BaseModel):
    """A file as it is."""

    model_config = ConfigDict(strict=True, extra="forbid")
    base64: str

    @field_validator("base64")
    @classmethod
    def _decodable(cls, value: str) -> str:
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"is no base64: {error}") from None
        return value


@dataclass(frozen=True)
class _Kind:
    form: TypeAdapter[Any]
    """What a row may say."""
    write: Callable[[Path, Any], object]
    read_text: Callable[[Path], str]
    """What a person would read in the file."""


_KINDS = {
    ".xlsx": _Kind(TypeAdapter(list[list[excel.Cell]]), excel.write_rows, excel.read_text),
    ".docx": _Kind(TypeAdapter(list[str]), word.write_paragraphs, word.read_text),
    ".pdf": _Kind(TypeAdapter(list[str]), pdf.write_lines, pdf.read_text),
    ".ics": _Kind(TypeAdapter(list[calendar.Event]), calendar.write_events, calendar.read_text),
    ".eml": _Kind(TypeAdapter(mail.Mail), mail.write_mail, mail.read_text),
    ".zip": _Kind(TypeAdapter(dict[str, str]), archive.write_zip, lambda path: "\n".join(archive.names(path))),
}
_TEXT = _Kind(TypeAdapter(str), Path.write_text, lambda path: path.read_text(errors="replace"))


def parse_content(name: str, value: Any) -> Any:
    """A row's word on a file, checked: `{"base64": …}`, or what the suffix asks for.

    >>> parse_content("data/scores.xlsx", [["name", "score"], ["Ada", 3]])
    [['name', 'score'], ['Ada', 3]]
    """
    if isinstance(value, Raw) or (isinstance(value, dict) and "base64" in value):
        return Raw.model_validate(value)
    return _kind(name).form.validate_python(value)


def write_content(path: Path, content: Any) -> None:
    """Make the real file."""
    if isinstance(content, Raw):
        path.write_bytes(base64.b64decode(content.base64))
    else:
        _kind(path.name).write(path, content)


def encode(data: bytes) -> dict[str, str]:
    """A file as it is, for a row or a result."""
    return {"base64": base64.b64encode(data).decode()}


def text_of(path: Path) -> str:
    """What a person would read in a file, whatever its kind."""
    return _kind(path.name).read_text(path)


def _kind(name: str) -> _Kind:
    return _KINDS.get(PurePosixPath(name).suffix.lower(), _TEXT)
