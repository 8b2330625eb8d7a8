"""The runtime seam: `Runtime` starts a session by invoking it, runs commands in it, and stops it.

A runtime gives each session id its own isolated process and sends it every request with that id. Every runtime
raises `RuntimeFault` with AWS's codes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

REASON_HEADER = "X-AgentCore-RL-Reason"
"""Carries a fault's `reason` from the local runtime; AWS's wire has no field for it."""
SESSION_HEADER = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
LONGEST_PRINTED = 1 << 16
"""Bytes of a session's output that a rollout keeps."""
TOKEN_VARIABLE = "AGENTCORE_RL_RUNTIME_TOKEN"
"""The environment variable with a local runtime's token; servers and clients read it."""
PLACEHOLDER_AWS = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""For sessions without credentials: AWS's clients can't be built without any, even where nothing checks them."""


@dataclass(frozen=True)
class Invocation:
    """The app's answer to an invoke. Read `body` to its end, or `aclose()` it."""

    session_id: str
    status: int
    content_type: str
    body: AsyncIterator[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.body])


async def one_piece(body: bytes) -> AsyncIterator[bytes]:
    """A body that is known already."""
    yield body


@dataclass(frozen=True)
class CommandEvent:
    """One event of a command: a piece of output or, at the end, the exit code."""

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
        """Send `payload` to the session's app; the first invoke starts the session."""

    async def stop(self, session_id: str) -> None:
        """End the session; raises `ResourceNotFoundException` if it doesn't exist."""

    def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        """Run a shell command inside a live session."""

    async def aclose(self) -> None:
        """Release all resources; a local runtime ends all its sessions."""


@runtime_checkable
class KeepsOutput(Protocol):
    """A runtime that keeps what its sessions print. Not every runtime can."""

    async def printed(self, session_id: str) -> bytes | None:
        """The end of what a session printed, even after it has ended; None if there was no such session."""
