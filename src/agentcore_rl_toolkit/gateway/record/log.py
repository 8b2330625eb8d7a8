"""Turns on disk, appended to segments, so that a gateway killed at any moment goes on where it was.

    <folder>/00000001.turns, 00000002.turns, …       records of all sessions, in the order they were written
    <folder>/weights.json                            which weights are sampled, and whether they are being changed

A record is written before the reply it belongs to is sent: one `write` to the operating system, a few microseconds,
which outlives the process. A thread asks the disk to keep it, once a second, which outlives the machine. Where each
session's records are is known from reading the segments once, when the log is opened. A segment is removed when all
sessions with records in it are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from ...errors import ConfigError, GatewayFault
from ..call.chat import Reply
from ..wire.json_body import mended
from .clock import moment
from .compaction import Room
from .log_folder import Weights, claim, is_at, read_weights, write_weights
from .replay import SCHEMA, build_session
from .segments import ANEW, HEAD, PLACE_BITS, REASONS, Index, pack
from .session import Answer, Session
from .turn import Turn

logger = logging.getLogger(__name__)

_SEGMENT_BYTES = 64 << 20
_SYNC_SECONDS = 1.0
_LATE_BYTES = 64 << 20
_MOVED_AT_ONCE = 4 << 20

_encode = msgspec.msgpack.Encoder().encode


class Log:
    """A folder of segments, open for writing by one gateway."""

    def __init__(self, folder: str | os.PathLike[str], *, max_bytes: int = 8 << 30) -> None:
        self._max_bytes = max_bytes
        self._segment_bytes = min(_SEGMENT_BYTES, max(1, max_bytes // 8))
        try:
            Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)  # session keys are in there
            self._claim = claim(Path(folder))
            self._index = Index(Path(folder))
            self._segment = max(self._index.sizes, default=self._index.last + 1)
            self._file = self._open(self._segment)
        except OSError as error:
            raise ConfigError(f"the log folder {folder} can't be used: {error}") from error
        self._late: deque[tuple[str, bytes, int]] = deque()
        """Records that a failing disk didn't take: they go first, since later ones build on them."""
        self._late_bytes = 0
        self._weights: Weights | None = None
        """Which weights are sampled, where a failing disk didn't take it."""
        self._error = ""
        """What the disk said, until it is well again."""
        self._failed_now = False
        """It has failed since the last sync began."""
        self._vanished = False
        self._half = False
        """The segment ends in half a record."""
        self._dirty = False
        self._filled: list[int] = []
        """Descriptors of segments that are full, to be synced and closed."""
        self._room = Room(self._index, self._put)
        self._crowded = False
        """The last time, no room could be made."""
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self.failures = 0
        self._syncer = threading.Thread(target=self._sync_forever, name="gateway-log", daemon=True)
        self._syncer.start()

    @property
    def size(self) -> int:
        return sum(self._index.sizes.values())

    @property
    def damaged(self) -> int:
        """In how many places something is that can't be read."""
        return len(self._index.unreadable)

    @property
    def full(self) -> bool:
        return self.size >= self._max_bytes

    @property
    def crowded(self) -> bool:
        """Full, and there is nothing that could go."""
        return self._crowded and self.full

    @property
    def removed(self) -> dict[str, str]:
        """Sessions that there were, and why there are no more, as far as segments with a word of them are left."""
        return self._index.removed

    @property
    def error(self) -> str:
        """What is wrong with the folder or its disk now; nothing once it is well again."""
        return f"the log folder {self._index.folder} has vanished" if self._vanished else self._error

    def check_folder(self) -> None:
        """Refuse a session that no restart would find: a folder that was removed takes writes all the same."""
        self._look()
        if self._vanished:
            hint = "put it back, or start the gateway again"
            raise GatewayFault(self.error, status=503, code="log_failing", hint=hint, retry_after=5)

    def _look(self) -> None:
        with self._lock:
            there = self._file < 0 or is_at(self._index.path(self._segment), self._file)
            if not there and not self._vanished:
                self.failures += 1
                logger.error("the log folder %s has vanished: turns are kept in memory only", self._index.folder)
            self._vanished = not there

    def _failed(self, what: str, error: OSError) -> None:
        self.failures += 1
        self._error, self._failed_now = str(error), True
        logger.error("%s: %s", what, error)

    def check(self, most: int = _LATE_BYTES) -> None:
        """Refuse what will have to be recorded, while more bytes than these wait for the disk."""
        if self._late_bytes > most:
            raise GatewayFault(
                f"the log can't be written: {self._error}", status=503, code="log_failing", retry_after=5
            )

    def write(self, session_id: str, kind: str, **fields: Any) -> None:
        """Append one record. A failing disk is reported and counted, and harms no request."""
        record = {"kind": kind, "at": time.time(), "clock": moment(), **fields}
        try:
            body = _encode(record)
        except OverflowError:  # integers of more than 64 bits, in the tool arguments of a history
            body = _encode(mended(record))
        self._append(session_id, body)

    def write_session(self, session: Session) -> None:
        settings = asdict(session.settings)
        self.write(session.id, "session", schema=SCHEMA, settings=settings, key=session.key, created=session.created)

    def write_turn(self, session: Session, turn: Turn, reply: Reply, answer: Answer, **known: Any) -> None:
        """Append a turn, its reply, and what it answered; `known` has its prints and the new messages."""
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
            unbridged=turn.unbridged,
            routes=(routes.start, routes.data, routes.width, routes.itemsize) if routes is not None else None,
            parse_failures=turn.parse_failures,
            tool_calls=turn.tool_calls,
            omitted=turn.omitted,
            started=turn.started,
            seconds=turn.seconds,
            uid=turn.uid,
            reply=reply,
            answer=(answer.request, answer.uid, answer.created, answer.model, answer.choices),
            **known,
        )

    def write_weights(self, version: str | None, *, paused: bool) -> None:
        """Put down which weights are sampled, in place of what was there."""
        with self._lock:
            self._weights = Weights(version, paused)
            self._write_weights()

    def _write_weights(self) -> None:
        """Put down what could not be put down before."""
        if self._weights is not None:
            try:
                write_weights(self._index.folder, self._weights)
                self._weights = None
            except OSError as error:
                self._failed("which weights are sampled could not be logged", error)

    def read_weights(self) -> Weights:
        """What was put down last."""
        return read_weights(self._index.folder)

    def sessions(self) -> list[str]:
        """Ids of all sessions there are records of, the oldest first."""
        return list(self._index.places)

    def has(self, session_id: str) -> bool:
        return session_id in self._index.places

    def load(self, session_id: str) -> Session | None:
        """A session as it was, or what can be read of it; only that counts from then on."""
        index = self._index
        written = len(index.places.get(session_id, ()))
        session = build_session(index.records(session_id))
        if len(index.places.get(session_id, ())) < written:
            places = index.places[session_id]
            live = {segment: held[session_id] for segment, held in index.live.items() if session_id in held}
            self._append(session_id, index.named(session_id, places, live), ANEW)
        if session is not None:
            session.damaged = session_id in index.cut
        return session

    def remove(self, session_id: str, reason: str = "deleted") -> None:
        """Forget a session for good; segments go when no session needs them."""
        with self._lock:
            self._late = deque(late for late in self._late if late[0] != session_id)
            self._late_bytes = sum(len(body) + HEAD.size for _, body, _ in self._late)
            if not self.has(session_id):
                return
            mark = REASONS.index(reason)
            self._append(session_id, b"", mark)
            if self._late:
                self._remove_in_place(session_id, mark)
                self._index.forget(session_id, reason)
                self._leave_unneeded()
            self._room.free_unneeded(self._segment)
            self._write_late()

    def _remove_in_place(self, session_id: str, mark: int) -> None:
        """The disk has no room for the word that a session is gone."""
        try:
            self._room.strike(session_id, mark)
        except OSError as error:
            logger.error("session %s is gone, but comes back if the gateway is killed now: %s", session_id, error)
            return
        self._late.pop()
        self._late_bytes -= HEAD.size

    def _leave_unneeded(self) -> None:
        """Go on in another segment, if no session needs this one: so it can be removed."""
        if self._index.sizes[self._segment] and not self._index.live[self._segment]:
            with contextlib.suppress(OSError):
                self._next_segment()

    def make_room(self, disposable: Iterator[str]) -> bool:
        """Get the log within three quarters of its bound: copy what is needed out of segments with little of it, and
        remove sessions that are over. Whether asking again would copy more."""
        left, enough = _MOVED_AT_ONCE, self._max_bytes * 3 // 4
        gone: Iterator[str | None] = chain([None], disposable)
        while self.size >= enough and (session_id := next(gone, "")) != "":
            if session_id is not None:
                self.remove(session_id, "expired")
            while self.size >= enough and (moved := self._clear(left)):
                left -= moved
        self._crowded = self.full
        return left <= 0

    def _clear(self, most: int) -> int:
        with self._lock:
            if self._late:
                return 0
            try:
                return self._room.clear(self._segment, most)
            except OSError as error:
                self._failed("no room could be made in the log", error)
                return 0

    def close(self) -> None:
        """Write what is left to write, and end."""
        self._closed.set()
        self._syncer.join()
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                os.close(self._claim)
                self._file = -1

    def _append(self, session_id: str, body: bytes, mark: int = 0) -> None:
        """Write a record, after those that could not be written before."""
        with self._lock:
            if self._late:
                self._write_late()
            if not self._late and self._try_put(session_id, body, mark):
                return
            self._late.append((session_id, body, mark))
            self._late_bytes += len(body) + HEAD.size

    def _write_late(self) -> None:
        while self._late and self._try_put(*self._late[0]):
            self._late_bytes -= len(self._late.popleft()[1]) + HEAD.size

    def _try_put(self, session_id: str, body: bytes, mark: int) -> bool:
        try:
            self._put(session_id, body, mark)
        except OSError as error:
            self._failed(f"a record of session {session_id} could not be logged", error)
            return False
        return True

    def _put(self, session_id: str, body: bytes, mark: int) -> int:
        """Write a record now; where it is."""
        record = pack(session_id, body, mark)
        place = self._index.sizes[self._segment]
        if self._half:
            self._take_back(place)
        if place and place + len(record) > self._segment_bytes:
            self._next_segment()
            place = 0
        written = os.write(self._file, record)
        if written != len(record):
            self._put_rest(place, record[written:])
        self._dirty = True
        self._index.sizes[self._segment] = place + len(record)
        position = self._segment << PLACE_BITS | place
        self._index.add(session_id, position, len(record), mark, body)
        return position

    def _put_rest(self, place: int, rest: bytes) -> None:
        """The other half of a record, or the disk's reason why not; then the first half goes too."""
        self._half = True
        try:
            if os.write(self._file, rest) != len(rest):
                raise OSError("the disk took only a part of it")
        except OSError:
            with contextlib.suppress(OSError):
                self._take_back(place)
            raise
        self._half = False

    def _take_back(self, place: int) -> None:
        os.ftruncate(self._file, place)
        self._half = False

    def _open(self, segment: int) -> int:
        """A segment to append to, without what a kill has left of a last record."""
        whole = self._index.sizes.setdefault(segment, 0)
        self._index.last = max(self._index.last, segment)
        descriptor = os.open(self._index.path(segment), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(descriptor).st_size
        if size > whole:
            logger.warning("the log ends in half a record; %d bytes were dropped", size - whole)
            os.ftruncate(descriptor, whole)
        return descriptor

    def _next_segment(self) -> None:
        number = self._index.last + 1
        descriptor = self._open(number)
        self._filled.append(self._file)
        self._segment = number
        self._file = descriptor

    def _sync_forever(self) -> None:
        while not self._closed.wait(_SYNC_SECONDS):
            self._sync_anyhow()
        self._sync_anyhow()
        if self._late:  # there is room once full segments are closed
            self._sync_anyhow()

    def _sync_anyhow(self) -> None:
        try:
            self._sync()
        except Exception:  # a defect of ours; better a gap than a log that is never synced again
            self.failures += 1
            logger.exception("the log could not be synced; it is tried again")

    def _sync(self) -> None:
        self._look()
        try:
            with self._lock:
                self._failed_now = False
                self._write_late()
                self._write_weights()
                descriptors = [os.dup(self._file)] if self._dirty else []
                descriptors += self._filled + self._room.open_struck()
                self._filled, self._dirty = [], False
                doomed = len(self._room.doomed)
        except OSError as error:  # no descriptor is to be had: another time
            self._failed("the log could not be synced", error)
            return
        for descriptor in descriptors:
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                doomed = 0
                self._failed("the log could not be synced", error)
            finally:
                os.close(descriptor)
        with self._lock:
            self._room.remove_doomed(doomed)
            if not self._failed_now and not self._late:
                self._error = ""
