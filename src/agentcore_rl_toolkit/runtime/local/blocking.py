"""The local runtime for programs without an event loop: the same runtime, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ..base import CommandEvent

if TYPE_CHECKING:
    from .runtime import LocalRuntime

T = TypeVar("T")


class BlockingRuntime:
    """What `with LocalRuntime(…) as runtime` gives."""

    def __init__(self, runtime: LocalRuntime) -> None:
        self._runtime = runtime
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="local-runtime", daemon=True)

    @property
    def arn(self) -> str:
        """The ARN of the only agent."""
        return self._runtime.arn

    @property
    def endpoint_url(self) -> str:
        """What `boto3.client("bedrock-agentcore", endpoint_url=…)` takes."""
        return self._runtime.endpoint_url

    def invoke(self, session_id: str, payload: bytes) -> bytes:
        """Invoke the only agent; gives the whole answer."""
        return self._wait(self._invoke(session_id, payload))

    def stop(self, session_id: str) -> None:
        """Stop a session."""
        self._wait(self._runtime.stop(session_id))

    def command(self, session_id: str, command: str, *, timeout: int = 300) -> list[CommandEvent]:
        """Run a shell command inside a live session; gives all its events."""
        return self._wait(_collect(self._runtime.command(session_id, command, timeout=timeout)))

    def start(self) -> BlockingRuntime:
        """Start the thread, and the runtime on it."""
        self._thread.start()
        try:
            self._wait(self._runtime.start())
        except BaseException:
            self._end_thread()
            raise
        return self

    def close(self) -> None:
        """End all sessions, the runtime and the thread."""
        try:
            self._wait(self._runtime.aclose())
        finally:
            self._end_thread()

    async def _invoke(self, session_id: str, payload: bytes) -> bytes:
        return await (await self._runtime.invoke(session_id, payload)).read()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _collect(events: AsyncIterator[CommandEvent]) -> list[CommandEvent]:
    return [event async for event in events]
