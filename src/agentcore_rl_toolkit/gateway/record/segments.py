"""The segments of a log: the format of a record, and an index of where each session's records are.

A segment is a file of records, each with a checksum. A session's first record carries a mark: once it says that the
session was removed, none of the session's records count. Opening an index reads every segment once. Bytes that form
no whole record (damage, or a record cut short by a kill) are skipped and counted; reading continues at the next whole
record. A damaged session keeps the turns from before the damage.
"""

from __future__ import annotations

import logging
import mmap
import re
import struct
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

logger = logging.getLogger(__name__)

HEAD = struct.Struct("<IIHH")  # length of the body, checksum of all that follows it, length of the session id, mark
MARKS = ("", "deleted", "expired")
"""The marks of a first record: the session counts, or why it was removed."""
PLACE_BITS = 40
RESUMED = "resumed"
"""The kind of record that marks where a damaged session continues, and after how many turns."""

_SUFFIX = ".turns"
_REMOVED_REMEMBERED = 10_000
_ID = re.compile(rb"[A-Za-z0-9_~:@=-]*")
_LONGEST_ID = 128
_LIKE_A_HEAD = re.compile(rb"[\x01-\x80]\x00[\x00-\x02]\x00(?=[A-Za-z0-9_~:@=-])")  # from the length of the id on
_KIND = b"\xa4kind"  # the first field of any body …
_OPENS = b"\xa4kind\xa7session"  # … and of a session's first record
_START = 16  # bytes of a body that hold the first field

_decode = msgspec.msgpack.Decoder().decode
_Data = bytes | mmap.mmap


def pack_record(session_id: str, body: bytes, mark: int = 0) -> bytes:
    name = session_id.encode()
    return HEAD.pack(len(body), zlib.crc32(body, zlib.crc32(name, mark)), len(name), mark) + name + body


class SegmentIndex:
    """An index of each session's records, as numbers `segment << 40 | place`. It only reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sizes: dict[int, int] = {}
        """Bytes of each segment, without a record cut short at its end."""
        self.places: dict[str, array[int]] = {}
        self.removed: dict[str, str] = {}
        self.sessions_in: defaultdict[int, set[str]] = defaultdict(set)
        """Sessions that have records in each segment."""
        self.damaged_sessions: set[str] = set()
        """Sessions of which some records could not be read."""
        self.unreadable: set[int] = set()
        """Where damage begins."""
        self.last = 0
        """The highest number of a segment."""
        paths = [path for path in sorted(folder.glob(f"*{_SUFFIX}")) if path.stem.isdigit()]
        for path in paths:
            self.last = max(self.last, int(path.stem))
            if path.is_file():
                self._scan(int(path.stem), path, last=path is paths[-1])
            else:
                logger.warning("%s is not a file; the log ignores it", path)

    def path(self, segment: int) -> Path:
        return self.folder / f"{segment:08d}{_SUFFIX}"

    def locate(self, position: int) -> tuple[Path, int]:
        """The file that a position is in, and the place there."""
        return self.path(position >> PLACE_BITS), position & (1 << PLACE_BITS) - 1

    def add(self, session_id: str, segment: int, place: int, mark: int = 0, body: bytes = b"") -> None:
        """Enter a record. Records whose session was removed, or has no first record, don't count."""
        if mark:
            self.forget(session_id, MARKS[mark])
            return
        if _OPENS in body[:_START]:
            self._leave(session_id)
            self.removed.pop(session_id, None)
            self.places[session_id] = array("Q")
        if session_id in self.places:
            self.places[session_id].append(segment << PLACE_BITS | place)
            self.sessions_in[segment].add(session_id)

    def forget(self, session_id: str, reason: str) -> None:
        self._leave(session_id)
        self.removed.pop(session_id, None)
        self.removed[session_id] = reason
        if len(self.removed) > _REMOVED_REMEMBERED:
            del self.removed[next(iter(self.removed))]

    def forget_segment(self, segment: int) -> None:
        self.sizes.pop(segment, None)
        self.sessions_in.pop(segment, None)
        self.unreadable = {position for position in self.unreadable if position >> PLACE_BITS != segment}

    def records(self, session_id: str) -> Iterator[dict[str, Any]]:
        """A session's records in order. After damage, those count that follow a `resumed` record."""
        turns, skipping = 0, False
        with ExitStack() as files:
            opened: dict[Path, BinaryIO] = {}
            for position in self.places.get(session_id, ()):
                record = self._read(opened, files, position)
                kind, index = (record["kind"], record.get("index", 0)) if record is not None else ("", 0)
                if record is not None and kind == RESUMED:
                    skipping = skipping and record["turns"] != turns
                elif not skipping and record is not None and _in_order(kind, index, turns):
                    turns += kind == "turn"
                    yield record
                elif not skipping:
                    logger.warning("session %s is damaged after its first %d turns", session_id, turns)
                    self.damaged_sessions.add(session_id)
                    skipping = True

    def _leave(self, session_id: str) -> None:
        self.damaged_sessions.discard(session_id)
        for position in self.places.pop(session_id, ()):
            self.sessions_in[position >> PLACE_BITS].discard(session_id)

    def _read(self, opened: dict[Path, BinaryIO], files: ExitStack, position: int) -> dict[str, Any] | None:
        path, place = self.locate(position)
        try:
            if path not in opened:
                opened[path] = files.enter_context(open(path, "rb"))  # noqa: SIM115
            body = read_body(opened[path], place)
            record = _decode(body) if body is not None else None
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            record = None
        if isinstance(record, dict) and "kind" in record:
            return record
        self.unreadable.add(position)
        return None

    def _scan(self, segment: int, path: Path, *, last: bool) -> None:
        size = self.sizes[segment] = path.stat().st_size
        if size == 0:
            return
        with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            place = 0
            while place < size:
                end = _end(data, place)
                if end is not None and _is_whole(data, place, end):
                    name, mark, body = _parts(data, place, end)
                    self.add(name, segment, place, mark, body)
                    place = end
                    continue
                behind = _next_whole(data, place + 1)
                cut_short = end > size if end is not None else size - place < HEAD.size
                if last and cut_short and behind == size:
                    self.sizes[segment] = place
                    return
                self._skip_damage(data, segment, place, behind)
                place = behind

    def _skip_damage(self, data: _Data, segment: int, place: int, behind: int) -> None:
        logger.warning("%s can't be read from byte %d to %d", self.path(segment), place, behind)
        self.unreadable.add(segment << PLACE_BITS | place)
        while (end := _end(data, place)) is not None and end <= behind:
            name, _, _ = _parts(data, place, end)
            if name in self.places:  # this looks like its record: the session is read up to here
                self.unreadable.add(segment << PLACE_BITS | place)
                self.add(name, segment, place)
            place = end


