"""HTTP/1.1 between an engine and its inference server: keep-alive connections, whole responses, server-sent events.

It does only what two known servers need: a general client took longer than the rest of a gateway call. It refuses
redirects, proxies, compression and pipelining. Every failure is an `EngineError`. Closing a connection that is not read
to its end aborts the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl as ssl_module
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from ...errors import ConfigError, EngineError
from .framing import ResponseBody

T = TypeVar("T", bytes, list[bytes])

API_KEY = "AGENTCORE_RL_ENGINE_API_KEY"
"""The variable with the key that inference servers ask for (vLLM's and SGLang's `--api-key`)."""
MAX_HEAD = 65_536
_CONNECT_SECONDS, _DRAIN_SECONDS = 10.0, 1.0
_MOST_IDLE = 1024  # connections
HIGH_WATER = 4 << 20
"""Unread bytes at which the client stops reading from its server."""
PASSED_ON = frozenset({400, 404, 408, 413, 429, 503, 504})
"""Statuses that an agent sees as they are; others are about the engine rather than about the request."""


class Connection(asyncio.Protocol):
    """One connection; it carries one request at a time."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.lost = False
        self.answered = False
        """Whether a byte of the current response has arrived."""
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        self._paused = False
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.answered = True
        self.buffer += data
        if len(self.buffer) > HIGH_WATER and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._set_timer(math.inf)
        self._wake(True)

    def _wake(self, arrived: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(arrived)

    def write(self, parts: Sequence[bytes]) -> None:
        """Write all parts, without joining them first where the loop can do that."""
        self.answered = False
        if not self._transport.is_closing():  # asyncio's transport would raise; the reader notices the loss
            self._transport.writelines(parts)

    async def wait_for_data(self, seconds: float) -> bool:
        """Wait until bytes arrive or the connection is lost; False if neither happens in time."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._deadline = self._loop.time() + seconds
        if self._deadline < self._timer_at:
            self._set_timer(self._deadline)
        self._waiter = self._loop.create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def _set_timer(self, at: float) -> None:
        """One timer serves many waits: it is set again when it fires too early, not whenever bytes arrive."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._on_timer) if at < math.inf else None
        self._timer_at = at

    def _on_timer(self) -> None:
        self._timer_at = math.inf
        if self._waiter is not None and self._loop.time() < self._deadline:
            self._set_timer(self._deadline)
        elif self._waiter is not None:
            self._wake(False)

    def close(self) -> None:
        self._transport.abort()


class HttpResponse:
    """A server's response. Leaving its `with` block keeps the connection if all was read, and closes it otherwise."""

    def __init__(self, client: HttpClient, connection: Connection, status: int, headers: dict[bytes, bytes]) -> None:
        self.status = status
        self.headers = headers
        self._client = client
        self.connection = connection
        self._body = ResponseBody(headers)
        self._body.done |= status in (204, 304)
        self._streamed = headers.get(b"content-type", b"text/event-stream").lower().startswith(b"text/event-stream")

    def __enter__(self) -> HttpResponse:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        keep = self._body.done and self.headers.get(b"connection", b"").lower() != b"close"
        self._client.release(self.connection, keep=keep)

    async def read_some(self) -> bytes:
        """The bytes since the last call, waiting for at least one; none at the end of the response."""
        return await self._take(self._body.take_bytes) or b""

    async def read_events(self) -> list[bytes]:
        """The events since the last call, waiting for at least one; none at the end of the response."""
        if not self._streamed:
            raise self._client.error(f"answered without a stream: {error_message(await self.read())}")
        return await self._take(self._body.take_events) or []

    async def _take(self, take: Callable[[bytearray], T]) -> T | None:
        body, connection = self._body, self.connection
        while not body.done:
            try:
                taken = take(connection.buffer)
            except ValueError as e:
                raise self._client.error(f"answered with broken chunks: {e}", sampled_any=True) from e
            if taken:
                return taken
            if body.done:
                break
            if connection.lost:
                if body.sized:
                    raise self._client.error("closed the connection in the middle of an answer", sampled_any=True)
                body.done = True
            elif not await connection.wait_for_data(self._client.timeout):
                raise self._client.error("fell silent in the middle of an answer", status=504, sampled_any=True)
        return None

    async def read(self) -> bytes:
        whole = await self.read_some()
        while data := await self.read_some():
            whole += data
        return whole

    async def read_as_event(self) -> list[bytes]:
        """The whole body as one event; none if nothing is left."""
        data = await self.read()
        return [data] if data else []

    async def drain(self) -> None:
        """Read and drop the rest, so that the connection can be kept; a server that takes too long loses it."""
        body, connection = self._body, self.connection
        with contextlib.suppress(ValueError):
            while not body.done:
                body.take_bytes(connection.buffer)
                if not body.done and (connection.lost or not await connection.wait_for_data(_DRAIN_SECONDS)):
                    return


class HttpClient:
    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"not the URL of a server: {url!r}", hint="write it like http://localhost:8000")
        if "@" in parts.netloc:  # every error would show it to agents
            raise ConfigError("the URL of a server can't have a password in it", hint="give it as the API key")
        self.url = url.rstrip("/")
        self.timeout = timeout
        """Seconds without a byte after which a request is given up."""
        self._host = parts.hostname
        self._ssl = (ssl or ssl_module.create_default_context()) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._ssl else 80)
        self._prefix = parts.path.rstrip("/")
        self._headers = f" HTTP/1.1\r\nhost: {parts.netloc}\r\n".encode()
        if api_key:
            self._headers += f"authorization: Bearer {api_key.strip()}\r\n".encode()
        self.idle: list[Connection] = []
        self._closed = False

    def error(
        self,
        what: str,
        *,
        status: int = 502,
        sampled_any: bool = False,
        retry_after: float | None = None,
        hint: str | None = None,
    ) -> EngineError:
        message = f"the engine at {self.url} {what}"
        return EngineError(message, status=status, sampled_any=sampled_any, retry_after=retry_after, hint=hint)

    async def send(self, method: str, path: str, *body: bytes) -> HttpResponse:
        """Send one request, its body in any number of parts; returns once the response's head is there."""
        head = f"{method} {self._prefix}{path}".encode() + self._headers
        if body:
            head += b"content-type: application/json\r\n"
        request = (b"%bcontent-length: %d\r\n\r\n" % (head, sum(map(len, body))), *body)
        connection = self._idle_connection()
        if connection is not None:
            response = await self._exchange(connection, request)
            if response is not None:
                return response
            # The server had closed an idle connection and never read the request.
        response = await self._exchange(await self._connect(), request)
        if response is None:
            raise self.error("closed the connection without an answer")
        return response

    async def post(self, path: str, *body: bytes) -> HttpResponse:
        """The response to a request that succeeded; raises the server's error otherwise."""
        return await self._check_status(await self.send("POST", path, *body))

    async def get(self, path: str) -> bytes:
        with await self._check_status(await self.send("GET", path)) as response:
            return await response.read()

    async def post_command(self, path: str, *body: bytes, optional: bool = False) -> None:
        """Send a request without a result. With `optional`, a server may lack the path."""
        response = await self.send("POST", path, *body)
        if not (optional and response.status in (404, 405)):
            await self._check_status(response)
        with response:
            await response.read()

    async def _check_status(self, response: HttpResponse) -> HttpResponse:
        if response.status < 300:
            return response
        with response:
            message = error_message(await response.read())
        status = 400 if response.status == 422 else response.status
        raise self.error(
            f"answered {response.status}: {message}",
            status=status if status in PASSED_ON else 502,
            retry_after=retry_seconds(response.headers.get(b"retry-after")),
            hint=f"set {API_KEY} to the server's key" if response.status in (401, 403) else None,
        )

    async def _exchange(self, connection: Connection, request: Sequence[bytes]) -> HttpResponse | None:
        """The response, or None if the connection was lost before a byte of it arrived."""
        try:
            connection.write(request)
            while True:
                end = connection.buffer.find(b"\r\n\r\n")
                if end >= 0:
                    status, headers = self._parse_head(bytes(connection.buffer[:end]))
                    del connection.buffer[: end + 4]
                    if status >= 200:
                        return HttpResponse(self, connection, status, headers)
                elif connection.lost and not connection.answered:
                    return None
                elif connection.lost or len(connection.buffer) > MAX_HEAD:
                    raise self.error("answered with something that is not HTTP", sampled_any=True)
                elif not await connection.wait_for_data(self.timeout):
                    raise self.error(f"did not answer within {self.timeout:g} s", status=504, sampled_any=True)
        except BaseException:
            connection.close()
            raise

    def _parse_head(self, head: bytes) -> tuple[int, dict[bytes, bytes]]:
        first, *lines = head.split(b"\r\n")
        if not first.startswith(b"HTTP/1.") or not first[9:12].isdigit():
            raise self.error("answered with something that is not HTTP")
        pairs = (line.partition(b":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        if not headers.get(b"content-length", b"0").isdigit():
            raise self.error("answered with something that is not HTTP")
        if first.startswith(b"HTTP/1.0"):
            headers.setdefault(b"connection", b"close")
        return int(first[9:12]), headers

    def _idle_connection(self) -> Connection | None:
        while self.idle:
            connection = self.idle.pop()
            if not connection.lost and not connection.buffer:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._ssl)
        except TimeoutError as e:
            raise self.error(f"could not be reached within {_CONNECT_SECONDS:g} s", status=503) from e
        except OSError as e:
            raise self.error(f"could not be reached: {e}", status=503) from e
        return connection

    def release(self, connection: Connection, *, keep: bool) -> None:
        if keep and not connection.lost and not self._closed and len(self.idle) < _MOST_IDLE:
            self.idle.append(connection)
        else:
            connection.close()

    async def close(self) -> None:
        self._closed = True
        for connection in self.idle:
            connection.close()
        self.idle.clear()
        await asyncio.sleep(0)  # lets the transports close


def error_message(body: bytes) -> str:
    """The text of a server's error, in any of the shapes that servers use."""
    try:
        error = msgspec.json.decode(body)
    except msgspec.DecodeError:
        error = body.decode("utf-8", "replace").strip()
    while isinstance(error, dict):
        error = next((error[key] for key in ("error", "message", "detail") if error.get(key)), str(error))
    return str(error)[:2000] or "(nothing)"


def retry_seconds(value: bytes | None) -> float | None:
    """A `Retry-After` in seconds; None for a date, its other form."""
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None
