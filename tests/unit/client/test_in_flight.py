from __future__ import annotations

from agentcore_rl_toolkit.client.in_flight import Flight
from agentcore_rl_toolkit.types import RolloutId


def test_the_first_outcome_of_a_flight_stands() -> None:
    flight = Flight(RolloutId("e", "i", "s"))
    outcome = flight.outcome
    flight.deliver({"n": 1}, None)
    at = flight.finished_at
    flight.deliver({"n": 2}, None)
    flight.deliver(None, RuntimeError("late"))
    assert flight.outcome is outcome
    assert (outcome.result(), flight.finished_at) == ({"n": 1}, at)
