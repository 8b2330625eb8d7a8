"""The runtime's connection to one session's app: requests over its socket, and answers of bounded size.

Answers are untrusted. Heads, errors and pings are read up to a few thousand bytes; answers to callers are streamed.
`template/app_frames.py` has the format.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path

from ....errors import BrokenAnswer, RuntimeFault
from ...base import one_piece
from ..template import app_frames as frames
from ..template.app_frames import AppAnswer

_CHUNK = 1 << 16
_LARGEST_CHECKED = 1 << 20
_LARGEST_PING = 1 << 16
_PING_SECONDS = 10.0


class AppConnection:
    """Sends requests, and knows how many are in flight, when the last one was, and whether the app has started."""

    def __init__(self, socket_path: Path, end_fault: Callable[[], Awaitable[RuntimeFault]]) -> None:
        """`end_fault` makes the fault for a request that breaks off."""
        self.in_flight = 0
        self.used_at = time.monotonic()
        self.has_started = False
        self.on_started: Callable[[], object] = lambda: None
        """Called once, when the app has taken its first request."""
        self._socket_path, self._end_fault = socket_path, end_fault
        self._open: set[AppAnswer] = set()

    def close(self) -> None:
        """Break off all requests."""
        for answer in self._open:
            answer.close()

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> AppAnswer:
        """Send a request, which `done` ends; raises a fault if the session ends meanwhile."""
        self.in_flight += 1
        self.used_at = time.monotonic()
        try:
            answer = await self._ask("POST", path, body, headers)
        except BaseException as error:
            self.in_flight -= 1
            if isinstance(error, BrokenAnswer):
                raise await self._end_fault() from error
            raise
        return answer

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> AppAnswer:
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket_path), limit=_CHUNK)
        except OSError as error:
            raise BrokenAnswer(str(error)) from None
        answer = AppAnswer(reader, writer)
        self._open.add(answer)
        try:
            writer.write(frames.request(method, path, headers, body))
            await answer.read_accepted()
            if not self.has_started:
                self.has_started = True
                self.on_started()
            await answer.read_head()
        except BaseException:
            self._release(answer)
            raise
        return answer

    def _release(self, answer: AppAnswer) -> None:
        self._open.discard(answer)
        answer.close()

    def done(self, answer: AppAnswer) -> None:
        """Release the connection of an answer, whether or not it was read to its end."""
        self._release(answer)
        self.in_flight -= 1
        self.used_at = time.monotonic()

    async def ping(self) -> str:
        """The status that the app reports; `Unhealthy` if it reports none."""
        try:
            return await asyncio.wait_for(self._ping(), _PING_SECONDS)
        except (BrokenAnswer, asyncio.TimeoutError, ValueError, KeyError, TypeError, RecursionError):
            return "Unhealthy"

    async def _ping(self) -> str:
        answer = await self._ask("GET", "/ping", b"", {})
        try:
            data = await _first(answer, _LARGEST_PING)
            return str(json.loads(data)["status"])[:40]
        finally:
            self._release(answer)

    async def body(self, answer: AppAnswer) -> AsyncIterator[bytes]:
        """The answer as a stream; a small JSON document is read and checked first."""
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        length = answer.headers.get("content-length", "")
        if is_json and length.isdecimal() and len(length) < 10 and int(length) < _LARGEST_CHECKED:
            return one_piece(await self._checked_json(answer))
        return self._stream(answer)

    async def read(self, answer: AppAnswer, most: int) -> bytes:
        """The answer, or its first `most` bytes."""
        try:
            return await _first(answer, most)
        except BrokenAnswer as error:
            raise await self._end_fault() from error
        finally:
            self.done(answer)

    async def _stream(self, answer: AppAnswer) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in answer.chunks():
                yield chunk
        except BrokenAnswer as error:
            raise await self._end_fault() from error
        finally:
            self.done(answer)

    async def _checked_json(self, answer: AppAnswer) -> bytes:
        body = await self.read(answer, _LARGEST_CHECKED)
        try:
            json.loads(body)
        except (ValueError, RecursionError) as error:
            shown = body[:200].decode(errors="replace")
            message = f"the app's answer has the type application/json, but is not JSON ({error}): {shown}"
            raise RuntimeFault(message, code="RuntimeClientError") from None
        return body


async def _first(answer: AppAnswer, most: int) -> bytes:
    data = b""
    async with contextlib.aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            data += chunk
            if len(data) >= most:
                break
    return data[:most]
