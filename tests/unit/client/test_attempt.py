"""What the failures of a rollout amount to."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from agentcore_rl_toolkit.client.attempt import failure_of
from agentcore_rl_toolkit.errors import ConfigError, ResultUnreadable, RuntimeFault, StoreMisconfigured
from agentcore_rl_toolkit.types import Status


@pytest.mark.parametrize(
    ("code", "reason", "status"),
    [
        ("RuntimeClientError", "agent", Status.AGENT_ERROR),
        ("RuntimeClientError", None, Status.SESSION_LOST),
        ("ValidationException", None, Status.AGENT_ERROR),
        ("AccessDeniedException", None, Status.AGENT_ERROR),
        ("ResourceNotFoundException", None, Status.AGENT_ERROR),
        ("InternalServerException", None, Status.SESSION_LOST),
        ("ThrottlingException", None, Status.SESSION_LOST),
        ("ThrottlingException", "full", Status.SESSION_LOST),
    ],
)
def test_what_a_refused_invoke_amounts_to(code: str, reason: Any, status: Status) -> None:
    fault = RuntimeFault("it said no", code=code, reason=reason)
    assert failure_of(fault, "row") == (status, "it said no")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (asyncio.TimeoutError("no result after 1 s"), Status.TIMEOUT),
        (ConfigError("a payload must be a dict"), Status.AGENT_ERROR),
        (ResultUnreadable("half a result"), Status.AGENT_ERROR),
    ],
)
def test_what_other_errors_amount_to(error: Exception, status: Status, caplog: pytest.LogCaptureFixture) -> None:
    assert failure_of(error, "row") == (status, str(error))
    assert caplog.records == []


def test_an_unexpected_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert failure_of(ZeroDivisionError("x"), "row-7") == (Status.AGENT_ERROR, "ZeroDivisionError: x")
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "a rollout of row-7 failed unexpectedly")
    assert record.exc_info


def test_a_misconfigured_store_ends_everything() -> None:
    with pytest.raises(StoreMisconfigured, match="no such bucket"):
        failure_of(StoreMisconfigured("no such bucket"), "row")
