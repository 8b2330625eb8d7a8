"""The pacer on a virtual clock: the cap in every window, the use of a quota, throttles and recovery; and how many
sessions are asked for on a runtime that is full."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.client.runtimes.pacing import (
    FIRST_WAIT,
    LONGEST_HOLD,
    LONGEST_WAIT,
    THROTTLES,
    Admission,
    Pacer,
)
from agentcore_rl_toolkit.errors import ConfigError

rates = st.floats(0.2, 500)


def reserve_all(pacer: Pacer, now: float, count: int) -> list[float]:
    return [pacer.reserve(now) for _ in range(count)]


def throttle(pacer: Pacer, now: float, retry_after: float | None = None) -> None:
    """As many throttles as it takes."""
    for _ in range(THROTTLES):
        pacer.throttled(now, retry_after)


def most_above(slots: list[float], rate: float) -> float:
    """The largest surplus over `rate` · window, over all windows: each begins at one slot and ends at another."""
    best, lead = 0.0, -math.inf
    for i, slot in enumerate(slots):
        lead = max(lead, rate * slot - i)
        best = max(best, i + 1 - rate * slot + lead)
    return best


# The cap, the order, the spread


@given(
    rate=rates,
    steps=st.lists(
        st.tuples(
            st.one_of(st.just(0.0), st.floats(0, 0.1), st.floats(0, 20)),
            st.sampled_from(["reserve"] * 6 + ["throttled", "held", "succeeded"]),
        ),
        max_size=120,
    ),
)
def test_no_window_holds_more_than_the_cap_and_slots_are_in_order(rate: float, steps: list[tuple[float, str]]) -> None:
    pacer, now, slots = Pacer(rate), 0.0, []
    for pause, step in steps:
        now += pause
        if step == "reserve":
            slots.append(pacer.reserve(now))
            assert slots[-1] >= now
        elif step == "succeeded":
            pacer.succeeded(now)
        else:
            pacer.throttled(now, 1.5 if step == "held" else None)
        assert 0 < (pacer.rate or 0) <= rate
    assert slots == sorted(slots)
    assert most_above(slots, rate) <= 1 + 1e-6


def test_slots_taken_at_once_are_spread_evenly() -> None:
    assert reserve_all(Pacer(25), 7.0, 4) == pytest.approx([7.0, 7.04, 7.08, 7.12])


def test_a_late_caller_does_not_lose_its_quota() -> None:
    """A timer that fires 30 ms late, every time, still leaves 25 a second."""
    pacer, now = Pacer(25), 0.0
    for _ in range(1001):
        slot = pacer.reserve(now)
        now = slot + 0.03
    assert slot == pytest.approx(1000 / 25)


@pytest.mark.parametrize(("rate", "slots"), [(10, [5.0, 5.1]), (None, [5.0, 5.0])])
def test_a_clock_that_steps_back_does_not_reorder(rate: float | None, slots: list[float]) -> None:
    pacer = Pacer(rate)
    assert [pacer.reserve(5.0), pacer.reserve(4.0)] == pytest.approx(slots)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"rate": 0}, "the rate must be above 0 requests a second, not 0\nhint: None means no limit"),
        ({"rate": -1}, "the rate must be above 0"),
        ({"rate": math.nan}, "the rate must be above 0"),
        ({"rate": math.inf}, "the rate must be above 0"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Pacer(**arguments)


# Throttles and recovery


def test_throttles_halve_the_rate_once_per_round_trip() -> None:
    pacer = Pacer(24)
    for now in (10.0, 10.1, 10.9):
        throttle(pacer, now)
    assert pacer.rate == 12
    throttle(pacer, 11.0)
    assert pacer.rate == 6


@pytest.mark.parametrize(("successes", "rate"), [(8, 12), (9, 24)])
def test_a_throttle_in_nine_requests_is_put_up_with(successes: int, rate: float) -> None:
    pacer = Pacer(24)
    for _ in range(1000):
        pacer.throttled(10.0)
        if pacer.rate != 24:
            break
        for _ in range(successes):
            pacer.succeeded(10.0)
    assert pacer.rate == rate


def test_few_throttles_hold_nobody_else() -> None:
    pacer = Pacer(10)
    for _ in range(THROTTLES - 1):
        pacer.throttled(1.0, retry_after=30)
    assert reserve_all(pacer, 1.0, 2) == pytest.approx([1.0, 1.1])


@pytest.mark.parametrize(("rate", "floor"), [(25, 1.0), (8, 0.5), (None, 1.0)])
def test_the_rate_has_a_floor(rate: float | None, floor: float) -> None:
    pacer = Pacer(rate)
    for now in range(100):
        throttle(pacer, 2.0 * now)
    assert pacer.rate == floor


def test_slots_already_taken_keep_their_time_and_later_ones_are_pushed() -> None:
    pacer = Pacer(10)
    taken = reserve_all(pacer, 0, 3)
    assert taken == pytest.approx([0.0, 0.1, 0.2])
    throttle(pacer, 0.05)
    assert reserve_all(pacer, 0.05, 2) == pytest.approx([0.4, 0.6])  # 5 a second from the last one taken


def test_retry_after_holds_every_later_slot() -> None:
    pacer = Pacer(10)
    throttle(pacer, 1.0, retry_after=3)
    assert reserve_all(pacer, 1.1, 2) == pytest.approx([4.2, 4.4])


def test_the_longest_hold_wins_even_within_one_round_trip() -> None:
    pacer = Pacer(10)
    for now, seconds in ((1.0, 2), (1.1, 9), (1.2, 1)):
        throttle(pacer, now, retry_after=seconds)
    assert pacer.rate == 5
    assert pacer.reserve(1.3) == pytest.approx(10.3)


def test_a_hold_is_bounded_and_never_pulls_the_line_forward() -> None:
    pacer = Pacer(1)
    throttle(pacer, 0.0, retry_after=86_400)
    assert pacer.reserve(0.0) == pytest.approx(LONGEST_HOLD + 2)
    last = reserve_all(pacer, 0.0, 100)[-1]
    throttle(pacer, 0.5, retry_after=86_400)
    assert pacer.reserve(0.5) > last


def test_a_hold_saves_nothing_up() -> None:
    pacer = Pacer(10)
    throttle(pacer, 1.0)
    pacer.succeeded(1.9)
    throttle(pacer, 1.95, retry_after=1)
    slot = 2.95 + 1 / (pacer.rate or 0)
    assert pacer.reserve(2.0) == pytest.approx(slot)


def seconds_to_recover(pacer: Pacer, now: float, limit: float | None) -> float:
    start = now
    while pacer.rate != limit:
        now = pacer.reserve(now)
        pacer.succeeded(now)
    return now - start


@pytest.mark.parametrize("rate", [2, 25, 400])
def test_successes_at_full_load_bring_half_the_rate_back_in_10_to_20_seconds(rate: float) -> None:
    pacer = Pacer(rate)
    throttle(pacer, 0.0)
    assert 10 <= seconds_to_recover(pacer, 0.0, rate) <= 20


def test_time_alone_recovers_nothing() -> None:
    pacer = Pacer(25)
    throttle(pacer, 0.0)
    pacer.reserve(1000.0)
    assert pacer.rate == 12.5


# Without a limit


def test_without_a_limit_nothing_waits() -> None:
    assert set(reserve_all(Pacer(None), 3.0, 1000)) == {3.0}


@given(rate=st.floats(5, 300))
def test_without_a_limit_a_throttle_halves_the_rate_of_late(rate: float) -> None:
    pacer = Pacer(None)
    for i in range(int(rate * 10)):
        pacer.reserve(i / rate)
    throttle(pacer, 10.0)
    assert (pacer.rate or 0) == pytest.approx(rate / 2, abs=0.8)


def test_the_rate_of_long_ago_does_not_count() -> None:
    pacer = Pacer(None)
    reserve_all(pacer, 0.0, 1000)
    throttle(pacer, 60.0)
    assert pacer.rate == 1.0


def test_without_a_limit_one_that_is_no_use_is_lifted_again() -> None:
    pacer = Pacer(None)
    reserve_all(pacer, 0.0, 100)
    throttle(pacer, 0.1)
    assert 10 <= seconds_to_recover(pacer, 0.1, None) <= 60
    assert set(reserve_all(pacer, 100.0, 1000)) == {100.0}


# Against a server with a quota


@dataclass
class Server:
    """A token bucket that is refilled at `rate` and refuses what comes when it is empty."""

    rate: float
    depth: float
    tokens: float = 0
    at: float = 0

    def __post_init__(self) -> None:
        self.tokens = self.depth

    def change(self, now: float, rate: float) -> None:
        self.take(now, 0)
        self.rate, self.depth = rate, rate

    def take(self, now: float, count: float = 1) -> bool:
        self.tokens, self.at = min(self.depth, self.tokens + self.rate * (now - self.at)), now
        accepted = self.tokens >= count
        self.tokens -= count if accepted else 0
        return accepted


@dataclass
class Traffic:
    """A client that always has one more request to send, waits for one slot at a time, and reports how it went."""

    pacer: Pacer
    server: Server
    retry_after: float | None = None
    round_trip: float = 0.2
    busy: float = 0
    """Seconds the client needs between two requests, so that no limit does not mean infinitely many."""
    accepted: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def run(self, until: float, changes: Iterable[tuple[float, float]] = ()) -> None:
        network, order = random.Random(0), itertools.count()
        events: list[tuple[float, int, Callable[[float], None]]] = []

        def at(time: float, event: Callable[[float], None]) -> None:
            heapq.heappush(events, (time, next(order), event))

        def send(now: float) -> None:
            at(now + network.uniform(0, self.round_trip), arrive)
            at(max(self.pacer.reserve(now), now + self.busy), send)

        def arrive(now: float) -> None:
            if self.server.take(now):
                self.accepted.append(now)
                at(now + self.round_trip / 2, self.pacer.succeeded)
            else:
                self.refused.append(now)
                at(now + self.round_trip / 2, lambda now: self.pacer.throttled(now, self.retry_after))

        for time, rate in changes:
            at(time, lambda now, rate=rate: self.server.change(now, rate))
        at(self.pacer.reserve(0.0), send)
        while events[0][0] < until:
            now, _, event = heapq.heappop(events)
            event(now)

    def use(self, start: float, end: float, rate: float) -> float:
        """The share of a quota that was used from `start` to `end`."""
        return sum(start <= t < end for t in self.accepted) / (rate * (end - start))

    def refusals(self, start: float, end: float) -> int:
        return sum(start <= t < end for t in self.refused)


def test_a_quota_of_25_is_used_to_98_percent_without_a_throttle() -> None:
    server = Server(rate=25, depth=25)
    slots = reserve_all(Pacer(25), 0.0, 1000)
    assert all(server.take(slot) for slot in slots)
    assert 1000 / (25 * (slots[-1] - slots[0] + 1 / 25)) >= 0.98


def test_a_quota_is_used_as_well_over_an_uneven_network() -> None:
    traffic = Traffic(Pacer(25), Server(25, 25))
    traffic.run(until=41)
    assert traffic.use(1, 41, 25) >= 0.98
    assert traffic.refused == []


@pytest.mark.parametrize("retry_after", [None, 0.5, 1.0])
def test_a_quota_that_drops_is_followed_down_and_up(retry_after: float | None) -> None:
    traffic = Traffic(Pacer(25), Server(25, 25), retry_after=retry_after)
    traffic.run(until=400, changes=[(50, 10), (250, 25)])
    assert traffic.use(60, 250, 10) >= 0.9
    assert traffic.refusals(50, 250) <= 0.07 * 10 * 200
    assert traffic.use(275, 400, 25) >= 0.97
    assert traffic.refusals(250, 400) == 0


@pytest.mark.parametrize("quota", [10, 30, 200])
def test_without_a_limit_a_quota_is_found_and_left_again(quota: float) -> None:
    traffic = Traffic(Pacer(None), Server(quota, quota), busy=0.002)
    traffic.run(until=160, changes=[(80, 10_000)])
    assert traffic.use(10, 80, quota) >= 0.93
    assert traffic.refusals(10, 80) <= 0.06 * quota * 70
    assert traffic.pacer.rate is None
    assert traffic.use(150, 160, 500) >= 0.98


@dataclass
class Unreliable:
    """Refuses some requests for no reason that the rate could change."""

    share: float
    dice: random.Random

    def take(self, now: float, count: float = 1) -> bool:
        return self.dice.random() >= self.share


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("rate", "busy", "reached"), [(25, 0, 25), (5, 0, 5), (None, 0.01, 100)])
@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_one_refusal_in_25_costs_little_more_than_itself(
    rate: float | None, busy: float, reached: float, retry_after: float | None, seed: int
) -> None:
    server: Any = Unreliable(0.04, random.Random(seed))
    traffic = Traffic(Pacer(rate), server, retry_after=retry_after, busy=busy)
    traffic.run(until=200)
    assert traffic.use(0, 200, reached) >= 0.93


# Sessions


def fill(admission: Admission, fits: int, asked: int) -> None:
    """Ask for `asked` sessions at once, at time 0, of a runtime that has `fits`."""
    for number in range(asked):
        assert admission.next_start(0.0) == 0.0
        admission.start(str(number), 0.0)
    for number in range(asked):
        if number < fits:
            admission.accepted(str(number))
        else:
            admission.refused(str(number), 0.0)


def test_nothing_waits_before_the_first_refusal() -> None:
    admission = Admission()
    fill(admission, fits=1000, asked=1000)
    assert admission.next_start(5.0) == 5.0


def test_a_full_runtime_is_asked_for_no_more_than_it_holds() -> None:
    admission = Admission()
    fill(admission, fits=3, asked=10)
    assert admission.next_start(0.1) == FIRST_WAIT
    admission.ended("0")
    assert admission.next_start(0.1) == 0.1
    admission.start("again", 0.1)
    assert admission.next_start(0.1) == FIRST_WAIT
    admission.accepted("again")
    assert admission.next_start(0.2) == FIRST_WAIT  # as many as before, so nothing says that there is more


def test_tries_come_less_often_while_they_are_refused() -> None:
    admission, now, waits = Admission(), 0.0, []
    fill(admission, fits=1, asked=2)
    for _ in range(7):
        waits.append(admission.next_start(now) - now)
        now = admission.next_start(now)
        admission.start("try", now)
        assert admission.next_start(now) > now  # one at a time
        admission.refused("try", now)
    assert waits == [1.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_what_others_have_left_is_taken_twice_as_fast_each_time() -> None:
    admission, now, waves = Admission(), FIRST_WAIT, []
    fill(admission, fits=1, asked=2)
    for wave in range(5):
        count = 0
        while admission.next_start(now) == now:
            admission.start(f"{wave}.{count}", now)
            count += 1
        waves.append(count)
        for number in range(count):
            admission.accepted(f"{wave}.{number}")
    assert waves == [1, 1, 2, 4, 8]


@pytest.mark.parametrize(("said", "waited"), [(None, FIRST_WAIT), (0.1, FIRST_WAIT), (4.0, 4.0), (600.0, LONGEST_WAIT)])
def test_the_runtime_may_say_when_to_ask_again(said: float | None, waited: float) -> None:
    admission = Admission()
    admission.start("a", 2.0)
    admission.refused("a", 2.0, said)
    assert admission.next_start(2.0) == 2.0 + waited


@given(
    fits=st.integers(0, 6),
    steps=st.lists(st.tuples(st.sampled_from(["ask", "answer", "end", "wait"]), st.integers(0, 9)), max_size=80),
)
def test_it_never_stops_asking_and_never_counts_wrong(fits: int, steps: list[tuple[str, int]]) -> None:
    """Whatever happens in whichever order, the next try comes within the longest wait, and ended sessions are free."""
    admission, now, number = Admission(), 0.0, 0
    asked: list[str] = []
    running: list[str] = []
    for step, which in steps:
        if step == "ask" and admission.next_start(now) == now:
            number += 1
            asked.append(str(number))
            admission.start(asked[-1], now)
        elif step == "answer" and asked:
            session = asked.pop(which % len(asked))
            if len(running) < fits:
                running.append(session)
                admission.accepted(session)
            else:
                admission.refused(session, now)
        elif step == "end" and running:
            admission.ended(running.pop(which % len(running)))
        else:
            now += which / 3
        assert now <= admission.next_start(now) <= now + LONGEST_WAIT
        assert admission.running == len(running)
