"""Room in a log: segments that no session needs are removed, and what is needed of others is copied out of them first.

Whatever is on the disk at any moment reads as the same sessions: copies count once a record behind them names them, the
old ones go after that, and a session that is gone stays gone.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .segments import ANEW, COPY, HEAD, PLACE_BITS, REASONS, Index, pack, read_body

_PLACE = (1 << PLACE_BITS) - 1


class Room:
    """What can be removed from the segments of an index."""

    def __init__(self, index: Index, put: Callable[[str, bytes, int], int]) -> None:
        """`put` writes a record of a session, with a body and a mark, and says where it is."""
        self._index = index
        self._put = put
        self.doomed: list[Path] = []
        """Segments to remove once what was copied out of them is on the disk, the first first."""
        self.struck: set[int] = set()
        """Segments in which records were marked, to be synced."""

    def free_unneeded(self, current: int) -> None:
        """Remove the segments that no session needs, but for the one that is written to."""
        for segment in sorted(self._index.sizes):
            if segment != current and not self._index.live[segment]:
                self._free(segment)

    def clear(self, current: int, most: int) -> int:
        """Copy about `most` bytes out of the segment with the fewest to copy; how many were, 0 if it isn't worth it."""
        index = self._index
        worth = [s for s in index.sizes if s != current and index.used[s] * 2 <= index.sizes[s]]
        if most <= 0 or not worth:
            return 0
        segment = min(worth, key=lambda s: index.used[s])
        moved = 0
        while index.live[segment] and moved < most:
            moved += self._move(next(iter(index.live[segment])), segment, most - moved)
        if not index.live[segment]:
            self._free(segment, copied=True)
        return moved if segment in index.sizes else max(moved, 1)

    def strike(self, session_id: str, mark: int) -> None:
        """Mark a session as gone where its records are, which takes no room.

        The first record goes first: a session without it is none.
        """
        index = self._index
        named = index.anew.get(session_id, -1)
        positions = [named] if named >= 0 else []
        with contextlib.ExitStack() as files:
            opened: dict[int, BinaryIO] = {}
            for position in positions + [position for position in index.places[session_id] if position > named]:
                segment, place = position >> PLACE_BITS, position & _PLACE
                if segment not in opened:
                    opened[segment] = files.enter_context(open(index.path(segment), "r+b", buffering=0))
                body = read_body(opened[segment], place)
                if body is not None:
                    os.pwrite(opened[segment].fileno(), pack(session_id, body, mark)[: HEAD.size], place)
                self.struck.add(segment)

    def _move(self, session_id: str, segment: int, most: int) -> int:
        """Copy a session's records out of a segment, or the first of them."""
        index = self._index
        places = array("Q", index.places[session_id])
        live = Counter({other: held[session_id] for other, held in index.live.items() if session_id in held})
        moved = 0
        with open(index.path(segment), "rb") as file:
            for number, position in enumerate(places):
                if position >> PLACE_BITS != segment or moved >= most:
                    continue
                body = read_body(file, position & _PLACE)
                if body is None:
                    index.unreadable.add(position)
                    index.cut.add(session_id)
                    del places[number:]
                    break
                places[number] = copy = self._put(session_id, body, COPY)
                size = HEAD.size + len(session_id) + len(body)
                live[segment] -= size
                live[copy >> PLACE_BITS] += size
                moved += size
        body = index.named(session_id, places, live)
        self._put(session_id, body, ANEW)
        return moved + len(body)

    def _free(self, segment: int, *, copied: bool = False) -> None:
        """Remove a segment; but the word that a session is gone has to outlive the session's records."""
        index = self._index
        others = [index.gone[other] for other in index.sizes if other != segment]
        for session_id in list(index.words[segment]):
            if session_id not in index.places and any(session_id in gone for gone in others):
                try:
                    self._put(session_id, b"", REASONS.index(index.removed.get(session_id, "deleted")))
                except OSError:  # another time
                    return
        self.doomed.append(index.path(segment))
        index.drop(segment)
        if not copied and len(self.doomed) == 1:
            self.remove_doomed(1)

    def open_struck(self) -> list[int]:
        """Descriptors to sync the marks with, where their segments are still there."""
        struck, self.struck = self.struck & self._index.sizes.keys(), set()
        return [os.open(self._index.path(segment), os.O_RDONLY | os.O_CLOEXEC) for segment in struck]

    def remove_doomed(self, count: int) -> None:
        for path in self.doomed[:count]:
            with contextlib.suppress(OSError):
                path.unlink()
        del self.doomed[:count]
