"""The retry schedule, on a virtual clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import KeyNotFound, StoreError, StoreUnavailable
from agentcore_rl_toolkit.store.retry import FIRST_DELAY, LONGEST_DELAY, retry


class Clock:
    def __init__(self) -> None:
        self.now, self.sleeps = 0.0, []  # type: float, list[float]

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def failing(times: float, error: Exception) -> object:
    calls = iter(range(10**9))

    def call() -> str:
        if next(calls) < times:
            raise error
        return "done"

    return call


@given(st.integers(0, 12), st.integers())
def test_it_tries_until_it_succeeds_waiting_longer_each_time(failures: int, seed: int) -> None:
    clock, dice = Clock(), random.Random(seed)
    call = failing(failures, StoreUnavailable("down"))
    assert retry(call, seconds=1e6, clock=clock, sleep=clock.sleep, dice=dice.random) == "done"
    assert len(clock.sleeps) == failures
    for n, slept in enumerate(clock.sleeps):
        assert 0 <= slept <= min(FIRST_DELAY * 2**n, LONGEST_DELAY)


def test_the_waits_are_jittered_over_the_whole_range() -> None:
    firsts = []
    for seed in range(200):
        clock = Clock()
        retry(
            failing(1, StoreUnavailable("x")),
            seconds=9,
            clock=clock,
            sleep=clock.sleep,
            dice=random.Random(seed).random,
        )
        firsts += clock.sleeps
    assert min(firsts) < FIRST_DELAY * 0.1 < FIRST_DELAY * 0.9 < max(firsts)


def test_it_gives_up_at_the_deadline_and_not_before() -> None:
    clock = Clock()
    with pytest.raises(StoreUnavailable, match="down"):
        retry(failing(1e9, StoreUnavailable("down")), seconds=30, clock=clock, sleep=clock.sleep, dice=lambda: 1.0)
    assert clock.now == 30


def test_an_error_for_good_is_not_tried_again() -> None:
    clock = Clock()
    with pytest.raises(StoreError, match="denied"):
        retry(failing(1, StoreError("denied")), seconds=30, clock=clock, sleep=clock.sleep)
    assert clock.sleeps == []


def test_the_waits_double_up_to_a_ceiling_and_end_at_the_deadline() -> None:
    clock, told = Clock(), []
    error = StoreUnavailable("down")

    def call() -> None:
        raise error

    with pytest.raises(StoreUnavailable) as caught:
        retry(
            call,
            seconds=18.0,
            on_retry=lambda *args: told.append(args),
            clock=clock,
            sleep=clock.sleep,
            dice=lambda: 1.0,
        )
    assert caught.value is error
    assert clock.sleeps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 1.7])
    assert told == [(error, slept) for slept in clock.sleeps]


@pytest.mark.parametrize("error", [StoreError("denied"), KeyNotFound("none"), OSError("no"), ValueError("bug")])
def test_only_what_may_pass_is_tried_again(error: Exception) -> None:
    calls = []

    def call() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        retry(call, seconds=30, clock=(clock := Clock()), sleep=clock.sleep)
    assert len(calls) == 1
