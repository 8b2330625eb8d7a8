"""The segments of a log: how a record looks in them, and where each session's records are.

Reading only. A place where no whole record is, damage or half a record at the end, is passed over and counted: the
next record is looked for behind it, and what can be read of a session is all that was written before the damage.
"""

from __future__ import annotations

import logging
import mmap
import re
import struct
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

logger = logging.getLogger(__name__)

HEAD = struct.Struct("<IIHH")  # bytes of the body, a checksum of the rest, bytes of the session's id, the mark
REASONS = ("", "deleted", "expired")
"""What a record's mark says: nothing, or why the session and all its records up to here are gone; or this:"""
ANEW = 3
"""Of the session's records up to here, those count that are named here."""
COPY = 4
"""Counts once it is named."""
PLACE_BITS = 40
_SUFFIX = ".turns"
_REMOVED_REMEMBERED = 10_000
_ID = re.compile(rb"[A-Za-z0-9_~:@=-]*")
_LONGEST_ID = 128
_LIKE_A_HEAD = re.compile(rb"[\x01-\x80]\x00[\x00-\x04]\x00(?=[A-Za-z0-9_~:@=-])")  # from the length of the id on
_FIRST_FIELD = b"\xa4kind"  # of any body

_decode = msgspec.msgpack.Decoder().decode
_Data = bytes | mmap.mmap


class Anew(msgspec.Struct):
    """The body of a record that names the session's records."""

    kind: str
    places: bytes
    """Their positions, in order."""
    live: list[tuple[int, int]]
    """How many bytes of them are in which segment."""
    damaged: bool
    """There were others that could not be read."""


_decode_anew = msgspec.msgpack.Decoder(Anew).decode


def pack(session_id: str, body: bytes, mark: int = 0) -> bytes:
    """A record as it is written."""
    name = session_id.encode()
    return HEAD.pack(len(body), zlib.crc32(body, zlib.crc32(name, mark)), len(name), mark) + name + body


class Index:
    """Where the records of each session are: numbers of `segment << 40 | place`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sizes: dict[int, int] = {}
        """Bytes of each segment, up to half a record at its end."""
        self.places: dict[str, array[int]] = {}
        self.removed: dict[str, str] = {}
        """Sessions that are gone, and why."""
        self.live: defaultdict[int, dict[str, int]] = defaultdict(dict)
        """Sessions that need each segment, and how many bytes of it."""
        self.used: Counter[int] = Counter()
        """How many bytes of each segment are needed."""
        self.gone: defaultdict[int, set[str]] = defaultdict(set)
        """Sessions with records in each segment that don't count any more."""
        self.words: defaultdict[int, set[str]] = defaultdict(set)
        """Sessions of which a segment says that they are gone."""
        self.anew: dict[str, int] = {}
        """Where the records of a session were last named."""
        self.cut: set[str] = set()
        """Sessions of which some records could not be read."""
        self.unreadable: set[int] = set()
        """Where something is that can't be read."""
        self.last = 0
        """The highest number that a segment's name has."""
        paths = [path for path in sorted(folder.glob(f"*{_SUFFIX}")) if path.stem.isdigit()]
        for path in paths:
            self.last = max(self.last, int(path.stem))
            if path.is_file():
                self._scan(int(path.stem), path, last=path is paths[-1])
            else:
                logger.warning("%s is no file, and not read", path)

    def path(self, segment: int) -> Path:
        return self.folder / f"{segment:08d}{_SUFFIX}"

    def add(self, session_id: str, position: int, size: int, mark: int = 0, body: bytes = b"") -> None:
        """Learn of a record."""
        segment = position >> PLACE_BITS
        if mark == 0:
            self.removed.pop(session_id, None)
            live = self.live[segment]
            live[session_id] = live.get(session_id, 0) + size
            self.used[segment] += size
            self.places.setdefault(session_id, array("Q")).append(position)
        elif mark == ANEW:
            try:
                self._name(session_id, position, size, _decode_anew(body))
            except (msgspec.DecodeError, ValueError):
                self.unreadable.add(position)
        elif mark != COPY:
            self.forget(session_id, REASONS[mark])
            self.words[segment].add(session_id)

    def forget(self, session_id: str, reason: str) -> None:
        """Learn that a session is gone."""
        self.places.pop(session_id, None)
        self.anew.pop(session_id, None)
        self.cut.discard(session_id)
        self._leave(session_id)
        self.removed.pop(session_id, None)
        self.removed[session_id] = reason
        if len(self.removed) > _REMOVED_REMEMBERED:
            del self.removed[next(iter(self.removed))]

    def records(self, session_id: str) -> Iterator[dict[str, Any]]:
        """A session's records in order, up to the first that can't be read or that others are missing before."""
        files: dict[int, BinaryIO] = {}
        turns = 0
        try:
            for number, position in enumerate(self.places.get(session_id, ())):
                record = self._read(files, position)
                kind, index = (record["kind"], record.get("index", 0)) if record is not None else ("", 0)
                turns = 0 if kind == "session" else turns  # another of the same name was before it
                if record is None or (kind == "turn" and index != turns) or (kind == "masked" and index >= turns):
                    logger.warning("session %s is damaged; only its first %d turns are read", session_id, turns)
                    self.cut.add(session_id)
                    del self.places[session_id][number:]
                    return
                turns += kind == "turn"
                yield record
        finally:
            for file in files.values():
                file.close()

    def named(self, session_id: str, places: array[int], live: Mapping[int, int]) -> bytes:
        """What names a session's records; `live` are their bytes by segment."""
        sizes = [(segment, live[segment]) for segment in {position >> PLACE_BITS for position in places}]
        return msgspec.msgpack.encode(Anew("anew", places.tobytes(), sizes, session_id in self.cut))

    def drop(self, segment: int) -> None:
        """Learn that a segment is no more."""
        for known in (self.sizes, self.live, self.used, self.gone, self.words):
            known.pop(segment, None)
        self.unreadable = {position for position in self.unreadable if position >> PLACE_BITS != segment}

    def _name(self, session_id: str, position: int, size: int, said: Anew) -> None:
        self._leave(session_id)
        self.removed.pop(session_id, None)
        self.places[session_id] = array("Q", said.places)
        self.anew[session_id] = position
        if said.damaged:
            self.cut.add(session_id)
        bytes_of = Counter(dict(said.live)) + Counter({position >> PLACE_BITS: size})
        for segment, count in bytes_of.items():
            self.live[segment][session_id] = count
            self.used[segment] += count

    def _leave(self, session_id: str) -> None:
        for segment, live in self.live.items():
            if session_id in live:
                self.used[segment] -= live.pop(session_id)
                self.gone[segment].add(session_id)

    def _read(self, files: dict[int, BinaryIO], position: int) -> dict[str, Any] | None:
        segment, place = position >> PLACE_BITS, position & (1 << PLACE_BITS) - 1
        try:
            if segment not in files:
                files[segment] = open(self.path(segment), "rb")  # noqa: SIM115
            body = read_body(files[segment], place)
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
                if end is not None and _whole(data, place, end):
                    name, mark, body = _parts(data, place, end)
                    self.add(name, segment << PLACE_BITS | place, end - place, mark, body)
                    place = end
                    continue
                behind = _next_whole(data, place + 1)
                half = end > size if end is not None else size - place < HEAD.size
                if last and half and behind == size:
                    self.sizes[segment] = place
                    return
                self._pass_over(data, segment, place, behind)
                place = behind

    def _pass_over(self, data: _Data, segment: int, place: int, behind: int) -> None:
        logger.warning("%s can't be read from byte %d to %d", self.path(segment), place, behind)
        self.unreadable.add(segment << PLACE_BITS | place)
        while (end := _end(data, place)) is not None and end <= behind:
            name, mark, _ = _parts(data, place, end)
            if name in self.places and mark != COPY:  # whose record this seems to be: it is read up to here
                self.unreadable.add(segment << PLACE_BITS | place)
                self.add(name, segment << PLACE_BITS | place, end - place)
            place = end


