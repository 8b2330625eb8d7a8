"""The runtime's connection to one session's app: requests over its socket, and answers of bounded size.

Answers are untrusted. Errors and pings are read up to a few thousand bytes; answers to callers are streamed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp

from ....errors import RuntimeFault

_LARGEST_CHECKED = 1 << 20
_LARGEST_PING = 1 << 16
_PING_SECONDS = 10.0


class AppConnection:
    """Sends requests, and knows how many are in flight, when the last one was, and whether the app ever answered."""

    def __init__(self, socket_path: Path, end_fault: Callable[[], Awaitable[RuntimeFault]]) -> None:
        """`end_fault` makes the fault for a request that breaks off."""
        self.in_flight = 0
        self.used_at = time.monotonic()
        self.has_answered = False
        self._socket_path, self._end_fault = socket_path, end_fault
        self._http: aiohttp.ClientSession | None = None

    def open(self) -> None:
        self.used_at = time.monotonic()
        self._http = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._socket_path), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Break off all requests."""
        if self._http is not None:
            await self._http.close()

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Send a request, which `done` ends; raises a fault if the session ends meanwhile."""
        assert self._http is not None
        self.in_flight += 1
        self.used_at = time.monotonic()
        try:
            # Following a redirect would invoke the app again.
            url = f"http://session{path}"
            response = await self._http.post(url, data=body, headers=headers, allow_redirects=False)
        except BaseException as error:
            self.in_flight -= 1
            if isinstance(error, aiohttp.ClientError):
                raise await self._end_fault() from error
            raise
        self.has_answered = True
        return response

    def done(self, response: aiohttp.ClientResponse) -> None:
        """Release the connection of an answer, whether or not it was read to its end."""
        response.close() if not response.content.at_eof() else response.release()
        self.in_flight -= 1
        self.used_at = time.monotonic()

    async def ping(self) -> str:
        """The status that the app reports; `Unhealthy` if it reports none."""
        assert self._http is not None
        limit = aiohttp.ClientTimeout(total=_PING_SECONDS)
        try:
            async with self._http.get("http://session/ping", timeout=limit) as response:
                self.has_answered = True
                return str(json.loads(await response.content.read(_LARGEST_PING))["status"])[:40]
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError, TypeError, RecursionError):
            return "Unhealthy"

    async def body(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The answer as a stream; a small JSON document is read and checked first."""
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        if is_json and (response.content_length or _LARGEST_CHECKED) < _LARGEST_CHECKED:
            return _one(await self._checked_json(response))
        return self._stream(response)

    async def read(self, response: aiohttp.ClientResponse, most: int) -> bytes:
        """The answer, or its first `most` bytes."""
        data = b""
        async with contextlib.aclosing(self._stream(response)) as chunks:
            async for chunk in chunks:
                data += chunk
                if len(data) >= most:
                    break
        return data[:most]

    async def _stream(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except aiohttp.ClientError as error:
            raise await self._end_fault() from error
        finally:
            self.done(response)

    async def _checked_json(self, response: aiohttp.ClientResponse) -> bytes:
        body = await self.read(response, _LARGEST_CHECKED)
        try:
            json.loads(body)
        except (ValueError, RecursionError) as error:
            shown = body[:200].decode(errors="replace")
            message = f"the app's answer has the type application/json, but is not JSON ({error}): {shown}"
            raise RuntimeFault(message, code="RuntimeClientError") from None
        return body


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body
