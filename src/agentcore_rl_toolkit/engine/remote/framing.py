"""Answers and their events out of bytes that were cut anywhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping

DONE = b"[DONE]"
"""The event after which a stream has no more."""
_EVENT_END = b"\n\n\r\n"
"""What ends an event, and the chunk that it came in."""


class Events:
    """Server-sent events out of bytes cut anywhere: each `data:` line is one event.

    Lines end at `\\n` and nowhere else, because a JSON string may hold U+2028, U+2029 or U+0085 as they are.

    >>> Events().feed(b': ping\\ndata: {"a":1}\\n\\ndata:[DONE]\\r\\n')
    [b'{"a":1}', b'[DONE]']
    """

    def __init__(self) -> None:
        self._start: list[bytes] = []  # of a line whose end has not arrived

    @property
    def between(self) -> bool:
        """Whether no line is begun."""
        return not any(self._start)

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
        self._events = Events()
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

    def take_events(self, buffer: bytearray) -> list[bytes]:
        """Instead of bytes, the events that are whole now."""
        if self.chunked and not self._left and not self._trailer and self._events.between:
            events = _whole_events(buffer)
            if events:
                return events
        data = self.take(buffer)
        return self._events.feed(data) if data else []

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


def _whole_events(buffer: bytearray) -> list[bytes]:
    """Take what has arrived, if it is whole chunks of one event each, as servers send them; else nothing.

    A stream has an event for each token: this is half of what reading one costs otherwise.
    """
    end = buffer.rfind(_EVENT_END) + len(_EVENT_END)
    if end < len(_EVENT_END):
        return []
    with memoryview(buffer) as view:
        data = bytes(view[:end])
    parts = data[: -len(_EVENT_END)].split(_EVENT_END)
    if data.count(b"\n") != 4 * len(parts):  # one in each of four places, and no other
        return []
    events = []
    for part in parts:
        size, found, event = part.partition(b"\r\ndata: ")
        if not found or not size.isalnum() or int(size, 16) != len(event) + 8:  # `data: ` and two line ends
            return []
        events.append(event.strip())
    del buffer[:end]
    return events


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
