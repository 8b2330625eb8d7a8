"""The scripted engine does as it is told, faults included."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from agentcore_rl_toolkit.engine import IDS, Sampled, SampleRequest, Sampling
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine, logprob_of
from agentcore_rl_toolkit.errors import EngineError
from support.loop import LoopThread, loop_thread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with loop_thread() as thread:
        yield thread


def wish(ids: tuple[int, ...] = (1, 2), stream: bool = True, **sampling: Any) -> SampleRequest:
    return SampleRequest(array(IDS, ids), Sampling(**sampling), stream=stream)


def test_a_list_is_sorted(loop: LoopThread) -> None:
    engine = ScriptedEngine([[5, 6], [7]], chunk=1)
    first, second = (loop.collect(engine.sample(wish())) for _ in range(2))
    assert first == [Sampled([5], [logprob_of(5)]), Sampled([6], [logprob_of(6)], "stop")]
    assert second == [Sampled([7], [logprob_of(7)], "stop")]
    with pytest.raises(EngineError, match="has 2 answers, this is request 3"):
        loop.collect(engine.sample(wish()))
    assert len(engine.requests) == 3


def test_a_callable_sees_the_request(loop: LoopThread) -> None:
    engine = ScriptedEngine(lambda request: list(request.prompt), weight_version="v")
    (got,) = loop.collect(engine.sample(wish((8, 9), stream=False)))
    assert (got.token_ids, got.weight_version) == ([8, 9], "v")


def test_an_empty_answer_still_ends(loop: LoopThread) -> None:
    assert loop.collect(ScriptedEngine([[]]).sample(wish())) == [Sampled([], [], "stop")]


def test_faults(loop: LoopThread) -> None:
    dies = EngineError("it died", sampled_any=True)
    engine = ScriptedEngine(
        [
            ScriptedLine([5, 6, 7], logprobs=[-0.1]),
            ScriptedLine([5, 6], logprobs=[math.nan, None]),
            ScriptedLine([5], finish="abort"),
            ScriptedLine([5, 6], fails=dies),
        ],
        chunk=2,
    )
    few = loop.collect(engine.sample(wish()))
    assert [item.logprobs for item in few] == [[-0.1], []]
    (odd,) = loop.collect(engine.sample(wish()))
    assert math.isnan(odd.logprobs[0] or 0)
    assert odd.logprobs[1] is None
    (aborted,) = loop.collect(engine.sample(wish()))
    assert aborted.finish == "abort"
    heard: list[Sampled] = []

    async def listen() -> None:
        async for item in engine.sample(wish()):
            heard.append(item)

    with pytest.raises(EngineError, match="it died"):
        loop.run(listen())
    assert heard == [Sampled([5, 6], [logprob_of(5), logprob_of(6)])]
    assert engine.aborted == []


def test_routes_tell_their_position(loop: LoopThread) -> None:
    engine = ScriptedEngine(lambda _: [5, 6, 7], routes_width=2)
    got = loop.collect(engine.sample(wish((1, 2, 3))))[-1]
    assert got.routes is not None
    assert got.routes.data == bytes([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    since = SampleRequest(array(IDS, [1, 2, 3]), Sampling(), routes_from=4)
    routes = loop.collect(engine.sample(since))[-1].routes
    assert routes == got.routes.starting_at(4)
