"""Every exception the toolkit raises on purpose, in one tree.

    AgentCoreRLError            anything below; `except` this to catch all of it
    ├── ConfigError             a setting is missing, unknown or malformed   (also a ValueError)
    ├── KeyInvalid              an id or key that could leave its prefix     (also a ValueError)
    ├── RewardInvalid           a reward that is not a finite number         (also a ValueError)
    ├── JudgeFault              a judge failed, or gave no valid verdict
    ├── NotSerializable         a result value JSON cannot hold              (also a TypeError)
    │   └── ResultTooLarge      a result over the size limit
    ├── StoreError              the store refused; another try fails too
    │   ├── KeyNotFound         nothing is stored under that key             (also a KeyError)
    │   ├── ResultUnreadable    a stored result is too large or malformed
    │   ├── StoreForbidden      a permission is missing
    │   ├── StoreMisconfigured  no such bucket, wrong region, bad credentials  (also a ConfigError)
    │   └── StoreUnavailable    the store did not answer; trying again may help
    ├── RuntimeFault            a runtime refused or failed; `code` and `status` are AWS's
    │   └── TemplateGone        a template process ended before a session could be forked from it
    ├── LinkBroken              the local runtime's supervisor has ended
    ├── BrokenAnswer            a session's app closed its connection, or sent a malformed answer
    ├── StartupFailed           an app's lifespan refused to start
    ├── S3Error                 the local S3 server refused a request
    ├── GatewayFault            the gateway refused a request; `status` and `code` reach the agent
    ├── RenderFault             the chat template can't render these messages
    │   └── PromptTooLong       a prompt far longer than the context, not tokenized to its end
    ├── EngineError             an engine refused or failed; `status` reaches the agent
    ├── AwsRefused              AWS refused a call of `deploy` or `doctor`     (also a ConfigError)
    ├── SessionLost             a session ended before its rollout did
    ├── NoStepsLeft             a resumed run has trained all its steps already
    ├── RolloutCancelled        a rollout was cancelled before its result arrived
    ├── RolloutFailed           a rollout's result is not a success; `raise_for_status()` raises it
    └── RolloutsStopped         too many rollouts failed, or the failure table says to stop

A message says what failed, with which value, and ends in a `hint:` if the reader can do something about it. All of them
survive pickling with their attributes, so that they can cross process boundaries.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection
from typing import ClassVar, Literal


class AgentCoreRLError(Exception):
    """Base of every error this package raises on purpose.

    >>> print(AgentCoreRLError("it broke", hint="repair it"))
    it broke
    hint: repair it
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")

    def __str__(self) -> str:
        # KeyError's own __str__ would show the repr of the message.
        return Exception.__str__(self)


class ConfigError(AgentCoreRLError, ValueError):
    """A setting is missing, unknown or malformed."""


class KeyInvalid(AgentCoreRLError, ValueError):
    """An id or key that is empty or could leave its prefix."""


class RewardInvalid(AgentCoreRLError, ValueError):
    """A reward that is neither a finite number nor a list of them."""


