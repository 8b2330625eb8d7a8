from __future__ import annotations

from typing import Any

import pytest

from agentcore_rl_toolkit.client.batch import status_of
from agentcore_rl_toolkit.client.in_flight import Flight
from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.types import RolloutId, Status


def test_the_first_outcome_of_a_flight_stands() -> None:
    flight = Flight(RolloutId("e", "i", "s"))
    outcome = flight.outcome
    flight.deliver({"n": 1}, None)
    at = flight.finished_at
    flight.deliver({"n": 2}, None)
    flight.deliver(None, RuntimeError("late"))
    assert flight.outcome is outcome
    assert (outcome.result(), flight.finished_at) == ({"n": 1}, at)


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
    assert status_of(RuntimeFault("it said no", code=code, reason=reason)) is status
