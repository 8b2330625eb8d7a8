"""A proxy that keeps every request that a harness makes, on its way to the gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import ClientSession, ClientTimeout, web

_OWN = {"host", "connection", "transfer-encoding", "content-length", "accept-encoding", "content-encoding"}


class Recorder:
    """Forwards to `upstream`."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self._client: ClientSession | None = None

    def moved(self, value: Any) -> Any:
        """A URL of the gateway's, as one of this proxy."""
        return value.replace(self.upstream, self.url) if isinstance(value, str) else value

    def refused(self) -> list[dict[str, Any]]:
        return [asked for asked in self.requests if asked.get("status", 0) >= 400 and asked["method"] == "POST"]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._client is not None
        body = await request.read()
        known: dict[str, Any] = {"method": request.method, "path": request.path_qs, "body": body.decode()}
        self.requests.append(known)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OWN}
        url = self.upstream + request.path_qs
        async with self._client.request(request.method, url, data=body, headers=headers) as answer:
            sent = {name: value for name, value in answer.headers.items() if name.lower() not in _OWN}
            response = web.StreamResponse(status=answer.status, headers=sent)
            await response.prepare(request)
            said = b""
            async for chunk in answer.content.iter_any():
                said += chunk
                await response.write(chunk)
            known |= {"status": answer.status, "answer": said.decode(errors="replace")}
            await response.write_eof()
            return response

    async def start(self) -> web.ServerRunner:
        self._client = ClientSession(timeout=ClientTimeout(total=None))
        runner = web.ServerRunner(web.Server(self.handle, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return runner

    async def close(self, runner: web.ServerRunner) -> None:
        await runner.cleanup()
        assert self._client is not None
        await self._client.close()


@contextmanager
def recorded(upstream: str) -> Iterator[Recorder]:
    """A proxy on its own thread."""
    recorder, loop = Recorder(upstream), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(recorder.start(), loop).result(30)
    try:
        yield recorder
    finally:
        asyncio.run_coroutine_threadsafe(recorder.close(runner), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
