"""The files of a run that grow: a writer's index, and rollouts that no index has.

Each read continues where the last one ended. An incomplete last line or record waits for the next read; a broken one is
skipped.
"""

from __future__ import annotations

import contextlib
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError
from .rollout_files import read_line
from .run_index import (
    ACTIONS,
    FIELDS,
    FILE,
    LARGEST,
    MARK,
    PHASES,
    RECORD_BYTES,
    ROLLOUT,
    STATUSES,
    TEXTS,
    check_values,
    rollout_values,
)
from .run_text import parse_texts

RECORD = np.dtype([(name, kind) for name, _, kind in FIELDS])
Table = npt.NDArray[Any]
_FIRST_BYTES = 4 * RECORD_BYTES
"""This much of an index tells one run from another: rollouts end at different times."""


class IndexFile:
    """One writer's index, as far as it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self._first = b""
        self._whole: Table = np.zeros(0, RECORD)
        self.records: Table = self._whole
        """The records whose texts are there: a copy of the folder may get a record before its texts."""
        self.texts: list[str | None] = [None]
        self._records_read = self._texts_read = 0

    def read(self) -> bool:
        """Read what has been appended; True if there was anything. Records come first: their texts are older."""
        first = _read_from(self.path, 0, _FIRST_BYTES)
        begun_anew = not first.startswith(self._first)  # a new run is in the place of the one that was read
        if begun_anew:
            self._forget()
        self._first = first
        data = _read_from(self.path, self._records_read)
        data = data[: len(data) - len(data) % RECORD_BYTES]
        lines = _read_from(self.path.with_suffix(".texts"), self._texts_read)
        lines = lines[: lines.rfind(b"\n") + 1]
        if not (data or lines or begun_anew):
            return False
        self._texts_read += len(lines)
        self.texts += parse_texts(lines)
        new = np.frombuffer(data, RECORD)
        self._records_read += len(data)
        self._whole = _joined([self._whole, _kept(new, are_whole(new))])
        self.records = _kept(self._whole, np.all([self._whole[name] < len(self.texts) for name in TEXTS], axis=0))
        return True


def _kept(records: Table, wanted: npt.NDArray[np.bool_]) -> Table:
    """The wanted ones of some records, without a copy if that is all of them: a large index has megabytes."""
    return records if wanted.all() else records[wanted]


def _joined(parts: list[Table]) -> Table:
    """Some records after each other, without a copy if only one part has any."""
    filled = [part for part in parts if len(part)] or parts[:1]
    return np.concatenate(filled) if len(filled) > 1 else filled[0]


def are_whole(records: Table) -> npt.NDArray[np.bool_]:
    """Which records have possible values: a broken disk or copy may leave any."""
    whole = np.asarray((records["mark"] == MARK) & np.isin(records["kind"], (FILE, ROLLOUT)))
    for name, known in (("phase", PHASES), ("status", STATUSES), ("action", ACTIONS)):
        whole &= records[name] < len(known)
    for name in ("at", "seconds", "model", "tool", "waiting"):
        whole &= np.isfinite(records[name])
    for name in ("reward", "advantage"):
        whole &= ~(np.abs(records[name]) > LARGEST)
    return whole & (records["offset"] < 2**62)


class ScannedFile:
    """The part of a file that no index has."""

    def __init__(self, name: str, start: int) -> None:
        self.name, self.start, self.end = name, start, start
        self.found: list[dict[str, Any]] = []

    def read(self, path: Path) -> None:
        """Read the lines that were added."""
        phase, step = _describe_file(self.name)
        try:
            file = path.open("rb")
        except OSError:
            return
        with file:
            file.seek(self.end)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                values = {"file": self.name, "offset": self.end, "length": len(line), "at": 0.0}
                with contextlib.suppress(ConfigError, ValueError, TypeError, AttributeError, struct.error):
                    values = rollout_values(read_line(line, self.name), phase, step) | values
                    check_values(values)
                    self.found.append(values)
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
