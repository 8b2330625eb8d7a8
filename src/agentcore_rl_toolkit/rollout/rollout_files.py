"""Rollouts on disk: written as they finish, one line each, and read back whole.

`.jsonl` is JSON lines and can be appended to; `.parquet` has the same columns, needs pyarrow and is readable only after
`close()`. Readers skip a last line that a kill cut off; every other broken line is an error.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from array import array
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.base import IDS
from ..errors import ConfigError
from ..gateway.record.trajectory import Fidelity, RouteTable, Row, TurnSpan
from ..types import Status
from .rollout import Action, Rollout

SCHEMA_VERSION = 1
_BATCH = 64  # rollouts in a row group of a Parquet file


def rollout_fields(rollout: Rollout) -> dict[str, Any]:
    """A rollout as JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "input_id": rollout.input_id,
        "session_id": rollout.session_id,
        "sample": rollout.sample,
        "status": rollout.status.value,
        "action": rollout.action.value,
        "why": rollout.why,
        "error": rollout.error,
        "rewards": rollout.rewards,
        "payload": rollout.payload,
        "result": rollout.result,
        "rows": [_row_fields(row) for row in rollout.rows],
        "fidelity": asdict(rollout.fidelity),
        "seconds": {station: round(taken, 6) for station, taken in rollout.seconds.items()},
    }


def read_fields(fields: dict[str, Any]) -> Rollout:
    """The inverse of `rollout_fields`."""
    version = fields.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ConfigError(f"a rollout has schema version {version}; this package reads {SCHEMA_VERSION}")
    return Rollout(
        input_id=fields["input_id"],
        session_id=fields["session_id"],
        sample=fields["sample"],
        status=Status(fields["status"]),
        action=Action(fields["action"]),
        why=fields["why"],
        payload=fields["payload"],
        result=fields["result"],
        error=fields["error"],
        rewards=fields["rewards"],
        rows=tuple(_read_row(row) for row in fields["rows"]),
        fidelity=Fidelity(**fields["fidelity"]),
        seconds=fields["seconds"],
    )


def _row_fields(row: Row) -> dict[str, Any]:
    logprobs = [None if np.isnan(value) else float(value) for value in row.logprobs]
    return {
        "token_ids": row.token_ids.tolist(),
        "loss_mask": row.loss_mask.tolist(),
        "logprobs": logprobs,
        "weight": row.weight,
        "prompt_length": row.prompt_length,
        "spans": [asdict(span) for span in row.spans],
        "versions": [list(known) for known in row.versions],
        "routes": None if row.routes is None else _routes_fields(row.routes),
    }


def _read_row(fields: dict[str, Any]) -> Row:
    return Row(
        token_ids=array(IDS, fields["token_ids"]),
        loss_mask=np.array(fields["loss_mask"], dtype=np.uint8),
        logprobs=np.array([np.nan if value is None else value for value in fields["logprobs"]], dtype=np.float32),
        weight=fields["weight"],
        prompt_length=fields["prompt_length"],
        spans=tuple(TurnSpan(**span) for span in fields["spans"]),
        versions=tuple((str(name), int(start), int(end)) for name, start, end in fields["versions"]),
        routes=_read_routes(fields["routes"]) if fields.get("routes") else None,
    )


def _routes_fields(routes: RouteTable) -> dict[str, Any]:
    """Numbers in base64, in as few bytes as hold the largest expert's."""
    kind = next(kind for kind in ("|u1", "<u2", "<i4") if routes.data.max(initial=0) <= np.iinfo(kind).max)
    return {
        "dtype": kind,
        "width": routes.data.shape[1],
        "data": base64.b64encode(routes.data.astype(kind).tobytes()).decode(),
        "known": base64.b64encode(routes.known.tobytes()).decode(),
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
        if self.path.suffix == ".jsonl":
            self._file = self.path.open("a", encoding="utf-8")
            _end_with_a_line(self.path)
        else:
            self._parquet, self._schema, self._table = _open_parquet(self.path)

    def write(self, rollout: Rollout) -> None:
        """Append a rollout; a line is flushed before this returns."""
        fields = rollout_fields(rollout)
        fields["payload"] = _writable(fields["payload"])
        with self._lock:
            if self._file is not None:
                self._file.write(json.dumps(fields, separators=(",", ":")) + "\n")
                self._file.flush()
                return
            self._lines.append(_flat(fields))
            if len(self._lines) >= _BATCH:
                self._flush()

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
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return  # cut off while it was written
            try:
                rollout = read_fields(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise ConfigError(f"{path}, line {number} is not a rollout: {error!r}") from None
            yield rollout


def _writable(payload: Any) -> Any:
    """The row, or a note that it can't be JSON and so was never sent."""
    try:
        json.dumps(payload)
    except Exception as error:
        return {"unsendable": f"{type(error).__name__}: {error}"}
    return payload


def _end_with_a_line(path: Path) -> None:
    """Remove a line that a kill cut off, so that the next one starts on its own."""
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


def _open_parquet(path: Path) -> tuple[Any, Any, Any]:
    """A file to write, its schema, and what makes tables."""
    pyarrow, parquet = _pyarrow()
    if path.exists():
        raise ConfigError(f"{path} exists, and a Parquet file can't be appended to", hint="choose another name")
    schema = _schema(pyarrow)
    return parquet.ParquetWriter(path, schema), schema, pyarrow.Table


def _read_parquet(path: Path) -> Iterator[Rollout]:
    pyarrow, parquet = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ConfigError(f"{path} is not a complete Parquet file: {error}") from None
    with file:
        for batch in file.iter_batches(_BATCH):
            for fields in batch.to_pylist():
                known = {name: json.loads(value) if name in _JSON else value for name, value in fields.items()}
                yield read_fields(known)


_JSON = ("rewards", "payload", "result", "rows", "fidelity", "seconds")


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields without a fixed shape become JSON columns; Parquet takes no half characters, so they are replaced."""
    flat = {name: json.dumps(value) if name in _JSON else value for name, value in fields.items()}
    for name in ("error", "input_id"):
        if fields[name] is not None:
            flat[name] = fields[name].encode(errors="replace").decode()
    return flat


def _schema(pyarrow: Any) -> Any:
    kinds = {"schema_version": pyarrow.int32(), "sample": pyarrow.int32()}
    names = ("schema_version", "input_id", "session_id", "sample", "status", "action", "why", "error", *_JSON)
    return pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in names])


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            "Parquet needs pyarrow", hint="pip install 'agentcore-rl-toolkit[cli]', or use .jsonl"
        ) from None
    return pyarrow, pyarrow.parquet
