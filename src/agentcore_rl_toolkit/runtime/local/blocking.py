"""The local runtime for programs without an event loop: the same runtime, on a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ...common.private_loop import PrivateLoop
from ..base import CommandEvent

if TYPE_CHECKING:
    from .runtime import LocalRuntime


class BlockingRuntime:
    """What `with LocalRuntime(…) as runtime` gives."""

    def __init__(self, runtime: LocalRuntime) -> None:
        self._runtime = runtime
        self._loop = PrivateLoop("local-runtime")

    @property
    def arn(self) -> str:
        """The ARN of the only agent."""
        return self._runtime.arn

    @property
    def endpoint_url(self) -> str:
        """What `boto3.client("bedrock-agentcore", endpoint_url=…)` takes."""
        return self._runtime.endpoint_url

    @property
    def token(self) -> str:
        """What callers need who are not this user on this machine."""
        return self._runtime.token

    @property
    def protections(self) -> list[str]:
        """What sessions run with."""
        return self._runtime.protections

    def invoke(self, session_id: str, payload: bytes) -> bytes:
        """Invoke the only agent; gives the whole answer."""
        return self._loop.run(self._invoke(session_id, payload))

    def stop(self, session_id: str) -> None:
        """Stop a session."""
        self._loop.run(self._runtime.stop(session_id))

    def command(self, session_id: str, command: str, *, timeout: int = 300) -> list[CommandEvent]:
        """Run a shell command inside a live session; gives all its events."""
        return self._loop.run(_collect(self._runtime.command(session_id, command, timeout=timeout)))

    def start(self) -> BlockingRuntime:
        """Start the thread, and the runtime on it."""
        try:
            self._loop.run(self._runtime.start())
        except BaseException:
            self._loop.close()
            raise
        return self

    def close(self) -> None:
        """End all sessions, the runtime and the thread."""
        try:
            self._loop.run(self._runtime.aclose())
        finally:
            self._loop.close()

    async def _invoke(self, session_id: str, payload: bytes) -> bytes:
        return await (await self._runtime.invoke(session_id, payload)).read()


async def _collect(events: AsyncIterator[CommandEvent]) -> list[CommandEvent]:
    return [event async for event in events]
