"""Rollouts on disk: written as they finish, one line each, and read back whole.

`.jsonl` is JSON lines and can be appended to; `.parquet` has the same columns, needs pyarrow and is readable only after
`close()`. Readers skip a last line that a kill cut off; every other broken line is an error. Token ids, masks and
logprobs are base64 of little-endian arrays: as JSON numbers they would take forty times as long to write. Files of
schema version 1 have numbers and no text, and are still read.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import threading
from array import array
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from ...common.object_repr import object_repr
from ...engine.base import IDS
from ...errors import ConfigError
from ...gateway.record.conversation import NOTHING_SAID, Transcript
from ...gateway.record.trajectory import Fidelity, RouteTable, Row, TurnSpan
from ...gateway.record.turn import PlacedImage
from ...types import Status
from ..rollout import Action, Rollout

SCHEMA_VERSION = 2
_READ = (1, 2)
_IDS, _LOGPROBS = "<u4", "<f4"
_BATCH = 64  # rollouts in a row group of a Parquet file


def rollout_fields(rollout: Rollout) -> dict[str, Any]:
    """A rollout as JSON values."""
    return described_fields(rollout) | {"rows": [_row_fields(row) for row in rollout.rows]}


def described_fields(rollout: Rollout) -> dict[str, Any]:
    """A rollout without its rows, as JSON values."""
    known = {spec.name: getattr(rollout, spec.name) for spec in fields(Rollout) if spec.name != "rows"}
    known |= {"status": rollout.status.value, "action": rollout.action.value, "fidelity": asdict(rollout.fidelity)}
    known["seconds"] = {station: round(taken, 6) for station, taken in rollout.seconds.items()}
    return {"schema_version": SCHEMA_VERSION, **known, "transcript": rollout.transcript.to_fields()}


def read_fields(values: dict[str, Any]) -> Rollout:
    """The inverse of `rollout_fields`. Version 1 lacks the last fields."""
    version = values.get("schema_version")
    if version not in _READ:
        raise ConfigError(f"a rollout has schema version {version}; this package reads {' and '.join(map(str, _READ))}")
    known = {spec.name: values[spec.name] for spec in fields(Rollout) if spec.name in values}
    known |= {"status": Status(values["status"]), "action": Action(values["action"])}
    known |= {"rows": tuple(map(_read_row, values["rows"])), "fidelity": Fidelity(**values["fidelity"])}
    said = values.get("transcript")
    return Rollout(**known | {"transcript": Transcript.from_fields(said) if said else NOTHING_SAID})


def _row_fields(row: Row) -> dict[str, Any]:
    return {
        "token_ids": _pack(np.frombuffer(row.token_ids, np.uint32).astype(_IDS) if row.token_ids else b""),
        "loss_mask": _pack(np.packbits(row.loss_mask)),
        "logprobs": _pack(row.logprobs.astype(_LOGPROBS)),
        "weight": row.weight,
        "prompt_length": row.prompt_length,
        "spans": [asdict(span) for span in row.spans],
        "versions": [list(known) for known in row.versions],
        "routes": None if row.routes is None else _routes_fields(row.routes),
        "images": [list(image) for image in row.images],
    }


def _read_row(fields: dict[str, Any]) -> Row:
    ids, mask, logprobs = _read_arrays(fields["token_ids"], fields["loss_mask"], fields["logprobs"])
    return Row(
        token_ids=ids,
        loss_mask=mask,
        logprobs=logprobs,
        weight=fields["weight"],
        prompt_length=fields["prompt_length"],
        spans=tuple(TurnSpan(**span) for span in fields["spans"]),
        versions=tuple((str(name), int(start), int(end)) for name, start, end in fields["versions"]),
        routes=_read_routes(fields["routes"]) if fields.get("routes") else None,
        images=tuple(PlacedImage(*image) for image in fields.get("images", ())),
    )


def _read_arrays(ids: Any, mask: Any, logprobs: Any) -> tuple[array[int], Any, Any]:
    """The arrays of a row: base64, or the numbers of schema version 1."""
    if isinstance(ids, list):
        known = np.array([np.nan if value is None else value for value in logprobs], dtype=np.float32)
        return array(IDS, ids), np.array(mask, dtype=np.uint8), known
    packed = np.frombuffer(base64.b64decode(ids), _IDS).astype(np.uint32)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(mask), np.uint8), count=len(packed))
    known = np.frombuffer(base64.b64decode(logprobs), _LOGPROBS).astype(np.float32)
    if len(known) != len(packed):
        raise ValueError(f"{len(packed)} token ids and {len(known)} logprobs")
    return array(IDS, packed.tobytes()), bits, known


def _pack(values: Any) -> str:
    return base64.b64encode(values if isinstance(values, bytes) else values.tobytes()).decode()


def _routes_fields(routes: RouteTable) -> dict[str, Any]:
    """Numbers in base64, in as few bytes as hold the largest expert's."""
    kind = next(kind for kind in ("|u1", "<u2", "<i4") if routes.data.max(initial=0) <= np.iinfo(kind).max)
    return {
        "dtype": kind,
        "width": routes.data.shape[1],
        "data": _pack(routes.data.astype(kind)),
        "known": _pack(routes.known),
    }


