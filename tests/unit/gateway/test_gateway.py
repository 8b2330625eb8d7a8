"""A gateway's own chores."""

from __future__ import annotations

from typing import Any

import pytest

from agentcore_rl_toolkit.gateway.call.core import Limits
from support.gateway import gateway
from support.runtime import eventually


def test_expired_sessions_are_removed_also_after_that_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    unlike_any: Any = object()
    with gateway([], limits=Limits(sweep_seconds=0.02)) as running:
        known = running.core.sessions._known
        known["broken"] = unlike_any
        running.open_session(session_id="short", ttl_seconds=0.05)
        eventually(lambda: "could not be removed" in caplog.text)
        assert set(known) == {"broken", "short"}
        del known["broken"]
        eventually(lambda: not known)
    assert any(record.levelname == "ERROR" and record.exc_info for record in caplog.records)
