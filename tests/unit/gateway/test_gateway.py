"""A gateway's own chores."""

from __future__ import annotations

import pytest

from agentcore_rl_toolkit.gateway.call.core import GatewayLimits
from support.gateway import gateway
from support.runtime import eventually


def test_expired_sessions_are_removed_also_after_that_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    with gateway([], limits=GatewayLimits(sweep_seconds=0.02)) as running:
        session = running.core.sessions.get(running.open_session(ttl_seconds=1)["session_id"])
        session.used = None  # type: ignore[assignment]
        eventually(lambda: "removing expired sessions failed" in caplog.text)
        session.used = -1e9
        eventually(lambda: len(running.core.sessions) == 0)