def _in_order(kind: str, index: int, turns: int) -> bool:
    """Whether a record follows the session's first `turns` turns with none missing between."""
    return index == turns if kind == "turn" else kind != "masked" or index < turns


def mark_removed(path: Path, place: int, session_id: str, reason: str) -> None:
    """Mark a session's first record in place, which works on a full disk too."""
    with open(path, "r+b", buffering=0) as file:
        body = read_body(file, place)
        if body is not None:
            file.seek(place)
            file.write(pack_record(session_id, body, MARKS.index(reason))[: HEAD.size])


def read_body(file: BinaryIO, place: int) -> bytes | None:
    """The body of the record at a place; None if it is damaged."""
    file.seek(place)
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    length, _, name, _ = HEAD.unpack(head)
    data = head + file.read(name + length)
    return _parts(data, 0, len(data))[2] if _end(data, 0) == len(data) and _is_whole(data, 0, len(data)) else None


def _parts(data: _Data, place: int, end: int) -> tuple[str, int, bytes]:
    length, _, name, mark = HEAD.unpack_from(data, place)
    start = place + HEAD.size
    return data[start : start + name].decode("ascii", "replace"), mark, data[end - length : end]


def _end(data: _Data, place: int) -> int | None:
    """Where the record that begins here would end, maybe beyond the data; None if none can begin here."""
    if place + HEAD.size > len(data):
        return None
    length, _, name, mark = HEAD.unpack_from(data, place)
    if not 0 < name <= _LONGEST_ID or mark >= len(MARKS) or not length:
        return None
    start = place + HEAD.size
    return start + name + length if _ID.fullmatch(data, start, start + name) else None


def _is_whole(data: _Data, place: int, end: int) -> bool:
    if end > len(data):
        return False
    _, check, name, mark = HEAD.unpack_from(data, place)
    start = place + HEAD.size
    return bool(check == zlib.crc32(data[start + name : end], zlib.crc32(data[start : start + name], mark)))


def _next_whole(data: _Data, place: int) -> int:
    """Where the next whole record begins, or where the data ends."""
    for found in _LIKE_A_HEAD.finditer(data, place + 8):
        at = found.start() - 8
        end = _end(data, at)
        if end is None or end > len(data):
            continue
        start = end - HEAD.unpack_from(data, at)[0]
        if _KIND in data[start : min(end, start + _START)] and _is_whole(data, at, end):
            return at
    return len(data)
