"""Reading a run's folder: a table of its rollouts from the index, and any one of them from its file.

It only reads, even while the run is being written, after a kill, or in a copy of the folder. It reads lines that the
index lacks from the files themselves, so a run without an index opens too, but more slowly.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...common.object_repr import object_repr
from ...errors import ConfigError
from ..rollout import Rollout
from .growing_files import RECORD, IndexFile, ScannedFile, Table, are_whole
from .ratio_files import ratio_file, read_ratios
from .rollout_files import read_line
from .run_index import (
    ACTIONS,
    FIELDS,
    FILE,
    MARK,
    PHASES,
    ROLLOUT,
    STATUSES,
    TEXTS,
    Entry,
    fit_values,
)
from .run_text import excerpt, may_contain, read_metrics, read_object
from .run_writer import UNFINISHED

_TABLE = np.dtype([*((name, kind) for name, _, kind in FIELDS), ("writer", "<u2")])
_COLUMNS = tuple(_TABLE.names or ())
_SCANNED = 65535
"""The writer of rollouts that no index has."""
_FOLDERS = ("rollouts", "evaluations")
Positions = npt.NDArray[np.intp]


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open the folder of a run or an evaluation, or a file of rollouts.

    >>> open_run("/nowhere")
    Traceback (most recent call last):
    agentcore_rl_toolkit.errors.ConfigError: /nowhere is not a folder of a run
    hint: name the output folder of `agentcore-rl train`, or the folder of an evaluation
    """
    folder = Path(path)
    files = [folder / name for name in ("index", "metrics.jsonl", "run.json", "summary.json", *_FOLDERS)]
    if not folder.is_file() and not any(file.exists() for file in files):
        hint = "name the output folder of `agentcore-rl train`, or the folder of an evaluation"
        raise ConfigError(f"{path} is not a folder of a run", hint=hint)
    return Run(folder)


def are_trained_on(table: Table) -> npt.NDArray[np.bool_]:
    """Whether the rollouts of a part of a run's table are trained on: held-out ones never are."""
    wanted = (table["phase"] == PHASES.index("train")) & (table["action"] == ACTIONS.index("train"))
    return np.asarray(wanted & (table["dropped"] == 0))


