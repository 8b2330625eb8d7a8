"""Turns on disk: one append-only file a session, so that a gateway killed at any moment goes on where it was.

A record is written before the reply it belongs to is sent: one `write` to the operating system, a few microseconds,
which outlives the process. A thread asks the disk to keep it, once a second, which outlives the machine. Reading stops
at the first record that is not whole.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import time
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError
from .engine.base import IDS, Routes
from .session import Session, SessionSettings
from .turn import LOGPROBS, Turn

logger = logging.getLogger(__name__)

SCHEMA = 1
_HEAD = struct.Struct("<II")
_SUFFIX = ".turns"
_OPEN_FILES = 256
_SYNC_SECONDS = 1.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Log:
    """A folder of sessions."""

    def __init__(self, folder: str | os.PathLike[str], *, max_bytes: int = 8 << 30) -> None:
        self._folder = Path(folder)
        self._max_bytes = max_bytes
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # session keys are in there
            known = sorted((path.stat().st_mtime, path.name, path) for path in self._folder.glob(f"*{_SUFFIX}"))
            self._sizes = {name: path.stat().st_size for _, name, path in known}  # the oldest first
        except OSError as error:
            raise ConfigError(f"the log folder {self._folder} can't be used: {error}") from error
        self._bytes = sum(self._sizes.values())
        self._files: OrderedDict[str, int] = OrderedDict()
        self._dirty: set[str] = set()
        self._late: dict[str, bytes] = {}
        """Records that a failing disk didn't take: they go first, since later ones build on them."""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.failures = 0
        self._syncer = threading.Thread(target=self._sync_forever, name="gateway-log", daemon=True)
        self._syncer.start()

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def full(self) -> bool:
        return self._bytes >= self._max_bytes

    @property
    def size(self) -> int:
        return self._bytes

    def write(self, session_id: str, kind: str, **fields: Any) -> None:
        """Append one record. A failing disk is reported and counted, and harms no request."""
        body = _encode({"kind": kind, "at": time.time(), **fields})
        self._append(session_id, _HEAD.pack(len(body), zlib.crc32(body)) + body)

    def _append(self, session_id: str, record: bytes) -> None:
        """Write a record, after those of the session that could not be written before."""
        name = session_id + _SUFFIX
        with self._lock:
            record = self._late.pop(session_id, b"") + record
            size = self._sizes.get(name, 0)
            if not record:  # deleted meanwhile
                return
            try:
                descriptor = self._file(session_id)
                if os.write(descriptor, record) != len(record):
                    os.ftruncate(descriptor, size)  # half a record would hide all that come after it
                    raise OSError("the disk took only half of it")
            except OSError as error:
                self._late[session_id] = record
                self.failures += 1
                logger.error("a record of session %s could not be logged: %s", session_id, error)
                return
            self._dirty.add(session_id)
            self._sizes[name] = size + len(record)
            self._bytes += len(record)

    def write_session(self, session: Session) -> None:
        settings = asdict(session.settings)
        self.write(session.id, "session", schema=SCHEMA, settings=settings, key=session.key, created=session.created)

    def write_turn(self, session: Session, turn: Turn, **known: Any) -> None:
        """Append a turn; `known` is what the turn itself doesn't hold: prints, messages, the reply."""
        routes = turn.routes
        self.write(
            session.id,
            "turn",
            index=turn.index,
            parent=turn.parent.index if turn.parent is not None else None,
            keep=turn.keep,
            delta=turn.delta.tobytes(),
            sampled=turn.sampled.tobytes(),
            logprobs=turn.logprobs.tobytes(),
            finish=turn.finish,
            versions=turn.versions,
            masked=turn.masked,
            origin=turn.origin,
            routes=(routes.start, routes.data, routes.width, routes.itemsize) if routes is not None else None,
            parse_failures=turn.parse_failures,
            started=turn.started,
            seconds=turn.seconds,
            uid=turn.uid,
            **known,
        )

    def sessions(self) -> list[str]:
        """Ids of all sessions there are records of, the oldest first."""
        return [name.removesuffix(_SUFFIX) for name in self._sizes]

    def taken(self, session_id: str) -> bool:
        """Whether a session's id is in use; one that was killed while it was opened is not."""
        self.load(session_id)
        return self.has(session_id)

    def has(self, session_id: str) -> bool:
        return session_id + _SUFFIX in self._sizes

    def load(self, session_id: str) -> Session | None:
        """A session as it was; what a kill cut off is cut off for good."""
        name = session_id + _SUFFIX
        if name not in self._sizes:
            return None
        session, end = read_session(self._folder / name)
        lost = self._sizes[name] - end
        if session is None:
            if end == 0:  # killed while it was opened: nobody has been told of it
                self.remove(session_id)
        elif lost > 0:
            logger.warning("the log of session %s ends in half a record; %d bytes were dropped", session_id, lost)
            with contextlib.suppress(OSError):
                os.truncate(self._folder / name, end)
                self._sizes[name] = end
                self._bytes -= lost
        return session

    def remove(self, session_id: str) -> None:
        """Forget a session for good."""
        with self._lock:
            descriptor = self._files.pop(session_id, None)
            self._dirty.discard(session_id)
            self._late.pop(session_id, None)
            if descriptor is not None:
                os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(self._folder / (session_id + _SUFFIX))
        self._bytes -= self._sizes.pop(session_id + _SUFFIX, 0)

    def make_room(self, disposable: Iterator[str]) -> None:
        """Remove sessions that are over until the log is within three quarters of its bound."""
        for session_id in disposable:
            self.remove(session_id)
            if self._bytes < self._max_bytes * 3 // 4:
                return

    def close(self) -> None:
        self._closed.set()
        self._syncer.join()
        with self._lock:
            while self._files:
                os.close(self._files.popitem()[1])

    def _file(self, session_id: str) -> int:
        descriptor = self._files.get(session_id)
        if descriptor is None:
            path = self._folder / (session_id + _SUFFIX)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._files[session_id] = descriptor
            if len(self._files) > _OPEN_FILES:
                os.close(self._files.popitem(last=False)[1])
        else:
            self._files.move_to_end(session_id)
        return descriptor

    def _sync_forever(self) -> None:
        while not self._closed.wait(_SYNC_SECONDS):
            self._sync()
        self._sync()

    def _catch_up(self) -> None:
        with self._lock:
            late = list(self._late)
        for session_id in late:
            self._append(session_id, b"")

    def _sync(self) -> None:
        self._catch_up()
        with self._lock:
            dirty, self._dirty = self._dirty, set()
        for session_id in dirty:
            try:
                descriptor = os.open(self._folder / (session_id + _SUFFIX), os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
            except FileNotFoundError:
                pass  # deleted meanwhile
            except OSError as error:
                self.failures += 1
                logger.error("the log of session %s could not be synced: %s", session_id, error)


def logged_sessions(folder: Path) -> list[str]:
    """Ids of all sessions logged in a folder."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))


def read_records(folder: Path, session_id: str) -> list[dict[str, Any]]:
    """What was logged of a session, in order, up to the first record that is not whole."""
    return [record for _, record in _read(folder / (session_id + _SUFFIX))]


def read_session(path: Path) -> tuple[Session | None, int]:
    """A logged session, and where its last whole record ends. Changes nothing."""
    session: Session | None = None
    end = 0
    for place, record in _read(path):
        kind = record["kind"]
        if kind == "session":
            if record["schema"] != SCHEMA:
                return None, place
            known = SessionSettings.__dataclass_fields__.keys()
            settings = {name: value for name, value in record["settings"].items() if name in known}
            session = Session(SessionSettings(**settings), record["key"], record["created"])
        if session is None:
            break
        end = place
        session.used = record["at"]
        if kind == "turn":
            _replay(session, record)
        elif kind == "masked":
            session.tree.turns[record["index"]].masked = record["reason"]
        elif kind == "result":
            session.result = record["result"]
        elif kind == "closed":
            session.closed = True
    return session, end


def _replay(session: Session, record: dict[str, Any]) -> None:
    turns = session.tree.turns
    routes = record["routes"]
    turn = Turn(
        index=record["index"],
        parent=turns[record["parent"]] if record["parent"] is not None else None,
        keep=record["keep"],
        delta=_array(IDS, record["delta"]),
        sampled=_array(IDS, record["sampled"]),
        logprobs=_array(LOGPROBS, record["logprobs"]),
        finish=record["finish"],
        versions=tuple((version, count) for version, count in record["versions"]),
        masked=record["masked"],
        origin=record["origin"],
        routes=Routes(*routes) if routes is not None else None,
        parse_failures=record["parse_failures"],
        started=record["started"],
        seconds=record["seconds"],
        uid=record["uid"],
    )
    session.tree.add(turn, record["end"], record["exact"])
    if record["text"] is not None:
        session.texts.append((*record["text"], turn))


def _read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records, each with where it ends."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    place = 0
    while place + _HEAD.size <= len(data):
        length, check = _HEAD.unpack_from(data, place)
        end = place + _HEAD.size + length
        body = data[place + _HEAD.size : end]
        if len(body) != length or zlib.crc32(body) != check:
            return
        yield end, _decode(body)
        place = end


def _array(code: str, data: bytes) -> Any:
    packed = array(code)
    packed.frombytes(data)
    return packed
