"""The SGLang engine: what it asks of its server, and what it makes of both kinds of stream, whole or broken."""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from agentcore_rl_toolkit.engine import IDS, Sampled, SampleRequest, Sampling
from agentcore_rl_toolkit.engine.remote.sglang import SglangEngine
from agentcore_rl_toolkit.errors import EngineError
from support.fake_sglang import FakeSglang
from support.loop import LoopThread, loop_thread
from support.raw_server import CLOSE, END, STREAM, RawServer, chunk, http

PROMPT = array(IDS, [11, 12, 13])
STOP = {"type": "stop", "matched": 2}


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with loop_thread() as thread:
        yield thread


def wish(stream: bool = True, **sampling: Any) -> SampleRequest:
    return SampleRequest(PROMPT, Sampling(**{"max_tokens": 9} | sampling), stream=stream)


def output(ids: list[int], sampled: int, finish: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    logprobs = [[-i / 10, i, None] for i in ids]
    said = {"completion_tokens": sampled, "finish_reason": finish, "output_token_logprobs": logprobs} | meta
    return {"text": "\u2028", "output_ids": ids, "meta_info": said}


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def sample(loop: LoopThread, *steps: bytes | float | str, request: SampleRequest | None = None) -> list[Sampled]:
    with RawServer(list(steps), [http(b"null")]).serving() as server:
        engine = SglangEngine(server.url, timeout=5)
        try:
            return loop.collect(engine.sample(request or wish()))
        finally:
            loop.run(engine.close())


def test_all_settings_reach_the_server(loop: LoopThread) -> None:
    sampling = Sampling(
        max_tokens=4, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, stop=("a",), stop_token_ids=(4,),
        presence_penalty=0.1, frequency_penalty=0.2, repetition_penalty=1.1, logit_bias=((8, -1.5),), min_tokens=2,
        ignore_eos=True, top_logprobs=3, json_schema={"type": "object"},
    )  # fmt: skip
    with FakeSglang().serving() as fake:
        engine = SglangEngine(fake.url, api_key="secret")
        loop.collect(engine.sample(SampleRequest(PROMPT, sampling, model="mine", routes_from=1)))
        loop.run(engine.close())
    body = next(body for path, body in fake.requests if path == "/generate")
    assert len(body.pop("rid")) == 32
    assert body == {
        "input_ids": [11, 12, 13], "stream": True, "return_logprob": True, "top_logprobs_num": 3, "lora_path": "mine",
        "return_routed_experts": True, "routed_experts_start_len": 1,
        "sampling_params": {
            "max_new_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "sampling_seed": 3,
            "stop": ["a"], "stop_token_ids": [4], "presence_penalty": 0.1, "frequency_penalty": 0.2,
            "repetition_penalty": 1.1, "logit_bias": {"8": -1.5}, "min_new_tokens": 2, "ignore_eos": True,
            "json_schema": '{"type":"object"}',
        },
    }  # fmt: skip
    assert fake.headers[0]["authorization"] == "Bearer secret"


def test_any_json_and_all_of_the_vocabulary_have_their_own_words(loop: LoopThread) -> None:
    with FakeSglang().serving() as fake:
        engine = SglangEngine(fake.url)
        loop.collect(engine.sample(wish(top_k=0, json_schema={})))
        loop.run(engine.close())
    params = fake.requests[0][1]["sampling_params"]
    assert params == {"max_new_tokens": 9, "top_k": -1, "json_schema": '{"type":"object"}'}


def test_a_stream_that_repeats_itself(loop: LoopThread) -> None:
    events = [event(output(list(range(1, n + 1)), n, STOP if n == 4 else None)) for n in range(1, 5)]
    got = sample(loop, STREAM, chunk(events[0]), 0.3, chunk(events[1] + events[2]), 0.3, chunk(events[3]) + END)
    assert [item.token_ids for item in got] == [[1], [2, 3], [4]]
    assert [item.logprobs for item in got] == [[-0.1], [-0.2, -0.3], [-0.4]]
    assert got[-1].finish == "stop"


def test_a_stream_that_does_not(loop: LoopThread) -> None:
    events = [event(output([n], n, STOP if n == 4 else None)) for n in range(1, 5)]
    got = sample(loop, STREAM, chunk(events[0]), 0.3, chunk(events[1] + events[2]), 0.3, chunk(events[3]) + END)
    assert [item.token_ids for item in got] == [[1], [2, 3], [4]]
    assert [item.logprobs for item in got] == [[-0.1], [-0.2, -0.3], [-0.4]]


def test_a_stream_with_a_hole_is_an_error(loop: LoopThread) -> None:
    events = event(output([1], 1)), event(output([3], 3, STOP))
    with pytest.raises(EngineError, match="left out 1 tokens") as caught:
        sample(loop, STREAM, chunk(events[0]), 0.2, chunk(events[1]) + END)
    assert caught.value.sampled_any


@pytest.mark.parametrize(
    ("logprobs", "kept"),
    [
        ([[-0.1, 1, None], [None, 2, None], [-0.3, 3, None]], [-0.1, None, -0.3]),
        ([[-0.1, 1, None], [float("nan"), 2, None], [float("-inf"), 3, None]], [-0.1, None, None]),
        ([[-0.1, 1, None], [-0.2, 2, None]], [-0.1, -0.2, None]),
        ([[-0.2, 2, None], [-0.3, 3, None]], [None, None, None]),
        ([[-0.1, 1, None], [-0.9, 9, None], [-0.3, 3, None]], [-0.1, None, None]),
        ([], [None, None, None]),
        (None, [None, None, None]),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_logprob_is_at_its_token_or_nowhere(
    loop: LoopThread, logprobs: Any, kept: list[float | None], stream: bool
) -> None:
    said = output([1, 2, 3], 3, STOP, output_token_logprobs=logprobs)
    if stream:
        got = sample(loop, STREAM + chunk(event(output([1], 1))), 0.2, chunk(event(said)) + END)
        assert [token for item in got for token in item.token_ids] == [1, 2, 3]
        assert [logprob for item in got for logprob in item.logprobs][1:] == kept[1:]
    else:
        (whole,) = sample(loop, http(json.dumps(said).encode()), request=wish(stream=False))
        assert whole.logprobs == kept


@pytest.mark.parametrize("start", [None, 0, 2])
def test_routes_cover_all_but_the_last_token(loop: LoopThread, start: int | None) -> None:
    covered = 3 + 2 - 1 - (start or 0)
    routes = np.arange(covered * 6, dtype="<i4") + 250
    said = output([1, 2], 2, STOP, routed_experts=base64.b64encode(routes.tobytes()).decode())
    request = SampleRequest(PROMPT, Sampling(max_tokens=2), stream=False, routes_from=start)
    (got,) = sample(loop, http(json.dumps(said).encode()), request=request)
    assert got.routes is not None
    assert (got.routes.start, got.routes.count, got.routes.width) == (start or 0, covered, 6)
    assert got.routes.itemsize == 2
    assert np.array_equal(np.frombuffer(got.routes.data, "<u2"), routes)


def test_routes_of_another_shape_are_left_out(loop: LoopThread) -> None:
    said = output([1, 2], 2, STOP, routed_experts=base64.b64encode(b"\0" * 20).decode())
    (got,) = sample(loop, http(json.dumps(said).encode()), request=wish(stream=False))
    assert got.routes is None


def test_the_weight_version_of_each_item(loop: LoopThread) -> None:
    events = event(output([1], 1, weight_version="a")), event(output([1, 2], 2, STOP, weight_version="b"))
    got = sample(loop, STREAM, chunk(events[0]), 0.2, chunk(events[1]) + END)
    assert [item.weight_version for item in got] == ["a", "b"]


def test_an_abort_is_a_finish_unless_it_was_an_error(loop: LoopThread) -> None:
    abort = {"type": "abort", "message": "Aborted", "status_code": None}
    (got,) = sample(loop, STREAM + chunk(event(output([1], 1, abort))) + END)
    assert got.finish == "abort"
    with pytest.raises(EngineError, match="bad grammar") as caught:
        sample(loop, STREAM + chunk(event(output([], 0, abort | {"message": "bad grammar", "status_code": 400}))) + END)
    assert caught.value.status == 400
    assert not caught.value.sampled_any


@pytest.mark.parametrize("first", [[], [event(output([1], 1))]])
def test_an_error_inside_a_stream(loop: LoopThread, first: list[bytes]) -> None:
    error = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
    with pytest.raises(EngineError, match="out of memory") as caught:
        sample(loop, STREAM + chunk(b"".join(first) + error) + END)
    assert caught.value.sampled_any == bool(first)


def test_a_server_that_dies_in_the_middle(loop: LoopThread) -> None:
    with pytest.raises(EngineError, match="middle of an answer") as caught:
        sample(loop, STREAM + chunk(event(output([1], 1))), 0.1, CLOSE)
    assert caught.value.sampled_any


def test_a_stream_without_a_finish_reason_is_not_a_turn(loop: LoopThread) -> None:
    with pytest.raises(EngineError, match="without a finish reason") as caught:
        sample(loop, STREAM + chunk(event(output([1], 1)) + b"data: [DONE]\n\n") + END)
    assert caught.value.sampled_any


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_given_up_is_named_to_the_server(loop: LoopThread, stream: bool) -> None:
    with FakeSglang(pace=0.05).serving() as fake:
        engine = SglangEngine(fake.url)
        with pytest.raises(TimeoutError):
            loop.run(anext(_last(engine.sample(wish(stream, max_tokens=400)))), seconds=0.3)
        loop.run(engine.close())
    rid = next(body["rid"] for path, body in fake.requests if path == "/generate")
    assert fake.aborts == [rid]


async def _last(items: Any) -> Any:
    async for item in items:
        last = item
    yield last


def test_what_ended_is_not_aborted(loop: LoopThread) -> None:
    with FakeSglang().serving() as fake:
        engine = SglangEngine(fake.url)
        loop.collect(engine.sample(wish()))
        with pytest.raises(EngineError):
            loop.collect(engine.sample(wish(max_tokens=4000)))
        loop.run(engine.close())
    assert fake.aborts == []


def test_pause_and_info(loop: LoopThread) -> None:
    with FakeSglang().serving() as fake:
        fake.weight_version = "7"
        fake.missing = {"/pause_generation"}
        engine = SglangEngine(fake.url)
        loop.run(engine.pause())
        info = loop.run(engine.info())
        loop.run(engine.close())
    assert (info.models, info.context_length, info.weight_version) == (("fake/model",), 512, "7")
    assert fake.requests[0] == ("/pause_generation", {"mode": "retract"})


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("ends", [None, STOP])
def test_tokens_after_the_finish_are_not_of_the_sequence(loop: LoopThread, repeats: bool, ends: Any) -> None:
    sent = [output([1], 1), output([1, 2] if repeats else [2], 2, STOP), output([1, 2, 3] if repeats else [3], 3, ends)]
    told = sample(loop, STREAM + b"".join(chunk(event(one)) for one in sent) + END)
    assert [token for part in told for token in part.token_ids] == [1, 2]
    assert told[-1].finish == "stop"
