"""Answers and their events out of bytes that were cut anywhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping

DONE = b"[DONE]"
"""The event after which a stream has no more."""


class Events:
    """Server-sent events out of bytes cut anywhere: each `data:` line is one event.

    Lines end at `\\n` and nowhere else, because a JSON string may hold U+2028, U+2029 or U+0085 as they are.

    >>> Events().feed(b': ping\\ndata: {"a":1}\\n\\ndata:[DONE]\\r\\n')
    [b'{"a":1}', b'[DONE]']
    """

    def __init__(self) -> None:
        self._start: list[bytes] = []  # of a line whose end has not arrived

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are whole now."""
        *lines, rest = data.split(b"\n")
        if not lines:
            self._start.append(rest)
            return []
        lines[0] = b"".join((*self._start, lines[0]))
        self._start = [rest]
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class Body:
    """Takes the bytes of one answer off a buffer, however they were cut, and knows when it is `done`."""

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        length = headers.get(b"content-length")
        self.chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        self.sized = self.chunked or length is not None
        self.done = False
        self._left = 0 if self.chunked or length is None else int(length)
        self._trailer = False
        if self.sized and not self.chunked:
            self.done = self._left == 0

    def take(self, buffer: bytearray) -> bytes:
        if self.chunked:
            return self._take_chunks(buffer)
        with memoryview(buffer) as view:  # a slice of the buffer itself would be one more copy
            taken = bytes(view[: self._left] if self.sized else view)
        del buffer[: len(taken)]
        if self.sized:
            self._left -= len(taken)
            self.done = self._left == 0
        return taken

    def _take_chunks(self, buffer: bytearray) -> bytes:
        parts: list[bytearray] = []
        at, length = 0, len(buffer)
        if not self._left and not self._trailer:
            at = _whole_chunks(buffer, parts)
        while not self.done:
            if self._left:  # bytes of a chunk and the two that end it
                if at == length:
                    break
                parts.append(buffer[at : at + self._left - 2] if self._left > 2 else bytearray())
                at, self._left = min(at + self._left, length), max(0, at + self._left - length)
            end = buffer.find(b"\r\n", at) if not self._left else -1
            if end < 0:
                break
            line = buffer[at:end]
            at = end + 2
            if self._trailer:
                self.done = not line
            else:
                size = int(line.partition(b";")[0], 16)
                self._trailer = size == 0
                self._left = size + 2 if size else 0
        del buffer[:at]
        return b"".join(parts)


def _whole_chunks(buffer: bytearray, parts: list[bytearray]) -> int:
    """Take chunks that have arrived whole, up to the first that is the last or anything but plain; where that begins.

    A stream has a chunk for each token: this is most of what reading one costs.
    """
    at, length, find = 0, len(buffer), buffer.find
    while True:
        end = find(b"\r\n", at)
        line = buffer[at:end]
        if end < 0 or not line.isalnum():
            return at
        size = int(line, 16)
        stop = end + 2 + size
        if size == 0 or stop + 2 > length:
            return at
        parts.append(buffer[end + 2 : stop])
        at = stop + 2