def read_body(file: BinaryIO, place: int) -> bytes | None:
    """The body of the record at a place; None if it is damaged."""
    file.seek(place)
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    length, _, name, _ = HEAD.unpack(head)
    data = head + file.read(name + length)
    return _parts(data, 0, len(data))[2] if _end(data, 0) == len(data) and _whole(data, 0, len(data)) else None


def _parts(data: _Data, place: int, end: int) -> tuple[str, int, bytes]:
    length, _, name, mark = HEAD.unpack_from(data, place)
    start = place + HEAD.size
    return data[start : start + name].decode("ascii", "replace"), mark, data[end - length : end]


def _end(data: _Data, place: int) -> int | None:
    """Where the record would end that begins here, maybe beyond the data; None if none can begin here."""
    if place + HEAD.size > len(data):
        return None
    length, _, name, mark = HEAD.unpack_from(data, place)
    if not 0 < name <= _LONGEST_ID or mark > COPY or (not length and not 0 < mark < len(REASONS)):
        return None
    start = place + HEAD.size
    return start + name + length if _ID.fullmatch(data, start, start + name) else None


def _whole(data: _Data, place: int, end: int) -> bool:
    if end > len(data):
        return False
    length, check, name, mark = HEAD.unpack_from(data, place)
    start = place + HEAD.size
    body = data[start + name : end]
    if check == zlib.crc32(body, zlib.crc32(data[start : start + name], mark)):
        return True
    # Records had a checksum of the body alone once, and none with a mark had a body.
    return check == zlib.crc32(body) and (mark == 0 or (not length and mark < len(REASONS)))


def _next_whole(data: _Data, place: int) -> int:
    """Where the next whole record begins; the end of the data if there is none."""
    for found in _LIKE_A_HEAD.finditer(data, place + 8):
        at = found.start() - 8
        end = _end(data, at)
        if end is None or end > len(data):
            continue
        length = HEAD.unpack_from(data, at)[0]
        if length and _FIRST_FIELD not in data[end - length : min(end, end - length + 10)]:
            continue
        if _whole(data, at, end):
            return at
    return len(data)
