"""The requests of one worker to the others: forwarded for a client, relayed byte by byte, or its own."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping, Set
from typing import Any
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

from ...errors import GatewayFault
from ..http.gateway_app import error_response
from .membership import Membership

_FORWARDED = "X-Gateway-Worker"
_FOR, _ALL = "X-Gateway-For", "all"
"""Tells the first worker to forward the operation to all others."""
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade", "expect"}
_CHECKED = {"origin", "sec-fetch-site"}
"""Headers that the receiving worker has checked already; the next one sees another Host."""
_UNPACKED = {"content-encoding"}  # the request's body is decompressed by now
_NO_DEFAULTS = {"Content-Type", "User-Agent"}  # aiohttp must not add these to a client's request


class WorkerLinks:
    """Sends requests to the other workers; its connections are made as they are needed."""

    def __init__(self, members: Membership, *, mark: str, ask_seconds: float) -> None:
        """`mark` is a secret of the workers: a request that carries it was forwarded by one.

        `ask_seconds` limits how long another may take to answer a question; operations may take as long as they need.
        """
        self._members = members
        self._mark = mark
        self._ask_seconds = ask_seconds
        self._client: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def comes_from_worker(self, request: web.BaseRequest) -> bool:
        """Whether another worker forwarded a request; it is not forwarded again, unless it `is_for_all`."""
        given = request.headers.get(_FORWARDED)
        return given is not None and hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._mark.encode())

    def is_for_all(self, request: web.BaseRequest) -> bool:
        """Whether the worker that forwarded a request leaves it to the first one to tell all others."""
        return request.headers.get(_FOR) == _ALL

    async def ask(
        self, worker: int, path: str, name: str = "", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Another worker's answer to a question of this one; an `OSError` if there is none in time."""
        url = URL(f"{self._members.urls[worker]}{path}{quote(name, safe='')}", encoded=True)
        sent = {_FORWARDED: self._mark, **(headers or {})}
        try:
            async with (
                asyncio.timeout(self._ask_seconds),
                self._connected().get(url, headers=sent) as answer,
            ):
                return answer.status, await answer.read()
        except aiohttp.ClientError as error:
            raise ConnectionError(str(error)) from error

    async def fetch(self, request: web.BaseRequest, worker: int) -> bytes:
        """Another worker's answer to a client's request, which asks all of them."""
        async with asyncio.timeout(self._ask_seconds), self.send(request, worker, b"") as answer:
            said: bytes = await answer.read()
            return said

    async def forward_to_others(self, request: web.BaseRequest, body: bytes) -> web.Response | None:
        """Forward the operation to all others; returns the first failure."""
        said = await asyncio.gather(*(self.forward(request, other, body) for other in self._members.others))
        return next((failed for failed in said if failed is not None), None)

    async def forward(
        self, request: web.BaseRequest, worker: int, body: bytes, path: str | None = None
    ) -> web.Response | None:
        """Forward the operation, or the one at `path`, to another worker; returns its answer if it fails."""
        try:
            async with self.send(request, worker, body, path) as answer:
                said = await answer.read()
        except aiohttp.ClientError:
            return error_response(request, unavailable(worker))
        return None if answer.ok else web.Response(status=answer.status, body=said, headers=_kept(answer.headers))

    async def relay(self, request: web.BaseRequest, worker: int, body: bytes | None = None) -> web.StreamResponse:
        """Relay another worker's answer as it arrives. Without a `body`, the request's own bytes are forwarded."""
        response = None
        try:
            async with self.send(request, worker, body) as answer:
                response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
                if not request.content.is_eof():  # refused before all of it arrived
                    response.force_close()
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except aiohttp.ClientError:
            if response is None:
                broken = request.content.exception()
                fault = (
                    unavailable(worker) if broken is None else GatewayFault.invalid(f"the body can't be read: {broken}")
                )
                return error_response(request, fault)
            if request.transport is not None:
                request.transport.abort()  # a truncated answer must not look complete
            return response

    def send(self, request: web.BaseRequest, worker: int, body: bytes | None, path: str | None = None) -> Any:
        """A client's request to another worker, as aiohttp's context of its answer."""
        headers = {**_kept(request.headers, _CHECKED), _FORWARDED: self._mark}
        data: Any = body
        if body is not None:
            headers = _kept(headers, _UNPACKED)
        elif request.content.is_eof():
            data = request.content.read_nowait()
        else:
            data = request.content
            if request.content_length is not None:
                headers["Content-Length"] = str(request.content_length)
        if body is None and worker == self._members.first:
            headers[_FOR] = _ALL
        url = URL(self._members.urls[worker] + (path or request.rel_url.raw_path_qs), encoded=True)
        return self._connected().request(
            request.method, url, data=data, headers=headers, skip_auto_headers=_NO_DEFAULTS
        )

    def _connected(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
                auto_decompress=False,  # answers are relayed unchanged
            )
        return self._client


def unavailable(worker: int) -> GatewayFault:
    """The fault of a request whose worker does not answer."""
    return GatewayFault(
        f"worker {worker} of the gateway does not answer", status=503, code="worker_unavailable", retry_after=1
    )


def _kept(headers: Any, without: Set[str] = frozenset()) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP | without}
