"""When the infrastructure is down, on a clock of one's own."""

from __future__ import annotations

import pytest

from agentcore_rl_toolkit.rollout.outage import Outage
from agentcore_rl_toolkit.types import Status

DOWN = (Status.SESSION_LOST, Status.ENGINE_ERROR)
WORKED = (Status.COMPLETED, Status.AGENT_ERROR, Status.REWARD_ERROR, Status.TRUNCATED)


def run(outage: Outage, name: str, row: str, status: Status, began: float, ended: float) -> None:
    outage.started(name, began)
    outage.ended(name, row, status, ended)


@pytest.mark.parametrize("status", DOWN)
def test_an_outage_lasts_from_the_first_failure(status: Status) -> None:
    outage = Outage()
    assert (outage.seconds(100.0), outage.wait(100.0)) == (0.0, 0.0)
    run(outage, "a", "row-1", status, 0.0, 10.0)
    run(outage, "b", "row-2", status, 0.0, 50.0)
    assert outage.seconds(60.0) == 50.0


@pytest.mark.parametrize("status", WORKED)
def test_it_ends_with_whatever_reached_its_end(status: Status) -> None:
    outage = Outage()
    run(outage, "a", "row-1", Status.SESSION_LOST, 0.0, 10.0)
    run(outage, "b", "row-2", status, 0.0, 20.0)
    assert (outage.seconds(30.0), outage.wait(30.0)) == (0.0, 0.0)
    run(outage, "c", "row-1", Status.SESSION_LOST, 20.0, 40.0)
    assert outage.seconds(41.0) == 1.0


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.CANCELLED])
def test_what_ran_out_of_time_says_nothing(status: Status) -> None:
    outage = Outage()
    run(outage, "a", "row-1", status, 0.0, 10.0)
    assert outage.seconds(20.0) == 0.0
    run(outage, "b", "row-1", Status.ENGINE_ERROR, 0.0, 30.0)
    run(outage, "c", "row-1", status, 30.0, 35.0)
    assert outage.seconds(40.0) == 10.0


def test_waits_grow_with_the_outage_and_are_spread() -> None:
    low, high = Outage(dice=lambda: 0.0), Outage(dice=lambda: 1.0)
    for outage in (low, high):
        run(outage, "a", "row-1", Status.ENGINE_ERROR, 0.0, 0.0)
    times = (0.0, 1.0, 8.0, 60.0, 120.0, 1000.0)
    assert [high.wait(now) for now in times] == [0.5, 0.5, 2.0, 15.0, 30.0, 30.0]
    assert [low.wait(now) for now in times] == [0.25, 0.25, 1.0, 7.5, 15.0, 15.0]


def test_five_minutes_take_few_tries() -> None:
    outage, now, tries = Outage(dice=lambda: 0.5), 0.0, 0
    run(outage, "a", "row-1", Status.ENGINE_ERROR, 0.0, 0.0)
    while outage.seconds(now) < 300:
        now += outage.wait(now)
        tries += 1
    assert 15 <= tries <= 40


def test_a_rollout_that_lasts_much_longer_than_the_failed_ones_is_no_outage() -> None:
    outage = Outage()
    outage.started("long", 0.0)
    run(outage, "a", "row-1", Status.SESSION_LOST, 0.0, 10.0)
    assert outage.seconds(20.0) == 10.0  # it may fail yet
    assert outage.seconds(22.0) == 0.0
    outage.left("long")
    assert outage.seconds(22.0) == 12.0


def test_failures_that_take_long_are_an_outage_all_the_same() -> None:
    """Nobody answers, and every rollout needs two minutes to find out."""
    outage = Outage()
    for number in range(32):
        outage.started(str(number), number * 4.0)
    for number in range(32):
        outage.ended(str(number), f"row-{number}", Status.SESSION_LOST, 120 + number * 4.0)
        outage.started(f"again {number}", 130 + number * 4.0)
    assert outage.seconds(120 + 200.0) == 200.0


def test_in_an_outage_no_failure_is_the_rows() -> None:
    outage = Outage()
    run(outage, "fine", "row-0", Status.COMPLETED, 0.0, 9.9)
    for number in range(8):
        run(outage, str(number), f"row-{number % 2}", Status.SESSION_LOST, 0.0, 10.0)
    for now in (10.5, 30.0, 200.0):
        assert not outage.is_of_the_row("row-0", now, patience=10.0)


def test_of_failures_at_once_none_is_the_first_rows() -> None:
    """The failures of one row may all be noticed before those of another."""
    outage = Outage()
    run(outage, "a", "row-1", Status.SESSION_LOST, 0.0, 10.0)
    assert not outage.is_of_the_row("row-1", 10.5, patience=10.0)


def test_a_row_that_fails_alone_for_long_does_so_by_its_own_doing() -> None:
    outage = Outage()
    run(outage, "a", "row-1", Status.SESSION_LOST, 0.0, 10.0)
    assert outage.is_of_the_row("row-1", 20.0, patience=10.0)
    run(outage, "b", "row-2", Status.SESSION_LOST, 20.0, 21.0)
    assert not outage.is_of_the_row("row-1", 22.0, patience=10.0)


def test_rows_that_fail_while_others_go_on_do_so_by_their_own_doing() -> None:
    outage = Outage()
    outage.started("long", 0.0)
    for row in ("row-1", "row-2"):
        run(outage, row, row, Status.SESSION_LOST, 9.0, 10.0)
    assert not outage.is_of_the_row("row-1", 19.0, patience=10.0)
    assert outage.is_of_the_row("row-1", 20.0, patience=10.0)


def test_outages_are_counted() -> None:
    outage = Outage()
    numbers = []
    for status in (*DOWN, Status.TIMEOUT, Status.COMPLETED, Status.COMPLETED, Status.SESSION_LOST, Status.AGENT_ERROR):
        run(outage, "a", "row-1", status, 0.0, 1.0)
        numbers.append(outage.number)
    assert numbers == [0, 0, 0, 1, 1, 1, 2]
