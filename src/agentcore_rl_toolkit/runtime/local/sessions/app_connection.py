"""The runtime's connection to one session's app: requests over its socket, and answers of bounded size.

What a session answers is untrusted. Errors and pings are read up to a few thousand bytes, whatever they say; answers to
callers are passed on as they come.
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
    """How many requests are under way, when the last one was, and whether the app has ever answered."""

    def __init__(self, socket_path: Path, why_it_ended: Callable[[], Awaitable[RuntimeFault]]) -> None:
        """`why_it_ended` says what became of the app when a request breaks off."""
        self.in_flight = 0
        self.used_at = time.monotonic()
        self.heard = False
        self._socket_path, self._why_it_ended = socket_path, why_it_ended
        self._http: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Get ready to send requests."""
        self.used_at = time.monotonic()
        self._http = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._socket_path), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Break off what is under way."""
        if self._http is not None:
            await self._http.close()

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Send a request; `done` ends it. A fault if the session ends meanwhile."""
        assert self._http is not None
        self.in_flight += 1
        self.used_at = time.monotonic()
        try:
            # A redirect is the app's answer; following it would invoke it again.
            url = f"http://session{path}"
            response = await self._http.post(url, data=body, headers=headers, allow_redirects=False)
        except BaseException as error:
            self.in_flight -= 1
            if isinstance(error, aiohttp.ClientError):
                raise await self._why_it_ended() from error
            raise
        self.heard = True
        return response

    def done(self, response: aiohttp.ClientResponse) -> None:
        """Nothing more of the answer is needed."""
        response.close() if not response.content.at_eof() else response.release()
        self.in_flight -= 1
        self.used_at = time.monotonic()

    async def ping(self) -> str:
        """What the app says of itself, `Unhealthy` if it doesn't."""
        assert self._http is not None
        limit = aiohttp.ClientTimeout(total=_PING_SECONDS)
        try:
            async with self._http.get("http://session/ping", timeout=limit) as response:
                self.heard = True
                said = await response.content.read(_LARGEST_PING)
                return str(json.loads(said)["status"])[:40]
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError, TypeError, RecursionError):
            return "Unhealthy"

    async def body(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The answer as it comes; all of it, checked, if it is a small JSON document."""
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        if is_json and (response.content_length or _LARGEST_CHECKED) < _LARGEST_CHECKED:
            return _one(await self._checked_json(response))
        return self._stream(response)

    async def read(self, response: aiohttp.ClientResponse, most: int) -> bytes:
        """The answer, or the first `most` bytes of it."""
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
            raise await self._why_it_ended() from error
        finally:
            self.done(response)

    async def _checked_json(self, response: aiohttp.ClientResponse) -> bytes:
        body = await self.read(response, _LARGEST_CHECKED)
        try:
            json.loads(body)
        except (ValueError, RecursionError) as error:
            shown = body[:200].decode(errors="replace")
            raise RuntimeFault(
                f"the app's answer says it is JSON, but is not ({error}): {shown}", code="RuntimeClientError"
            ) from None
        return body


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body
