from __future__ import annotations

import pytest

from agentcore_rl_toolkit.client.batch import status_of
from agentcore_rl_toolkit.client.core import Flight
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
    ("code", "message", "status"),
    [
        ("RuntimeClientError", "Received error (500) from runtime: boom", Status.AGENT_ERROR),
        ("RuntimeClientError", "agent x could not be imported:\n…", Status.AGENT_ERROR),
        ("RuntimeClientError", "the app's process ended (signal 9)", Status.SESSION_LOST),
        ("ValidationException", "short session id", Status.AGENT_ERROR),
        ("AccessDeniedException", "no", Status.AGENT_ERROR),
        ("ResourceNotFoundException", "no such runtime", Status.AGENT_ERROR),
        ("InternalServerException", "connection reset", Status.SESSION_LOST),
        ("ThrottlingException", "slow down", Status.SESSION_LOST),
    ],
)
def test_what_a_refused_invoke_amounts_to(code: str, message: str, status: Status) -> None:
    assert status_of(RuntimeFault(message, code=code)) is status