def _read_routes(fields: dict[str, Any]) -> RouteTable:
    numbers = np.frombuffer(base64.b64decode(fields["data"]), np.dtype(fields["dtype"]))
    return RouteTable(
        data=numbers.reshape(-1, fields["width"]).astype(np.int32),
        known=np.frombuffer(base64.b64decode(fields["known"]), np.uint8).copy(),
    )


class RolloutWriter:
    """Appends rollouts to a file; safe to call from several threads."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix not in (".jsonl", ".parquet"):
            raise ConfigError(f"{path}: rollouts are written as .jsonl or .parquet")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._lines: list[dict[str, Any]] = []
        self._file = None
        self._end = 0
        if self.path.suffix == ".jsonl":
            self._file = self.path.open("ab", buffering=0)
            self._end = end_with_a_line(self.path)
        else:
            pyarrow, parquet = _pyarrow()
            if self.path.exists():
                raise ConfigError(f"{path} exists, and a Parquet file can't be appended to", hint="choose another name")
            self._schema, self._table = _schema(pyarrow), pyarrow.Table
            self._parquet = parquet.ParquetWriter(path, self._schema)

    def __repr__(self) -> str:
        return object_repr(self, str(self.path))

    def write(self, rollout: Rollout) -> tuple[int, int]:
        """Append a rollout; returns where its line begins and its length. A line is flushed before this returns."""
        values = rollout_fields(rollout)
        values["payload"] = _writable(values["payload"])
        with self._lock:
            if self._file is not None:
                line = _line(values)
                place = self._end
                write_all(self._file, line, place)
                self._end += len(line)
                return place, len(line)
            self._lines.append(_flat(values))
            if len(self._lines) >= _BATCH:
                self._flush()
            return 0, 0

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
            else:
                self._flush()
                self._parquet.close()

    def __enter__(self) -> RolloutWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _flush(self) -> None:
        if self._lines:
            self._parquet.write_table(self._table.from_pylist(self._lines, schema=self._schema))
            self._lines.clear()


def read_rollouts(path: str | Path) -> Iterator[Rollout]:
    """The rollouts in a file, one at a time."""
    path = Path(path)
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # cut off while it was written
            yield read_line(line, f"{path}, line {number}")


def read_line(line: bytes, where: str) -> Rollout:
    """The rollout of one line; `where` names it in an error."""
    try:
        return read_fields(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{where} is not a rollout: {error!r}") from None


def _writable(payload: Any) -> Any:
    """The row, or a note that it can't be JSON and so was never sent."""
    try:
        json.dumps(payload)
    except Exception as error:
        return {"unsendable": f"{type(error).__name__}: {error}"}
    return payload


def _line(values: dict[str, Any]) -> bytes:
    try:
        return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a character
        return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def write_all(file: io.FileIO, data: bytes, end: int) -> None:
    """Append `data` to a file of size `end`, or leave the file as it was: a full disk takes a part."""
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) or 0 :]
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(end)
        raise


def end_with_a_line(path: Path) -> int:
    """Remove a line that a kill cut off, so that the next one starts on a new line; returns the file's size."""
    with path.open("rb+") as file:
        end = whole = file.seek(0, os.SEEK_END)
        while whole:
            start = max(0, whole - 65536)
            file.seek(start)
            newline = file.read(whole - start).rfind(b"\n")
            whole = start + newline + 1
            if newline >= 0:
                break
        if whole < end:
            file.truncate(whole)
        return whole


def _read_parquet(path: Path) -> Iterator[Rollout]:
    pyarrow, parquet = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ConfigError(f"{path} is not a complete Parquet file: {error}") from None
    with file:
        for batch in file.iter_batches(_BATCH):
            for values in batch.to_pylist():
                yield read_fields({name: json.loads(one) if name in _JSON else one for name, one in values.items()})


_JSON = ("rewards", "payload", "result", "rows", "fidelity", "seconds", "transcript")
_PLAIN = ("schema_version", "input_id", "session_id", "group", "sample", "status", "action", "why", "error", "printed")


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Fields without a fixed shape become JSON columns; Parquet takes no half characters, so they are replaced."""
    flat = {name: json.dumps(value) if name in _JSON else value for name, value in values.items()}
    for name in ("error", "input_id", "printed"):
        if flat[name] is not None:
            flat[name] = flat[name].encode(errors="replace").decode()
    return flat


def _schema(pyarrow: Any) -> Any:
    kinds = dict.fromkeys(("schema_version", "sample", "group"), pyarrow.int32())
    return pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in (*_PLAIN, *_JSON)])


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        hint = "pip install 'agentcore-rl-toolkit[cli]', or use .jsonl"
        raise ConfigError("Parquet needs pyarrow", hint=hint) from None
    return pyarrow, pyarrow.parquet