class JudgeFault(AgentCoreRLError):
    """A judge failed, or gave no valid verdict; `passing` if another try may help."""

    def __init__(self, message: str, *, passing: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.passing = passing


class NotSerializable(AgentCoreRLError, TypeError):
    """A result holds a value that has no JSON form; the message names its path."""


class ResultTooLarge(NotSerializable):
    """A result is larger than one may be."""


class StoreError(AgentCoreRLError):
    """The store refused a request, and would refuse it again."""


class KeyNotFound(StoreError, KeyError):
    """Nothing is stored under that key."""


class ResultUnreadable(StoreError):
    """A stored result is too large for its reader, or malformed."""


class StoreForbidden(StoreError):
    """The store refused access: a permission is missing."""


class StoreMisconfigured(StoreError, ConfigError):
    """A setting must change first: the bucket, the region or the credentials."""


class StoreUnavailable(StoreError):
    """The store did not answer, or asked for another try."""


class RuntimeFault(AgentCoreRLError):
    """A runtime refused a request or failed, with AWS's error codes.

    >>> RuntimeFault("try later", code="ThrottlingException").status
    429
    """

    STATUS: ClassVar[dict[str, int]] = {
        "ValidationException": 400,
        "UnauthorizedException": 401,
        "ServiceQuotaExceededException": 402,
        "AccessDeniedException": 403,
        "ResourceNotFoundException": 404,
        "ConflictException": 409,
        "RetryableConflictException": 409,
        "RuntimeClientError": 424,
        "ThrottlingException": 429,
        "InternalServerException": 500,
    }
    """HTTP status by error code, from the service model."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "InternalServerException",
        reason: Literal["full", "agent"] | None = None,
        retry_after: float | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        """AWS's name for the error."""
        self.reason = "full" if reason is None and code == "ServiceQuotaExceededException" else reason
        """More than the code: `full` if every session of the runtime is in use, `agent` if the agent itself failed and
        would fail again."""
        self.retry_after = retry_after
        """Seconds to wait before another try, if the runtime gave them."""

    @property
    def status(self) -> int:
        """The HTTP status that goes with the code."""
        return self.STATUS.get(self.code, 500)

    @property
    def full(self) -> bool:
        """Whether a session must end before another one can start."""
        return self.reason == "full"

    @property
    def throttled(self) -> bool:
        """Whether slowing down would help."""
        return self.status == 429 and not self.full


class TemplateGone(RuntimeFault):
    """A template process ended before it forked a session; the next template works."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, code="RetryableConflictException", hint=hint)


class LinkBroken(AgentCoreRLError):
    """The local runtime's supervisor process has ended."""


class BrokenAnswer(AgentCoreRLError):
    """The other end closed the connection, or sent a malformed answer."""


class StartupFailed(AgentCoreRLError):
    """The app's lifespan refused to start."""


class S3Error(AgentCoreRLError):
    """The local S3 server refused a request, with S3's error code."""

    def __init__(
        self, message: str, *, status: int = 500, code: str = "InternalError", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status, self.code = status, code


class GatewayFault(AgentCoreRLError):
    """The gateway can't serve a request; it answers with `status` and the stable `code`."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 500,
        code: str = "internal_error",
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

    @classmethod
    def invalid(cls, message: str, *, param: str | None = None, code: str = "invalid_value") -> GatewayFault:
        """The fault of an invalid request."""
        return cls(message, status=400, code=code, param=param)


class RenderFault(AgentCoreRLError):
    """The chat template can't render the messages of a request."""


class PromptTooLong(RenderFault):
    """A prompt is so much longer than the model's context that it was not tokenized to its end."""


class EngineError(AgentCoreRLError):
    """An engine refused a request or failed, before or between tokens.

    `status` is the HTTP status for the agent. If `sampled_any`, the engine may have sampled tokens already, and another
    replica must not get the request.
    """

    ELSEWHERE: ClassVar[frozenset[int]] = frozenset({429, 500, 502, 503, 504})
    """Statuses with which another replica may succeed; with any other, the request is at fault."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 502,
        sampled_any: bool = False,
        retry_after: float | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.sampled_any = sampled_any
        self.retry_after = retry_after

    @property
    def is_unhealthy(self) -> bool:
        """Whether the engine is unhealthy, rather than busy or right to refuse."""
        return self.status in self.ELSEWHERE and self.status != 429 and self.retry_after is None


class AwsRefused(ConfigError):
    """AWS refused a call with the error code `code`."""

    def __init__(self, message: str, code: str = "", *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class SessionLost(AgentCoreRLError):
    """A session ended before its rollout did."""


class NoStepsLeft(AgentCoreRLError):
    """A resumed run has trained all its steps already."""


class RolloutCancelled(AgentCoreRLError):
    """A rollout was cancelled before its result arrived."""


class RolloutFailed(AgentCoreRLError):
    """A rollout's result is not a success."""


class RolloutsStopped(AgentCoreRLError):
    """Too many rollouts failed, or the failure table says to stop."""


def suggest_path(path: str) -> str | None:
    """A hint for a path that does not exist: the name beside it that is the most like its own, if one is.

    >>> suggest_path("/nowhere/at/all") is None
    True
    """
    folder, name = os.path.split(path.rstrip(os.sep))
    try:
        close = difflib.get_close_matches(name, os.listdir(folder or "."), 1)
    except OSError:
        return None
    return f"did you mean {os.path.join(folder, close[0])}?" if close else None
