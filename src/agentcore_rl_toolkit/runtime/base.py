"""The runtime seam: start a session by invoking it, talk to it, stop it.

A runtime gives each session id its own isolated process and sends every request with that id to it. Failures are
`RuntimeFault`s with AWS's codes, whichever runtime it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

REASON_HEADER = "X-AgentCore-RL-Reason"
"""Where the local runtime puts a fault's `reason`, which AWS's wire has no place for."""

TOKEN_VARIABLE = "AGENTCORE_RL_RUNTIME_TOKEN"
"""The environment variable with a local runtime's token, for the runtime and for those who talk to it."""


@dataclass(frozen=True)
class Invocation:
    """The app's answer to an invoke; read `body` to its end, or `aclose()` it."""

    session_id: str
    status: int
    content_type: str
    body: AsyncIterator[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([chunk async for chunk in self.body])


@dataclass(frozen=True)
class CommandEvent:
    """One event of a command: output as it comes, and at the end how it ended."""

    stdout: str | None = None
    stderr: str | None = None
    exit_code: int | None = None
    status: Literal["COMPLETED", "TIMED_OUT"] | None = None
    """Set on the last event only."""


class Runtime(Protocol):
    """One agent's runtime."""

    @property
    def arn(self) -> str:
        """The agent's ARN."""

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Invocation:
        """Send `payload` to the session's app, starting the session if there is none."""

    async def stop(self, session_id: str) -> None:
        """End the session. `ResourceNotFoundException` if there is none."""

    def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        """Run a shell command inside a live session."""

    async def aclose(self) -> None:
        """Release what the runtime holds; a local one ends all its sessions."""
