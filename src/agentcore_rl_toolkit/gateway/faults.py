"""What the gateway says no with, independent of the wire it says it over."""

from __future__ import annotations

from collections.abc import Collection

from ..errors import AgentCoreRLError


class Fault(AgentCoreRLError):
    """A request that can't be served, with the HTTP status, a stable code and what to do about it."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        retry_after: float | None = None,
        allow: Collection[str] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.message = message if hint is None else f"{message} ({hint})"
        self.param = param
        self.retry_after = retry_after
        self.allow = allow


class RenderFault(Exception):
    """The chat template can't render these messages; the agent's request is at fault."""


def invalid(message: str, *, param: str | None = None, code: str = "invalid_value") -> Fault:
    """A request that is wrong in itself."""
    return Fault(400, code, message, param=param)
