"""How many sessions are asked for on a runtime that is full."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.client.admission import FIRST_WAIT, LONGEST_WAIT, Admission


def fill(admission: Admission, fits: int, asked: int) -> None:
    """Ask for `asked` sessions at once, at time 0, of a runtime that has `fits`."""
    for number in range(asked):
        assert admission.at(0.0) == 0.0
        admission.start(str(number), 0.0)
    for number in range(asked):
        (admission.accepted if number < fits else admission.refused)(str(number), 0.0)


def test_nothing_waits_before_the_first_refusal() -> None:
    admission = Admission()
    fill(admission, fits=1000, asked=1000)
    assert admission.at(5.0) == 5.0


def test_a_full_runtime_is_asked_for_no_more_than_it_holds() -> None:
    admission = Admission()
    fill(admission, fits=3, asked=10)
    assert admission.at(0.1) == FIRST_WAIT
    admission.ended("0")
    assert admission.at(0.1) == 0.1
    admission.start("again", 0.1)
    assert admission.at(0.1) == FIRST_WAIT
    admission.accepted("again", 0.2)
    assert admission.at(0.2) == FIRST_WAIT  # as many as before, so nothing says that there is more


def test_tries_come_less_often_while_they_are_refused() -> None:
    admission, now, waits = Admission(), 0.0, []
    fill(admission, fits=1, asked=2)
    for _ in range(7):
        waits.append(admission.at(now) - now)
        now = admission.at(now)
        admission.start("try", now)
        assert admission.at(now) > now  # one at a time
        admission.refused("try", now)
    assert waits == [1.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_what_others_have_left_is_taken_twice_as_fast_each_time() -> None:
    admission, now, waves = Admission(), FIRST_WAIT, []
    fill(admission, fits=1, asked=2)
    for wave in range(5):
        count = 0
        while admission.at(now) == now:
            admission.start(f"{wave}.{count}", now)
            count += 1
        waves.append(count)
        for number in range(count):
            admission.accepted(f"{wave}.{number}", now)
    assert waves == [1, 1, 2, 4, 8]


@pytest.mark.parametrize(("said", "waited"), [(None, FIRST_WAIT), (0.1, FIRST_WAIT), (4.0, 4.0), (600.0, LONGEST_WAIT)])
def test_the_runtime_may_say_when_to_ask_again(said: float | None, waited: float) -> None:
    admission = Admission()
    admission.start("a", 2.0)
    admission.refused("a", 2.0, said)
    assert admission.at(2.0) == 2.0 + waited


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
        if step == "ask" and admission.at(now) == now:
            number += 1
            asked.append(str(number))
            admission.start(asked[-1], now)
        elif step == "answer" and asked:
            session = asked.pop(which % len(asked))
            if len(running) < fits:
                running.append(session)
                admission.accepted(session, now)
            else:
                admission.refused(session, now)
        elif step == "end" and running:
            admission.ended(running.pop(which % len(running)))
        else:
            now += which / 3
        assert now <= admission.at(now) <= now + LONGEST_WAIT
        assert admission.running == len(running)
