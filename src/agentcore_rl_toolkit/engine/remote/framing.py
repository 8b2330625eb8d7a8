"""Response bodies and server-sent events out of bytes that were cut anywhere. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

DONE = b"[DONE]"
"""The event that ends a stream."""
_EVENT_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})\r\ndata: (\{.*\})\n\n\r\n")


class EventParser:
    """Server-sent events out of bytes cut anywhere: each `data:` line is one event.

    Lines end at `\\n` and nowhere else, because a JSON string may hold U+2028, U+2029 or U+0085 as they are.

    >>> EventParser().feed(b': ping\\ndata: {"a":1}\\n\\ndata:[DONE]\\r\\n')
    [b'{"a":1}', b'[DONE]']
    """

    def __init__(self) -> None:
        self._start: list[bytes] = []  # of a line whose end has not arrived

    @property
    def in_line(self) -> bool:
        """Whether the end of a line has not arrived."""
        return any(self._start)

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete now."""
        *lines, rest = data.split(b"\n")
        if not lines:
            self._start.append(rest)
            return []
        lines[0] = b"".join((*self._start, lines[0]))
        self._start = [rest]
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class ResponseBody:
    """Takes the bytes of one response off a buffer, however they were cut, and knows when it is `done`."""

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        length = headers.get(b"content-length")
        self.chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        self.sized = self.chunked or length is not None
        self._left = 0 if self.chunked or length is None else int(length)
        self.done = self.sized and not self.chunked and self._left == 0
        self._in_trailer = False
        self._events = EventParser()

    def take_bytes(self, buffer: bytearray) -> bytes:
        if self.chunked:
            return self._take_chunks(buffer)
        with memoryview(buffer) as view:  # a slice of the buffer would be one more copy
            taken = bytes(view[: self._left] if self.sized else view)
        del buffer[: len(taken)]
        if self.sized:
            self._left -= len(taken)
            self.done = self._left == 0
        return taken

    def take_events(self, buffer: bytearray) -> list[bytes]:
        """Instead of bytes, the events that are complete now."""
        if self.chunked and not self._left and not self._in_trailer and not self._events.in_line:
            events = take_event_chunks(buffer)
            if events:
                return events
        data = self.take_bytes(buffer)
        return self._events.feed(data) if data else []

    def _take_chunks(self, buffer: bytearray) -> bytes:
        parts: list[bytearray] = []
        at, length = 0, len(buffer)
        while not self.done:
            if self._left:  # the rest of a chunk and the two bytes that end it
                if at == length:
                    break
                parts.append(buffer[at : at + self._left - 2] if self._left > 2 else bytearray())
                at, self._left = min(at + self._left, length), max(0, at + self._left - length)
            end = buffer.find(b"\r\n", at) if not self._left else -1
            if end < 0:
                break
            line = buffer[at:end]
            at = end + 2
            if self._in_trailer:
                self.done = not line
            else:
                size = int(line.partition(b";")[0], 16)
                self._in_trailer = size == 0
                self._left = size + 2 if size else 0
        del buffer[:at]
        return b"".join(parts)


def take_event_chunks(buffer: bytearray) -> list[bytes]:
    """Take the events off a buffer that begins with chunks of one event each, as servers send them; else none.

    It reads the same as the general way, in 0.4 instead of 1.0 us an event: a stream has one for each token.

    >>> take_event_chunks(bytearray(b'f\\r\\ndata: {"a":1}\\n\\n\\r\\n'))
    [b'{"a":1}']
    """
    found = _EVENT_CHUNK.findall(buffer)
    length = sum(len(size) + len(event) + 12 for size, event in found)
    whole = length == buffer.rfind(b"}\n\n\r\n") + 5 and all(int(size, 16) == len(event) + 8 for size, event in found)
    if not found or not whole:
        return []
    del buffer[:length]
    return [event for _, event in found]
