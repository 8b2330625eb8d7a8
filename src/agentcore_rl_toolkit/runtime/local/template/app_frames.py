"""How the runtime and a session's server talk over the session's socket: one request a connection, in frames.

    request   lengths of head and body, head {method, path, headers}, body
    answer    an empty frame, a frame with the head {status, headers}, frames of the body, an empty frame

A server sends the first frame as soon as it has a connection: from then on, only its app takes time.

Both ends are ours and on one machine, so nothing of HTTP is needed; a session has no HTTP parser to start. The agent's
code is in the process that answers, so the runtime checks every byte of an answer (`sessions/app_connection.py`).
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from ....errors import BrokenAnswer

_CHUNK = 1 << 16
_LARGEST_HEAD = 1 << 16

REQUEST = struct.Struct(">IQ")
"""The lengths at the beginning of a request."""
FRAME = struct.Struct(">I")
"""The length at the beginning of an answer's frame."""
END = FRAME.pack(0)


def request(method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    head = json.dumps({"method": method, "path": path, "headers": dict(headers)}).encode()
    return b"".join((REQUEST.pack(len(head), len(body)), head, body))


def frame(data: bytes) -> bytes:
    return FRAME.pack(len(data)) + data


def answer_head(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    """An answer's first frame, from the parts of ASGI's `http.response.start`."""
    pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    document: dict[str, Any] = {"status": status, "headers": pairs}
    return frame(json.dumps(document).encode())


def split(data: bytes) -> list[bytes]:
    """The frames of a whole answer, without the empty ones at its ends."""
    found, at = [], FRAME.size
    while at + FRAME.size <= len(data) and (length := FRAME.unpack_from(data, at)[0]):
        at += FRAME.size
        found.append(data[at : at + length])
        at += length
    return found


class AppAnswer:
    """The reader's side of an answer. Its bytes are untrusted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """Names in lower case."""
        self._reader, self._writer = reader, writer

    async def read_accepted(self) -> None:
        """Wait until the server has the connection."""
        if await self._next_length():
            raise BrokenAnswer("an answer before the connection was accepted")

    async def read_head(self) -> None:
        """Read and check the head's frame."""
        length = await self._next_length()
        if not 0 < length <= _LARGEST_HEAD:
            raise BrokenAnswer(f"an answer's head of {length} bytes")
        try:
            head = json.loads(await self._reader.readexactly(length))
            self.status = _checked_status(head["status"])
            self.headers = {_checked_text(name).lower(): _checked_text(value) for name, value in head["headers"]}
        except (asyncio.IncompleteReadError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BrokenAnswer(f"an answer's head: {error}") from None

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body, in pieces of at most 64 KiB."""
        while left := await self._next_length():
            while left:
                data = await self._read(min(left, _CHUNK))
                left -= len(data)
                yield data

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The body, in the pieces that a trusted process sent."""
        while length := await self._next_length():
            try:
                yield await self._reader.readexactly(length)
            except (asyncio.IncompleteReadError, OSError) as error:
                raise BrokenAnswer(str(error)) from None

    def close(self) -> None:
        """Break off, unless it has been read to its end."""
        self._writer.close()

    async def _next_length(self) -> int:
        try:
            length: int = FRAME.unpack(await self._reader.readexactly(FRAME.size))[0]
        except (asyncio.IncompleteReadError, OSError) as error:
            raise BrokenAnswer(str(error)) from None
        return length

    async def _read(self, most: int) -> bytes:
        try:
            data = await self._reader.read(most)
        except OSError as error:
            raise BrokenAnswer(str(error)) from None
        if not data:
            raise BrokenAnswer("the answer broke off")
        return data


def _checked_status(value: object) -> int:
    if type(value) is not int or not 200 <= value <= 599:
        raise ValueError(f"the status {str(value)[:40]}")
    return value


def _checked_text(value: object) -> str:
    """A header's name or value, which may be passed on to callers."""
    if not isinstance(value, str) or any(ord(character) < 32 and character != "\t" for character in value):
        raise ValueError("a header with control characters")
    return value
