"""The files of a run that grow: a writer's index, and rollouts that no index has. Reading continues where it ended.

A last line or record that is incomplete comes later; a broken one is left out.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError
from .rollout_files import read_line
from .run_index import FIELDS, MARK, RECORD_BYTES, TEXTS, rollout_values

RECORD = np.dtype([(name, kind) for name, _, kind in FIELDS])
Table = npt.NDArray[Any]
_FIRST_BYTES = 4 * RECORD_BYTES
"""So much of an index tells one run from another: rollouts end at different times."""


class IndexFile:
    """One writer's index, as far as it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self._first = b""
        self.records: Table = np.zeros(0, RECORD)
        self.texts: list[str | None] = [None]
        self._records_read = self._texts_read = 0

    def read(self) -> bool:
        """Read what has been appended; True if there was anything. Records come first: their texts are older."""
        first = _read_from(self.path, 0, _FIRST_BYTES)
        if not first.startswith(self._first):  # a new run is in the place of the one that was read
            self._forget()
        self._first = first
        data = _read_from(self.path, self._records_read)
        data = data[: len(data) - len(data) % RECORD_BYTES]
        lines = _read_from(self.path.with_suffix(".texts"), self._texts_read)
        lines = lines[: lines.rfind(b"\n") + 1]
        self._texts_read += len(lines)
        self.texts += _parse_texts(lines.splitlines())
        new = np.frombuffer(data, RECORD)
        self._records_read += len(data)
        known = np.all([new[name] < len(self.texts) for name in TEXTS], axis=0)
        self.records = np.concatenate([self.records, new[(new["mark"] == MARK) & known]])
        return bool(data)


class ScannedFile:
    """The part of a file that no index has."""

    def __init__(self, name: str, start: int) -> None:
        self.name, self.start, self.end = name, start, start
        self.found: list[dict[str, Any]] = []

    def read(self, path: Path) -> None:
        """Read the lines that were added; a last one that is incomplete comes later, a broken one is left out."""
        phase, step = _describe_file(self.name)
        with path.open("rb") as file:
            file.seek(self.end)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                try:
                    values = rollout_values(read_line(line, self.name), phase, step)
                except ConfigError:
                    values = {}
                if values:
                    self.found.append(values | {"file": self.name, "offset": self.end, "length": len(line), "at": 0.0})
                self.end += len(line)


def _describe_file(name: str) -> tuple[str, int]:
    """The phase and the step of a file, from its name."""
    found = re.search(r"step-(\d{1,9})", name)
    step = int(found[1]) if found else 0
    if not name.startswith("evaluations/"):
        return "train", step
    return ("at_step", step) if step else ("before", 0)


def _read_from(path: Path, start: int, size: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(size)
    except OSError:
        return b""


def _parse_texts(lines: list[bytes]) -> list[str | None]:
    """The text of each line. They are parsed at once, which takes a tenth of the time, unless one of them is broken."""
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        found = []
    if len(found) == len(lines) and all(isinstance(one, str) for one in found):
        return list(found)
    return [_parse_text(line) for line in lines]


def _parse_text(line: bytes) -> str | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
