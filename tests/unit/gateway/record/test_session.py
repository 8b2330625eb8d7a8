"""A session: its settings, what they do to a call's sampling, and the answers it remembers."""

from __future__ import annotations

import asyncio
import time
from array import array
from typing import Any

import pytest

from agentcore_rl_toolkit.engine.base import IDS, Sampling
from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.record.session import CallAnswer, Session, read_settings
from agentcore_rl_toolkit.gateway.wire.openai.sampling import read_sampling


def session(**settings: Any) -> Session:
    return Session(read_settings(settings), "key", 0.0)


def test_an_id_is_made_where_none_is_given():
    one, other = read_settings({}).session_id, read_settings({"session_id": None}).session_id
    assert one != other
    assert len(one) == 24


@pytest.mark.parametrize("session_id", ["a", "A-b_c~d:e@f=9", "x" * 128])
def test_ids_that_fit_into_a_url(session_id: str):
    assert read_settings({"session_id": session_id}).session_id == session_id


@pytest.mark.parametrize("session_id", ["", ".", "..", "a.b", "a/b", "a b", "é", "a\n", "a\0", "%2e", "x" * 129])
def test_ids_that_do_not(session_id: str):
    with pytest.raises(GatewayFault) as refused:
        read_settings({"session_id": session_id})
    assert refused.value.param == "session_id"


def test_what_is_not_set_is_left_to_the_call():
    asked = read_sampling({"temperature": 0.5, "stop": "x"})
    assert session().sampling(asked) is asked


def test_seeds_follow_from_prompts_and_not_from_their_order():
    first, second = array(IDS, [1, 2, 3]), array(IDS, [1, 2])
    one, other = session(seed=7), session(seed=7)
    seeds = [one.next_seed(prompt) for prompt in (first, second, first, second)]
    assert [other.next_seed(prompt) for prompt in (second, second, first, first)] == [seeds[i] for i in (1, 3, 0, 2)]
    assert len({*seeds, session(seed=8).next_seed(first)}) == 5
    assert session().next_seed(first) is None


def test_enforced_then_asked_then_default():
    one = session(
        sampling={"temperature": 0.1, "top_p": 0.2, "stop": ["d"], "seed": 0},
        enforced={"max_completion_tokens": 5, "top_p": 0.3, "ignore_eos": True},
    )
    got = one.sampling(read_sampling({"temperature": 0.0, "top_p": 1.0, "max_tokens": 99, "stop": "x"}, top_logprobs=2))
    assert got == Sampling(
        temperature=0.0, top_p=0.3, max_tokens=5, stop=("x",), seed=0, ignore_eos=True, top_logprobs=2
    )


OFF = {"top_k": 0, "stop": [], "stop_token_ids": [], "logit_bias": {}, "ignore_eos": False}
OFF |= {"response_format": {"type": "text"}, "repetition_penalty": 1.0}
ON = {"top_k": 5, "stop": ["x"], "stop_token_ids": [7], "logit_bias": {"5": 3}, "ignore_eos": True}
ON |= {"response_format": {"type": "json_object"}, "repetition_penalty": 1.2}


@pytest.mark.parametrize("name", OFF)
def test_off_is_a_setting_like_any_other(name: str):
    on, off = {name: ON[name]}, {name: OFF[name]}
    assert session(enforced=off).sampling(read_sampling(on)) == read_sampling(off) != read_sampling(on)
    assert session(sampling=on).sampling(read_sampling(off)) == read_sampling(off)
    assert session(sampling=on, enforced=off).sampling(read_sampling({})) == read_sampling(off)
    assert session(sampling=off, enforced=on).sampling(read_sampling(off)) == read_sampling(on)
    assert session(sampling=on).sampling(read_sampling({name: None})) == read_sampling(on)


def test_time_to_live_counts_from_the_last_use():
    one = session(ttl_seconds=10)
    assert 9 < one.idle_until_expired <= 10
    one.used -= 10
    assert one.idle_until_expired < 0


def test_a_clock_that_is_set_expires_nothing(monkeypatch: pytest.MonkeyPatch):
    one, now = session(ttl_seconds=10), time.time()
    for jump in (-1e6, 1e6):
        monkeypatch.setattr(time, "time", lambda jump=jump: now + jump)
        assert 9 < one.idle_until_expired <= 10


def test_the_latest_answers_are_remembered_and_those_in_flight_never_forgotten():
    async def run() -> None:
        one = session()
        running = CallAnswer(0, "running", "m", b"running")
        one.remember_answer(running)
        for number in range(100):
            answer = CallAnswer(0, str(number), "m", b"%d" % number)
            answer.done.set()
            one.remember_answer(answer)
        assert one.answers[b"running"] is running
        assert b"99" in one.answers
        assert b"0" not in one.answers
        assert len(one.answers) < 20

    asyncio.run(run())


def test_an_answer_is_whole_when_it_ended_well():
    async def run() -> None:
        answer = CallAnswer(0, "u", "m", b"r")
        assert not answer.whole
        answer.done.set()
        assert not answer.whole  # it failed
        answer.outcomes = [None]  # type: ignore[list-item]
        assert answer.whole
        answer.choices = 2
        assert not answer.whole  # a kill cut off the other one

    asyncio.run(run())
