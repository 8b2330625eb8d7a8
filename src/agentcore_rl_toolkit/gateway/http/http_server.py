"""The gateway's HTTP server, and how much of a request it reads.

A handler reads the body after it has accepted the request, so a refused request costs its headers only. Limits hold
for the bytes that arrive and for those they decompress to. The server gives up on a body that stops arriving. If no
handler has read the body, the server answers and closes the connection, unless the rest is small.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from ...errors import GatewayFault

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_UNREADABLE = (web.RequestPayloadError, HttpProcessingError)
_STEP = 1 << 20
"""Bytes to decompress before other requests run."""
_SMALL = 1 << 16
"""Bytes of an unread body up to which a connection is kept."""
_GRACE_SECONDS = 1.0
"""How long the connection of an unread body stays open, so that the client can read the answer."""


class GatewayRequest(web.BaseRequest):
    """A request whose body is read with `read_body`."""

    ATTRS = web.BaseRequest.ATTRS | {"body_seconds", "body"}
    body_seconds = 60.0
    """The longest pause between bytes of its body."""
    body: bytes | None = None
    """Once it has been read."""


def http_server(handle: Handler, *, max_body_bytes: int, body_seconds: float) -> web.Server:
    """A server that refuses a body of more than `max_body_bytes`, or one that stalls for `body_seconds`."""

    def make(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        request = GatewayRequest(message, payload, protocol, writer, task, loop, client_max_size=max_body_bytes)
        request.body_seconds = body_seconds
        return request

    return web.Server(
        _answered(handle),
        request_factory=make,
        handler_cancellation=True,
        access_log=None,
        logger=_logger(),
        keepalive_timeout=75,
        auto_decompress=False,
        lingering_time=0,
    )


async def read_body(request: web.BaseRequest) -> bytes:
    """A request's body, decompressed; a `GatewayFault` if it is too large, malformed or never arrives."""
    assert isinstance(request, GatewayRequest)
    if request.body is None:
        try:
            request.body = await _read(request)
        except _UNREADABLE as error:
            raise GatewayFault.invalid(f"the body can't be read: {error}") from None
    return request.body


async def _read(request: GatewayRequest) -> bytes:
    size, most, content = request.content_length, request.client_max_size, request.content
    if size is not None and size > most:
        raise GatewayFault(f"the body has {size} bytes; at most {most} are read", status=413, code="body_too_large")
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("", "identity"):
        if content.is_eof() and size is not None:  # it came with its headers, as most do
            return content.read_nowait()
        return b"".join([piece async for piece in _bounded(arriving(content, request.body_seconds), most)])
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise GatewayFault(
            f"the body is encoded as {encoding[:40]!r}",
            status=415,
            code="unsupported_encoding",
            hint="send gzip, or none",
        )
    packed = _bounded(arriving(content, request.body_seconds), most)
    return b"".join([piece async for piece in _bounded(_decompressed(packed, encoding), most)])


async def arriving(content: StreamReader, seconds: float) -> AsyncIterator[bytes]:
    """Yield a body's bytes as they arrive; raise `GatewayFault` after `seconds` without a byte."""
    while True:
        try:
            async with asyncio.timeout(seconds):
                piece = await content.readany()
        except TimeoutError:
            hint = "send the whole body; --body-timeout allows longer pauses"
            raise GatewayFault(
                f"the body stalled for {seconds:g} s", status=408, code="body_timeout", hint=hint
            ) from None
        if not piece:
            return
        yield piece


async def _bounded(pieces: AsyncIterator[bytes], most: int) -> AsyncIterator[bytes]:
    count = 0
    async for piece in pieces:
        count += len(piece)
        if count > most:
            raise GatewayFault(
                f"the body has more than the {most} bytes that are read", status=413, code="body_too_large"
            )
        yield piece


async def _decompressed(pieces: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    """Decompress gzip or deflate, in pieces of bounded size."""
    stream: Any = None
    async for piece in pieces:
        stream = stream or zlib.decompressobj(_window(encoding, piece[0]))
        full = True
        while full or piece:
            try:
                opened = stream.decompress(piece, _STEP)
            except zlib.error as error:
                raise GatewayFault.invalid(f"the body can't be read: {error}") from None
            yield opened
            piece, full = stream.unconsumed_tail, len(opened) == _STEP
            if full:
                await asyncio.sleep(0)
        if stream.unused_data:
            raise GatewayFault.invalid("the body can't be read: bytes follow the end of its compressed stream")
    if stream is not None and not stream.eof:
        raise GatewayFault.invalid("the body can't be read: its compressed stream has no end")


def _window(encoding: str, first: int) -> int:
    """zlib's name for a format; some clients leave the header of deflate out."""
    if encoding != "deflate":
        return 16 + zlib.MAX_WBITS
    return zlib.MAX_WBITS if first & 0xF == 8 else -zlib.MAX_WBITS


# Answers


def _answered(handle: Handler) -> Handler:
    """Ignore clients that left: aiohttp would log an error with a traceback if the next write noticed it first."""

    async def answered(request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await handle(request)
            if not request.content.is_eof():
                await _leave_body(request, response)
            return response
        except ConnectionError:
            if request.transport is not None and not request.transport.is_closing():
                raise
            return web.Response()  # the client is gone

    return answered


async def _leave_body(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Answer a request whose body was not read, and close its connection."""
    size = request.content_length
    small = size is not None and size <= _SMALL
    if not small:
        response.force_close()
    await response.prepare(request)
    await response.write_eof()
    if not small:  # closing at once would have the client's system drop the answer with the connection
        await asyncio.sleep(_GRACE_SECONDS)
        return
    try:
        async with asyncio.timeout(_GRACE_SECONDS):
            while not request.content.is_eof():
                await request.content.readany()
    except (TimeoutError, *_UNREADABLE):
        response.force_close()


def _logger() -> logging.Logger:
    """aiohttp's logger, without tracebacks for requests that can't be read."""
    logger = logging.getLogger(f"{__name__}.aiohttp")
    if not logger.filters:
        logger.addFilter(lambda record: not record.exc_info or not isinstance(record.exc_info[1], _UNREADABLE))
    return logger
