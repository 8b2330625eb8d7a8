"""Turns on disk: a gateway that was killed at any moment continues where it was.

    <folder>/00000001.turns, 00000002.turns, …       records of all sessions, in the order they were written
    <folder>/weights.json                            which weights are sampled, and whether the gateway is paused

The gateway writes a record before it sends the reply: one `write` to the operating system, a few microseconds, which
survives the process. A thread syncs the segments to disk once a second, which survives the machine. Records that the
disk refuses wait in memory, in order, and are tried again; the gateway opens no session while any waits. A segment is
removed once no session has records in it. Segments are small, so that a session left open holds back little space.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ...errors import ConfigError, GatewayFault
from ..call.chat import Reply
from ..wire.json_body import to_encodable
from .replay import SCHEMA, build_session, stamp_clock
from .segments import RESUMED, SegmentIndex, mark_removed, pack_record
from .session import CallAnswer, Session
from .turn import Turn

logger = logging.getLogger(__name__)

_SEGMENT_BYTES = 8 << 20
_PENDING_BYTES = 64 << 20
_WEIGHTS = "weights.json"

_encode = msgspec.msgpack.Encoder().encode


class WeightState(msgspec.Struct):
    """Which weights the engine samples with, and whether sampling is paused."""

    version: str | None = None
    paused: bool = False


class Log:
    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_bytes: int = 8 << 30,
        sync_seconds: float = 1.0,
        lock_seconds: float = 0.0,
    ) -> None:
        """The log is synced to the disk every `sync_seconds`, which is how much a crash of the machine can lose.

        `lock_seconds` is how long to wait for another gateway that still writes to the folder.
        """
        self._max_bytes, self._sync_seconds = max_bytes, sync_seconds
        self._segment_bytes = min(_SEGMENT_BYTES, max(1, max_bytes // 8))
        try:
            Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)  # session keys are in there
            self._lock_file = _lock_folder(Path(folder), lock_seconds)
            self._index = SegmentIndex(Path(folder))
            self._segment = max(self._index.sizes, default=self._index.last + 1)
            self._file = self._open_segment(self._segment)
        except OSError as error:
            raise ConfigError(f"the log folder {folder} can't be used: {error}") from error
        self._pending: deque[tuple[str, bytes]] = deque()
        """Records that the disk refused. They are written first, because later ones build on them."""
        self._pending_bytes = 0
        self._pending_weights: WeightState | None = None
        self._error = ""
        """The last error of the disk; empty once a write succeeds."""
        self._torn = False
        """The segment ends in a part of a record."""
        self._dirty = False
        self._filled: list[int] = []
        """Descriptors of full segments, to be synced and closed."""
        self._crowded = False
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
        """How many places can't be read."""
        return len(self._index.unreadable)

    @property
    def full(self) -> bool:
        return self.size >= self._max_bytes

    @property
    def is_full(self) -> bool:
        """Full, with no session left that could be removed."""
        return self._crowded and self.full

    @property
    def removed(self) -> dict[str, str]:
        """Removed sessions with the reason, while their first record is still on disk."""
        return self._index.removed

    @property
    def error(self) -> str:
        """The current problem with the folder or its disk; empty without one."""
        return f"the log folder {self._index.folder} has vanished" if self._vanished else self._error

    @property
    def _vanished(self) -> bool:
        with self._lock, contextlib.suppress(OSError):
            at = self._index.path(self._segment)
            return self._file >= 0 and not os.path.samestat(os.stat(at), os.fstat(self._file))
        return True

    def check_session(self) -> None:
        """Refuse a session that a restart would not find."""
        self.check_call(0)
        if self._vanished:
            hint = "put it back, or restart the gateway"
            raise GatewayFault(self.error, status=503, code="log_failing", hint=hint, retry_after=5)

    def check_call(self, most: int = _PENDING_BYTES) -> None:
        """Refuse a call while more than `most` bytes wait for the disk."""
        if self._pending_bytes > most:
            raise GatewayFault(
                f"the log can't be written: {self._error}", status=503, code="log_failing", retry_after=5
            )

    # Writing

    def write(self, session_id: str, kind: str, **fields: Any) -> None:
        """Append one record. A failing disk is reported and counted, and fails no request."""
        record = {"kind": kind, "at": time.time(), "clock": stamp_clock(), **fields}
        try:
            body = _encode(record)
        except OverflowError:  # integers of more than 64 bits, in the tool arguments of a history
            body = _encode(to_encodable(record))
        with self._lock:
            self._write_pending()
            if self._pending or not self._try_put(session_id, body):
                self._pending.append((session_id, body))
                self._pending_bytes += len(body)

    def write_session(self, session: Session) -> None:
        self.write(
            session.id,
            "session",
            schema=SCHEMA,
            settings=msgspec.structs.asdict(session.settings),
            key=session.key,
            created=session.created,
        )

    def write_images(self, session: Session, turn: Turn) -> None:
        """Append the files of a turn's new images, each once per session."""
        for image in turn.images:
            if image.sha256 not in session.images.logged:
                session.images.logged.add(image.sha256)
                self.write(session.id, "image", sha256=image.sha256, data=session.images[image.sha256].data)

    def write_turn(self, session: Session, turn: Turn, reply: Reply, answer: CallAnswer, **known: Any) -> None:
        """Append a turn, its reply, and the answer it is part of; `known` has its fingerprints and new messages."""
        routes = turn.routes
        self.write_images(session, turn)
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
            images=turn.images,
            started=turn.started,
            seconds=turn.seconds,
            waited=turn.waited,
            uid=turn.uid,
            asked_model=turn.asked_model,
            reply=reply,
            answer=(answer.request, answer.uid, answer.created, answer.model, answer.choices),
            **known,
        )

    def write_weights(self, version: str | None, *, paused: bool) -> None:
        with self._lock:
            self._pending_weights = WeightState(version, paused)
            self._write_pending_weights()

    def read_weights(self) -> WeightState:
        try:
            return msgspec.json.decode((self._index.folder / _WEIGHTS).read_bytes(), type=WeightState)
        except FileNotFoundError:
            return WeightState()
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("the log doesn't say which weights were sampled: %s", error)
            return WeightState()

    # Sessions

    def sessions(self) -> list[str]:
        """Ids of all sessions in the log, the oldest first."""
        return list(self._index.places)

    def has(self, session_id: str) -> bool:
        return session_id in self._index.places

    def load(self, session_id: str) -> Session | None:
        """A session as it was recorded, or the turns from before damage, from which it continues."""
        session = build_session(self._index.records(session_id))
        if session is not None and session_id in self._index.damaged_sessions:
            session.damaged = True
            self.write(session_id, RESUMED, turns=len(session.tree.turns))
        return session

    def remove(self, session_id: str, reason: str = "deleted") -> None:
        """Forget a session, and remove the segments that no session needs any more."""
        with self._lock:
            self._pending = deque(waiting for waiting in self._pending if waiting[0] != session_id)
            self._pending_bytes = sum(len(body) for _, body in self._pending)
            if not self.has(session_id):
                return
            path, place = self._index.locate(self._index.places[session_id][0])
            try:
                mark_removed(path, place, session_id, reason)
            except OSError as error:
                logger.error("session %s was removed but comes back after a restart: %s", session_id, error)
            self._index.forget(session_id, reason)
            self._free_segments()
            self._write_pending()

    def make_room(self, disposable: Iterable[str]) -> None:
        """Remove `disposable` sessions until the log is within three quarters of its bound."""
        for session_id in disposable:
            self.remove(session_id, "expired")
            if self.size < self._max_bytes * 3 // 4:
                break
        self._crowded = self.full

    def close(self) -> None:
        self._closed.set()
        self._syncer.join()
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                os.close(self._lock_file)
                self._file = -1

    # Segments

    def _free_segments(self) -> None:
        index = self._index
        for segment in [segment for segment in index.sizes if not index.sessions_in[segment]]:
            with contextlib.suppress(OSError):
                if segment != self._segment:
                    index.path(segment).unlink(missing_ok=True)
                    index.forget_segment(segment)
                elif self._error or self.full:
                    self._truncate(0)
                    index.forget_segment(segment)
                    index.sizes[segment] = 0

    def _write_pending(self) -> None:
        while self._pending and self._try_put(*self._pending[0]):
            self._pending_bytes -= len(self._pending.popleft()[1])

    def _write_pending_weights(self) -> None:
        if self._pending_weights is None:
            return
        path = self._index.folder / _WEIGHTS
        try:
            path.with_suffix(".new").write_bytes(msgspec.json.encode(self._pending_weights))
            path.with_suffix(".new").replace(path)
            self._pending_weights = None
        except OSError as error:
            self._report("the weight state could not be logged", error)

    def _try_put(self, session_id: str, body: bytes) -> bool:
        try:
            self._put(session_id, body)
        except OSError as error:
            self._report(f"a record of session {session_id} could not be logged", error)
            return False
        return True

    def _put(self, session_id: str, body: bytes) -> None:
        record = pack_record(session_id, body)
        place = self._index.sizes[self._segment]
        if self._torn:
            self._truncate(place)
        if place and place + len(record) > self._segment_bytes:
            self._next_segment()
            place = 0
        written = os.write(self._file, record)
        if written != len(record):
            self._torn = True
            with contextlib.suppress(OSError):
                self._truncate(place)
            raise OSError(f"the disk took {written} of {len(record)} bytes")
        self._dirty = True
        self._index.sizes[self._segment] = place + len(record)
        self._index.add(session_id, self._segment, place, body=body)

    def _truncate(self, size: int) -> None:
        os.ftruncate(self._file, size)
        self._torn = False

    def _open_segment(self, segment: int) -> int:
        """A segment to append to, without the part of a last record that a kill has left."""
        whole = self._index.sizes.setdefault(segment, 0)
        self._index.last = max(self._index.last, segment)
        descriptor = os.open(self._index.path(segment), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(descriptor).st_size
        if size > whole:
            logger.warning("the log ends in a part of a record: %d bytes were dropped", size - whole)
            os.ftruncate(descriptor, whole)
        return descriptor

    def _next_segment(self) -> None:
        number = self._index.last + 1
        descriptor = self._open_segment(number)
        self._filled.append(self._file)
        self._segment, self._file = number, descriptor

    # Syncing

    def _sync_forever(self) -> None:
        while True:
            closing = self._closed.wait(self._sync_seconds)
            try:
                self._sync()
            except Exception as error:  # try again: a log that is never synced loses more than this did
                self._report("the log could not be synced", error)
            if closing:
                return

    def _sync(self) -> None:
        failures = self.failures
        with self._lock:
            self._write_pending()
            self._write_pending_weights()
            descriptors = [os.dup(self._file)] if self._dirty else []
            descriptors += self._filled
            self._filled, self._dirty = [], False
        try:
            for descriptor in descriptors:
                os.fdatasync(descriptor)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if failures == self.failures:
            self._error = ""

    def _report(self, what: str, error: Exception) -> None:
        self.failures += 1
        self._error = str(error) or type(error).__name__
        logger.error("%s: %s", what, error, exc_info=not isinstance(error, OSError))


def _lock_folder(folder: Path, seconds: float) -> int:
    """Take the folder for this gateway: two that append to one segment would lose each other's turns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    end, told = time.monotonic() + seconds, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError as error:
            if time.monotonic() >= end:
                os.close(descriptor)
                raise OSError("another gateway writes to it") from error
        if not told:
            logger.warning("waiting for another gateway that writes to %s", folder)
            told = True
        time.sleep(0.1)
