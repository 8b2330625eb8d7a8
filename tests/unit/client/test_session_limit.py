"""How many sessions run at the same time: rules of one look, and a simulated engine that is kept full."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.client.session_limit import FIRST, SessionLimit, check_concurrency
from agentcore_rl_toolkit.engine.base import EngineLoad
from agentcore_rl_toolkit.errors import ConfigError


def auto(most: int) -> SessionLimit:
    limit = SessionLimit("auto")
    limit.observe({str(number): EngineLoad(0.0, 0, 0) for number in range(4)}, running=0, ended=0)
    limit.most = most
    return limit


def load(kv: float, waiting: int = 0, preempted: int = 0) -> dict[str, EngineLoad]:
    return {"a": EngineLoad(kv, 100, waiting, preempted)}


def test_each_session_that_ends_lets_another_start_while_the_caches_have_room() -> None:
    limit = auto(100)
    limit.observe(load(0.5), running=100, ended=10)
    assert limit.most == 110
    limit.observe(load(0.5), running=110, ended=10)
    assert limit.most == 110
    limit.observe(load(0.8), running=110, ended=500)
    assert limit.most == 116  # that fill 85 % of the cache


@pytest.mark.parametrize(
    ("seen", "running"),
    [
        pytest.param(load(0.5), 50, id="half of the sessions run, as in a runtime that is full"),
        pytest.param(load(0.87), 100, id="the cache is nearly full"),
        pytest.param(load(0.5, waiting=10), 100, id="requests wait"),
        pytest.param({}, 100, id="nobody tells"),
    ],
)
def test_it_stays(seen: dict[str, EngineLoad], running: int) -> None:
    limit = auto(100)
    limit.observe(seen, running, ended=50)
    assert limit.most == 100


@pytest.mark.parametrize(("seen", "most"), [(load(0.95), 89), (load(0.1, waiting=300), 37)])
def test_it_falls_when_a_cache_is_full_or_many_requests_wait(seen: dict[str, EngineLoad], most: int) -> None:
    limit = auto(100)
    for _ in range(5):  # those that run are not ended, and the same load lowers it once
        limit.observe(seen, running=100, ended=0)
        assert limit.most == most


def test_the_fullest_engine_counts() -> None:
    limit = auto(100)
    limit.observe(load(0.1) | {"b": EngineLoad(0.99, 10, 0)}, running=100, ended=0)
    assert limit.most < 100


def test_requests_that_an_engine_gave_up_lower_it_and_make_it_careful() -> None:
    limit = auto(100)
    limit.observe(load(0.5, preempted=7), running=20, ended=0)  # from before
    assert limit.most == 100
    limit.observe(load(0.5, preempted=8), running=100, ended=0)
    assert limit.most == 85
    limit.observe(load(0.5, preempted=8), running=85, ended=40)
    assert limit.most == 89


def test_an_engine_that_restarts_or_joins_has_given_up_nothing() -> None:
    limit = auto(100)
    for seen in (load(0.5, preempted=7), load(0.5, preempted=2), load(0.5) | {"b": EngineLoad(0.5, 1, 0, 9)}):
        limit.observe(seen, running=20, ended=0)
        assert limit.most == 100


def test_it_begins_with_so_many_for_each_engine() -> None:
    limit = SessionLimit("auto")
    limit.observe({name: EngineLoad(0.1, 1, 0) for name in "abcd"}, running=FIRST, ended=0)
    assert limit.most == 4 * FIRST


def test_a_number_stays_what_it_is() -> None:
    limit = SessionLimit(7)
    limit.observe(load(0.1), running=7, ended=100)
    limit.observe(load(0.99, preempted=3), running=7, ended=200)
    assert limit.most == 7


@given(st.lists(st.tuples(st.floats(0, 1), *[st.integers(0, 500)] * 4), max_size=60))
def test_there_is_always_at_least_one(looks: list[tuple[float, int, int, int, int]]) -> None:
    limit = SessionLimit("auto")
    for kv, waiting, preempted, running, ended in looks:
        limit.observe(load(kv, waiting, preempted), running, ended)
        assert limit.most >= 1


@pytest.mark.parametrize("takes", [1, 5, 20, 100])
@pytest.mark.parametrize("room", [400, 4000])
def test_an_engine_is_kept_full_and_gives_up_hardly_any_request(room: int, takes: int) -> None:
    """Sessions take more of the cache from look to look, until they end."""
    dice, limit, ended = random.Random(0), SessionLimit("auto"), 0
    sessions = [dice.randrange(takes) for _ in range(FIRST)]
    preempted, shares = 0, list[float]()
    for _ in range(20 * takes + 200):
        left = [age + 1 for age in sessions if age < dice.uniform(0.5, 1.5) * takes]
        ended += len(sessions) - len(left)
        sessions = left + [0] * (limit.most - len(left))
        shares.append(sum(age / takes for age in sessions) / room)
        preempted += shares[-1] > 1
        limit.observe({"a": EngineLoad(min(shares[-1], 1.0), len(sessions), 0, preempted)}, len(sessions), ended)
    late = shares[len(shares) // 2 :]
    assert 0.65 < sum(late) / len(late) < 0.95
    assert sum(share > 1 for share in late) <= 0.03 * len(late)


@pytest.mark.parametrize("wrong", [0, -1, True, "many", 2.5, None])
def test_it_is_a_number_or_auto(wrong: object) -> None:
    with pytest.raises(ConfigError, match="concurrency must be"):
        check_concurrency(wrong)
    assert check_concurrency("auto") == FIRST