class Run:
    """A run's folder, as it was at the last `refresh`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table: Table = np.zeros(0, _TABLE)
        """One element for each rollout. Its columns are those of the index; texts are numbers for `text`."""
        self._indexes: dict[int, IndexFile] = {}
        self._scanned: dict[str, ScannedFile] = {}
        self._scanned_texts: list[str | None] = [None]
        self._scanned_numbers: dict[str, int] = {}
        self._files: dict[str, tuple[Path, int]] = {}
        self._state: object = None
        self.refresh()

    def __repr__(self) -> str:
        return object_repr(self, str(self.path), rollouts=len(self.table))

    # --- the table ---------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Read what has been appended; True if the table changed."""
        grown = [index.read() for index in self._find_indexes()]
        self._files = dict(self._list_files())
        state = {name: size for name, (_, size) in self._files.items()}
        if not any(grown) and state == self._state:
            return False
        self._state = state
        parts = [self._keep_existing(index) for index in self._indexes.values()]
        parts.append(self._scan(parts))
        self.table = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return True

    def text(self, field: str, position: int) -> str | None:
        """A text of one rollout: `input_id`, `session_id`, `why`, `cause`, `tools`, `dropped` or `file`."""
        return self.texts(field, [position])[0]

    def texts(self, field: str, positions: Positions | list[int]) -> list[str | None]:
        """A text of each of some rollouts."""
        writers, numbers = (self.table[name][positions].tolist() for name in ("writer", field))
        return [self._texts(writer)[number] for writer, number in zip(writers, numbers, strict=True)]

    def key(self, position: int) -> str:
        """The key of one rollout."""
        element = self.table[position]
        return f"{element['writer']}.{element['n']}"

    def entry(self, position: int) -> Entry:
        """One rollout's values."""
        element = self.table[position]
        texts = self._texts(int(element["writer"]))
        known: dict[str, Any] = {name: texts[int(element[name])] for name in TEXTS if name != "file"}
        for name in ("reward", "advantage"):
            known[name] = None if np.isnan(element[name]) else float(element[name])
        for name in ("at", "seconds", "model", "tool", "waiting"):
            known[name] = round(float(element[name]), 6)
        for name in Entry.__dataclass_fields__:
            if name not in known and name in _COLUMNS:
                known[name] = int(element[name])
        known |= {
            "key": self.key(position),
            "phase": PHASES[element["phase"]],
            "status": STATUSES[element["status"]],
            "action": ACTIONS[element["action"]],
            "group": None if element["group"] < 0 else int(element["group"]),
            "tools": tuple((known["tools"] or "").split()),
            "input_id": known["input_id"] or "",
        }
        return Entry(**known)

    def find(self, key: str) -> int:
        """The place in the table of a key, or of a session by its id or the start of it."""
        if re.fullmatch(r"\d{1,5}\.\d{1,10}", key):
            writer, number = map(int, key.split("."))
            found = np.flatnonzero((self.table["writer"] == writer) & (self.table["n"] == number))
        else:
            found = np.flatnonzero(self._with_text("session_id", lambda text: bool(key) and text.startswith(key)))
        if len(found) != 1:
            many = f"{len(found)} rollouts" if len(found) else "no rollout"
            raise ConfigError(f"{self.path} has {many} {key!r}", hint="give a key such as 0.17, or a session's id")
        return int(found[0])

    def select(
        self,
        *,
        phase: str | Iterable[str] | None = None,
        step: int | None = None,
        group: int | None = None,
        input_id: str | None = None,
        status: str | None = None,
        failed: bool | None = None,
        trained: bool | None = None,
        tool: str | None = None,
        text: str | None = None,
        sort: str | None = None,
        descending: bool = False,
        limit: int | None = None,
    ) -> Positions:
        """The places of the rollouts that match, in the order of the table or sorted by a column.

        Everything but `text` is answered from the index; `text` reads the rollouts that match the rest. `trained` is
        about training rollouts: neither True nor False matches held-out ones.
        """
        table = self.table
        chosen = np.ones(len(table), bool)
        for name, value in (("step", step), ("group", group)):
            if value is not None:
                chosen &= table[name] == value
        if phase is not None:
            phases = [phase] if isinstance(phase, str) else list(phase)
            chosen &= np.isin(table["phase"], [_place(PHASES, one, "phase") for one in phases])
        if status is not None:
            chosen &= table["status"] == _place(STATUSES, status, "status")
        if failed is not None:
            chosen &= self.failed == failed
        if trained is not None:
            chosen &= (table["phase"] == PHASES.index("train")) & (are_trained_on(table) == trained)
        if input_id is not None:
            chosen &= self._with_text("input_id", lambda text: text == input_id)
        if tool is not None:
            chosen &= self._with_text("tools", lambda text: tool in text.split())
        positions = np.flatnonzero(chosen)
        if sort is not None:
            positions = self._sorted(positions, sort, descending)
        if text is not None:
            hits = (at for at in positions.tolist() if self.contains(at, text))
            positions = np.fromiter((at for _, at in zip(range(limit or len(table)), hits, strict=False)), np.intp)
        return positions[:limit] if limit is not None else positions

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Whether each rollout failed, for another reason than that it was no longer needed."""
        return np.asarray(self.table["cause"] != 0)

    def causes(self, positions: Positions | None = None) -> list[dict[str, Any]]:
        """Why rollouts failed, the commonest cause first, with the key of an example of each."""
        places = np.flatnonzero(self.failed) if positions is None else positions[self.failed[positions]]
        table, counts = self.table[places], dict[str, list[int]]()
        keys, first, count = np.unique(table[["writer", "cause"]], return_index=True, return_counts=True)
        for key, at, number in zip(keys, first, count, strict=True):
            text = self._texts(int(key["writer"]))[int(key["cause"])]
            if text is not None:
                counts.setdefault(text, [0, int(places[at])])[0] += int(number)
        ordered = sorted(counts.items(), key=lambda item: -item[1][0])
        return [{"cause": text, "rollouts": n, "example": self.key(at)} for text, (n, at) in ordered]

    # --- one rollout -------------------------------------------------------------------------------------------------

    def line(self, position: int) -> bytes:
        """A rollout's line of its file."""
        element = self.table[position]
        name = self.text("file", position) or ""
        path = self._files.get(name, (self.path / name, 0))[0]
        with path.open("rb") as file:
            return os.pread(file.fileno(), int(element["length"]), int(element["offset"]))

    def rollout(self, position: int) -> Rollout:
        """A rollout, whole."""
        return read_line(self.line(position), f"{self.text('file', position)} at {self.table[position]['offset']}")

    def log_ratios(self, position: int, row: int) -> npt.NDArray[np.float32] | None:
        """log(trainer ÷ sampler) of a row's trained tokens; None where the trainer doesn't say."""
        path = ratio_file(self.path, self.text("file", position) or "")
        return read_ratios(path, self.text("session_id", position) or "", row)

    def contains(self, position: int, text: str) -> bool:
        """Whether a rollout's text, data row, result, error or output contains a text, in any case.

        A rollout whose file is gone, or broken, contains nothing.
        """
        return self.excerpt(position, text) is not None

    def excerpt(self, position: int, text: str) -> str | None:
        """The words around a text that a rollout contains."""
        try:
            return excerpt(self.rollout(position), text) if may_contain(self.line(position), text) else None
        except (ConfigError, OSError):
            return None

    # --- the run's other files ---------------------------------------------------------------------------------------

    @property
    def info(self) -> dict[str, Any]:
        """What the run is, from `run.json`; empty for old runs."""
        return read_object(self.path / "run.json") or {}

    def summary(self) -> dict[str, Any] | None:
        """The run's summary, once it has ended."""
        return read_object(self.path / "summary.json")

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every step so far."""
        return read_metrics(self.path / "metrics.jsonl")

    # --- parts -------------------------------------------------------------------------------------------------------

    def _find_indexes(self) -> list[IndexFile]:
        for path in sorted((self.path / "index").glob("*.records")):
            if path.stem.isdecimal() and int(path.stem) not in self._indexes and int(path.stem) < _SCANNED:
                self._indexes[int(path.stem)] = IndexFile(path)
        return list(self._indexes.values())

    def _list_files(self) -> Iterator[tuple[str, tuple[Path, int]]]:
        """The files of rollouts with their sizes; an unfinished one under the name that it will have."""
        if self.path.is_file():
            yield self.path.name, (self.path, self.path.stat().st_size)
            return
        for folder in _FOLDERS:
            try:
                found = sorted(os.scandir(self.path / folder), key=lambda entry: entry.name, reverse=True)
            except OSError:
                continue
            for entry in found:  # "unfinished-…" comes before "step-…", which replaces it
                if entry.name.endswith(".jsonl"):
                    with contextlib.suppress(FileNotFoundError):  # renamed or removed meanwhile
                        name = f"{folder}/{entry.name.removeprefix(UNFINISHED)}"
                        yield name, (Path(entry.path), entry.stat().st_size)

    def _keep_existing(self, index: IndexFile) -> Table:
        """The latest record of each rollout whose line is there."""
        records = index.records
        ends = np.zeros(len(index.texts), np.uint64)
        for number in np.flatnonzero(np.bincount(records["file"])).tolist():
            if number < len(ends):
                ends[number] = self._files.get(index.texts[number] or "", (None, 0))[1]
        begun = np.full(len(ends), -1)
        starts = np.flatnonzero(records["kind"] == FILE)
        begun[records["file"][starts]] = starts
        is_there = (records["kind"] == ROLLOUT) & (np.arange(len(records)) > begun[records["file"]])
        is_there &= records["offset"] + records["length"] <= ends[records["file"]]
        newest_first = np.flatnonzero(is_there)[::-1]
        _, latest = np.unique(records["n"][newest_first], return_index=True)
        return _with_writer(records, newest_first[latest], int(index.path.stem))

    def _scan(self, parts: list[Table]) -> Table:
        """The rollouts that the index lacks, read from their files."""
        indexed: dict[str, int] = {}
        for part, index in zip(parts, self._indexes.values(), strict=True):
            ends = np.zeros(len(index.texts), np.uint64)
            np.maximum.at(ends, part["file"], part["offset"] + part["length"])
            for number in np.flatnonzero(ends).tolist():
                indexed[index.texts[number] or ""] = int(ends[number])
        found: list[dict[str, Any]] = []
        for name in sorted(self._files):
            path, size = self._files[name]
            start = indexed.get(name, 0)
            if size > start:
                known = self._scanned.get(name)
                if known is None or known.start != start or known.end > size:
                    known = self._scanned[name] = ScannedFile(name, start)
                known.read(path)
                found += known.found
            else:
                self._scanned.pop(name, None)
        rows = np.zeros(len(found), _TABLE)
        rows["writer"] = _SCANNED
        for number, values in enumerate(found):
            texts = {field: self._number(values[field]) for field in TEXTS}
            for field, value in fit_values(values | texts | {"n": number, "mark": MARK}).items():
                rows[number][field] = value
        rows = rows[are_whole(rows)]
        summary = self.summary() if len(rows) else None
        if summary and "after" in summary and not summary.get("interrupted"):  # the index says which one was the last
            last = (rows["phase"] == PHASES.index("at_step")) & (rows["step"] == summary.get("steps"))
            rows["phase"][last] = PHASES.index("after")
        return rows

    def _number(self, text: str | None) -> int:
        if text is None:
            return 0
        if text not in self._scanned_numbers:
            self._scanned_numbers[text] = len(self._scanned_texts)
            self._scanned_texts.append(text)
        return self._scanned_numbers[text]

    def _texts(self, writer: int) -> list[str | None]:
        return self._scanned_texts if writer == _SCANNED else self._indexes[writer].texts

    def _with_text(self, field: str, matches: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Whether the text of each rollout in a field matches."""
        found = np.zeros(len(self.table), bool)
        for writer in np.unique(self.table["writer"]).tolist():
            here, texts = np.flatnonzero(self.table["writer"] == writer), self._texts(writer)
            numbers = self.table[field][here]
            wanted = [one for one in np.unique(numbers).tolist() if (text := texts[one]) is not None and matches(text)]
            found[here] = np.isin(numbers, wanted)
        return found

    def _sorted(self, positions: Positions, sort: str, descending: bool) -> Positions:
        if sort not in _COLUMNS or sort in TEXTS:
            names = ", ".join(name for name in _COLUMNS if name not in (*TEXTS, "mark", "kind", "writer"))
            raise ConfigError(f"rollouts can't be sorted by {sort!r}", hint=f"use one of: {names}")
        values = self.table[sort][positions].astype(np.float64)
        order = np.argsort(np.where(np.isnan(values), np.inf, -values if descending else values), kind="stable")
        return np.asarray(positions[order])


def _with_writer(records: Table, places: Positions, writer: int) -> Table:
    """Some records as a part of the table, whose elements begin as they do: as bytes, which are copied faster."""
    data = np.empty((len(places), _TABLE.itemsize), np.uint8)
    data[:, : RECORD.itemsize] = records.view(np.uint8).reshape(len(records), RECORD.itemsize)[places]
    table = data.view(_TABLE)[:, 0]
    table["writer"] = writer
    return table


def _place(names: tuple[str, ...], name: str, kind: str) -> int:
    if name not in names:
        raise ConfigError(f"{name!r} is not a {kind}", hint=f"use one of: {', '.join(names)}")
    return names.index(name)
