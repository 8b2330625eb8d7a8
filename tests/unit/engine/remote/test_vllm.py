"""The vLLM engine: what it asks of its server, and what it makes of answers that are odd, broken or cut off."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from agentcore_rl_toolkit.engine import IDS, Sampled, SampleRequest, Sampling
from agentcore_rl_toolkit.engine.remote.payload import decode, encode, finite, match_logprobs, merge
from agentcore_rl_toolkit.engine.remote.vllm import VllmEngine
from agentcore_rl_toolkit.errors import ConfigError, EngineError
from support.fake_vllm import FakeVllm
from support.loop import LoopThread, loop_thread
from support.raw_server import CLOSE, END, STREAM, RawServer, chunk, http

PROMPT = array(IDS, [11, 12, 13])


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with loop_thread() as thread:
        yield thread


def wish(stream: bool = True, **sampling: Any) -> SampleRequest:
    return SampleRequest(PROMPT, Sampling(**{"max_tokens": 9} | sampling), stream=stream)


def choice(ids: list[int], logprobs: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    named = [f"token_id:{i}" for i in ids]
    told = logprobs if logprobs is None or isinstance(logprobs, dict) else {"token_logprobs": logprobs, "tokens": named}
    return {"index": 0, "text": "x", "token_ids": ids, "logprobs": told, "finish_reason": finish} | more


def event(*choices: dict[str, Any], **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": list(choices)} | more).encode() + b"\n\n"


def sample(loop: LoopThread, *steps: bytes | float | str, request: SampleRequest | None = None) -> list[Sampled]:
    """What the engine makes of a server that answers with `steps`."""
    with RawServer(list(steps)).serving() as server:
        engine = VllmEngine(server.url, timeout=5)
        try:
            return loop.collect(engine.sample(request or wish()))
        finally:
            loop.run(engine.close())


def test_all_settings_reach_the_server(loop: LoopThread) -> None:
    sampling = Sampling(
        max_tokens=4, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, stop=("a", "b"), stop_token_ids=(4, 5),
        presence_penalty=0.1, frequency_penalty=0.2, repetition_penalty=1.1, logit_bias=((8, -1.5),), min_tokens=2,
        ignore_eos=True, top_logprobs=3, json_schema={"type": "object"},
    )  # fmt: skip
    expected = {
        "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "stop": ["a", "b"],
        "stop_token_ids": [4, 5], "presence_penalty": 0.1, "frequency_penalty": 0.2, "repetition_penalty": 1.1,
        "logit_bias": {"8": -1.5}, "min_tokens": 2, "ignore_eos": True, "logprobs": 3,
        "structured_outputs": {"json": {"type": "object"}},
    }  # fmt: skip
    with FakeVllm().serving() as fake:
        fake.adapters["mine"] = "/x"
        engine = VllmEngine(fake.url + "/v1/", api_key="secret")
        loop.collect(engine.sample(SampleRequest(PROMPT, sampling, model="mine")))
        engine.mode = "generate"
        loop.collect(engine.sample(SampleRequest(PROMPT, sampling, model="mine", stream=False)))
        loop.run(engine.close())
    forced = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    assert fake.requests == [
        ("/v1/completions", {"prompt": [11, 12, 13], "model": "mine", "stream": True} | expected | forced),
        (
            "/inference/v1/generate",
            {"token_ids": [11, 12, 13], "model": "mine", "stream": False, "sampling_params": expected},
        ),
    ]
    assert all(headers["authorization"] == "Bearer secret" for headers in fake.headers)


def test_what_is_not_set_is_left_to_the_server(loop: LoopThread) -> None:
    with FakeVllm().serving() as fake:
        engine = VllmEngine(fake.url)
        loop.collect(engine.sample(wish(temperature=0.0, top_k=0, json_schema={})))
        loop.run(engine.close())
    (_, body) = fake.requests[0]
    assert body["structured_outputs"] == {"json_object": True}
    assert body["temperature"] == 0.0
    assert set(body) == {
        "prompt", "max_tokens", "logprobs", "temperature", "top_k", "structured_outputs", "return_token_ids",
        "return_tokens_as_token_ids", "stream",
    }  # fmt: skip


def test_what_arrived_together_is_one_item(loop: LoopThread) -> None:
    events = [event(choice([i], [-i / 10], "stop" if i == 5 else None)) for i in range(1, 6)]
    together = chunk(events[0]), 0.3, chunk(b"".join(events[1:4])), 0.3, chunk(events[4] + b"data: [DONE]\n\n") + END
    got = sample(loop, STREAM, *together)
    assert [item.token_ids for item in got] == [[1], [2, 3, 4], [5]]
    assert [item.logprobs for item in got] == [[-0.1], [-0.2, -0.3, -0.4], [-0.5]]
    assert [item.finish for item in got] == [None, None, "stop"]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_bytes_cut_anywhere_lose_nothing(loop: LoopThread, size: int) -> None:
    text = choice([7], [-0.5]) | {"text": "\u2028\u2029\x85"}
    first = b"data:" + json.dumps({"choices": [text]}, ensure_ascii=False).encode() + b"\r\n\r\n"
    raw = STREAM + chunk(b": ping\n\n" + first) + chunk(event(choice([8], [-0.25], "length"))) + END
    got = sample(loop, *[raw[i : i + size] for i in range(0, len(raw), size)])
    assert [token for item in got for token in item.token_ids] == [7, 8]
    assert [logprob for item in got for logprob in item.logprobs] == [-0.5, -0.25]
    assert got[-1].finish == "length"


def test_a_stream_that_is_none_says_what_it_is(loop: LoopThread) -> None:
    said = http(b'{"error": {"message": "CUDA out of memory"}}', headers="content-type: application/json\r\n")
    with pytest.raises(EngineError, match="answered without a stream: CUDA out of memory"):
        sample(loop, said)
    page = http(b"<html>who are you?</html>", headers="Content-Type: text/html\r\n")
    with pytest.raises(EngineError, match="who are you"):
        sample(loop, page)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("logprobs", "kept"),
    [
        ([-0.1, None, -0.3], [-0.1, None, -0.3]),
        ([-0.1, float("nan"), -0.3], [-0.1, None, -0.3]),
        ([float("-inf"), -0.2, float("inf")], [None, -0.2, None]),
        ([-9999.0, -0.2, -0.3], [None, -0.2, -0.3]),
        ([3.5, -0.2, 1e-6], [None, -0.2, 1e-6]),
        ({"token_logprobs": [-0.1, -0.2], "tokens": ["token_id:1", "token_id:2"]}, [-0.1, -0.2, None]),
        ({"token_logprobs": [-0.2, -0.3], "tokens": ["token_id:2", "token_id:3"]}, [None, None, None]),
        ({"token_logprobs": [-0.1, -0.3], "tokens": ["token_id:1", "token_id:3"]}, [-0.1, None, None]),
        ({"token_logprobs": [-0.1, -0.2], "tokens": ["a", "b"]}, [None, None, None]),
        ({"token_logprobs": [-0.1] * 4, "tokens": [f"token_id:{i}" for i in (1, 2, 3, 4)]}, [-0.1, -0.1, -0.1]),
        ({"token_logprobs": []}, [None, None, None]),
        (None, [None, None, None]),
    ],
)
def test_a_logprob_is_at_its_token_or_nowhere(
    loop: LoopThread, logprobs: Any, kept: list[float | None], stream: bool
) -> None:
    said = choice([1, 2, 3], logprobs, "stop")
    if stream:
        (got,) = sample(loop, STREAM + chunk(event(said)) + END)
    else:
        (got,) = sample(loop, http(json.dumps({"choices": [said]}).encode()), request=wish(stream=False))
    assert got.token_ids == [1, 2, 3]
    assert got.logprobs == kept


@pytest.mark.parametrize(
    ("ids", "entries", "kept"),
    [
        ([5, 5, 7], [(5, -0.1), (7, -0.2)], [None, None, None]),
        ([5, 6, 6], [(5, -0.1), (6, -0.2)], [-0.1, None, None]),
        ([5, 5], [(5, -0.1), (5, -0.2), (9, -0.3)], [-0.1, -0.2]),
        ([], [(5, -0.1)], []),
    ],
)
def test_in_a_run_of_one_id_every_logprob_is_dropped_if_one_is_missing(
    ids: list[int], entries: list[tuple[int, float]], kept: list[float | None]
) -> None:
    assert match_logprobs(ids, entries) == kept


def test_finite() -> None:
    ordinary: list[float | None] = [-0.1] * 300
    assert finite(ordinary) == ordinary
    assert finite([-50.0] * 300) == [-50.0] * 300
    assert finite([]) == []


def test_a_server_that_dies_in_the_middle(loop: LoopThread) -> None:
    with pytest.raises(EngineError, match="middle of an answer") as caught:
        sample(loop, STREAM + chunk(event(choice([1], [-0.1]))), 0.1, CLOSE)
    assert caught.value.sampled_any
    assert caught.value.status == 502


def test_a_server_that_dies_before_the_first_token(loop: LoopThread) -> None:
    with pytest.raises(EngineError, match="without an answer") as caught:
        sample(loop, CLOSE)
    assert not caught.value.sampled_any


@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b""])
def test_a_stream_without_a_finish_reason_is_not_a_turn(loop: LoopThread, done: bytes) -> None:
    with pytest.raises(EngineError, match="without a finish reason") as caught:
        sample(loop, STREAM + chunk(event(choice([1], [-0.1])) + done) + END)
    assert caught.value.sampled_any


def test_an_answer_without_a_finish_reason_is_not_a_turn(loop: LoopThread) -> None:
    with pytest.raises(EngineError, match="without a finish reason"):
        sample(loop, http(json.dumps({"choices": [choice([1], [-0.1])]}).encode()), request=wish(stream=False))


def test_a_finish_is_enough_even_if_the_server_dies_then(loop: LoopThread) -> None:
    got = sample(loop, STREAM + chunk(event(choice([1], [-0.1], "stop"))), CLOSE)
    assert got[-1].finish == "stop"


def test_the_end_of_a_stream_is_waited_for_so_that_the_connection_lasts(loop: LoopThread) -> None:
    with RawServer([STREAM + chunk(event(choice([1], [-0.1], "stop"))), 0.3, END]).serving() as server:
        engine = VllmEngine(server.url)
        for _ in range(2):
            loop.collect(engine.sample(wish()))
        loop.run(engine.close())
    assert server.connections == 1


def test_but_not_for_long(loop: LoopThread) -> None:
    with RawServer([STREAM, 0.1, chunk(event(choice([1], [-0.1], "stop"))), 300.0]).serving() as server:
        engine = VllmEngine(server.url, timeout=300)
        assert loop.collect(engine.sample(wish()), seconds=20)[-1].finish == "stop"
        loop.run(engine.close())


@pytest.mark.parametrize("stream", [True, False])
def test_the_most_likely_alternatives_are_reported(loop: LoopThread, stream: bool) -> None:
    """vLLM adds the sampled token to those that were asked for."""
    tops = {"token_id:1": -3.0, "token_id:8": -0.1, "token_id:9": -0.5}
    told = {"token_logprobs": [-3.0], "tokens": ["token_id:1"], "top_logprobs": [tops]}
    said = choice([1], told, "stop")
    steps = STREAM + chunk(event(said)) + END if stream else http(json.dumps({"choices": [said]}).encode())
    (got,) = sample(loop, steps, request=wish(stream, top_logprobs=2))
    assert got.top_logprobs == [{8: -0.1, 9: -0.5}]


@pytest.mark.parametrize("first", [[], [event(choice([1], [-0.1]))]])
def test_an_error_inside_a_stream(loop: LoopThread, first: list[bytes]) -> None:
    error = b'data: {"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}\n\n'
    steps = [chunk(one) for one in first] + [0.2] * len(first)
    with pytest.raises(EngineError, match="out of memory") as caught:
        sample(loop, STREAM, *steps, chunk(error + b"data: [DONE]\n\n") + END)
    assert caught.value.status == 502
    assert caught.value.sampled_any == bool(first)


def test_an_error_beside_tokens_fails_the_call(loop: LoopThread) -> None:
    failed = event(choice([1], [-0.1], "stop"), error={"message": "out of memory"})
    with pytest.raises(EngineError, match="out of memory"):
        sample(loop, STREAM + chunk(failed) + END)


@pytest.mark.parametrize("event", [b"data: {not json}\n\n", b'data: {"choices": 7}\n\n', b"data: 7\n\n"])
def test_events_that_make_no_sense(loop: LoopThread, event: bytes) -> None:
    with pytest.raises(EngineError, match="something unexpected"):
        sample(loop, STREAM + chunk(event) + END)


def test_a_server_too_old_to_tell_ids(loop: LoopThread) -> None:
    said = choice([1], [-0.1], "stop")
    del said["token_ids"]
    with pytest.raises(EngineError, match="hint:"):
        sample(loop, STREAM + chunk(event(said)) + END)


def test_an_aborted_request_finishes_with_abort(loop: LoopThread) -> None:
    (got,) = sample(loop, STREAM + chunk(event(choice([], [], "abort"))) + END)
    assert (got.token_ids, got.finish) == ([], "abort")


def npy(values: np.ndarray[Any, Any]) -> str:
    file = io.BytesIO()
    np.save(file, values)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("kind", ["u1", "u2", "i4"])
def test_routes(loop: LoopThread, kind: str) -> None:
    routes = np.arange(4 * 3 * 2, dtype=kind).reshape(4, 3, 2)  # 5 tokens: the last has none
    said = {"choices": [choice([1, 2], [-0.1, -0.2], "stop", routed_experts=npy(routes))]}
    (got,) = sample(loop, http(json.dumps(said).encode()), request=wish(stream=False))
    assert got.routes is not None
    assert (got.routes.start, got.routes.width, got.routes.itemsize, got.routes.count) == (0, 6, 1, 4)
    assert list(got.routes.data) == list(range(24))


def test_a_request_for_routes_is_not_streamed(loop: LoopThread) -> None:
    routes = np.full((2, 3, 2), 300, dtype="u2")
    said = http(json.dumps({"choices": [choice([1], [-0.1], "stop", routed_experts=npy(routes))]}).encode())
    with RawServer([said]).serving() as server:
        engine = VllmEngine(server.url)
        request = SampleRequest(PROMPT, Sampling(max_tokens=1), routes_from=2)
        (got,) = loop.collect(engine.sample(request))
        loop.run(engine.close())
    assert b'"stream":false' in server.requests[0]
    assert b'"routed_experts_prompt_start":2' in server.requests[0]
    assert got.routes is not None
    assert (got.routes.start, got.routes.itemsize) == (2, 2)


@pytest.mark.parametrize("stream", [True, False])
def test_generate_tells_weight_versions(loop: LoopThread, stream: bool) -> None:
    with FakeVllm().serving() as fake:
        fake.weight_version = "step-3"
        engine = VllmEngine(fake.url, mode="generate")
        got = loop.collect(engine.sample(wish(stream)))
        assert loop.run(engine.info()).weight_version == "step-3"
        loop.run(engine.close())
    assert got[-1].versions == (("step-3", 9),)


def test_a_server_that_tells_no_version_is_asked_once(loop: LoopThread) -> None:
    with FakeVllm().serving() as fake:
        engine = VllmEngine(fake.url)
        assert [loop.run(engine.info()).weight_version for _ in range(3)] == [None] * 3
        loop.run(engine.close())
    assert [path for path, _ in fake.requests].count("/weight_info") == 1


def test_a_server_whose_engine_has_died_is_not_well(loop: LoopThread) -> None:
    with FakeVllm().serving() as fake:
        engine = VllmEngine(fake.url)
        fake.missing = {"/health"}  # behind a proxy that passes on only what is under /v1
        loop.run(engine.info())
        fake.missing, fake.engine_dead = set(), True
        with pytest.raises(EngineError) as caught:
            loop.run(engine.info())
        assert caught.value.status == 503
        loop.run(engine.close())


def test_pause_and_resume_where_there_are_none(loop: LoopThread) -> None:
    with FakeVllm().serving() as fake:
        fake.missing = {"/pause", "/resume"}
        engine = VllmEngine(fake.url, pause_mode="keep")
        loop.run(engine.pause())
        loop.run(engine.resume())
        assert sum(len(item.token_ids) for item in loop.collect(engine.sample(wish(stream=False)))) == 9
        loop.run(engine.close())
    assert [path for path, _ in fake.requests[:2]] == ["/pause?mode=keep", "/resume"]


@pytest.mark.parametrize(("mode", "streams"), [("keep", True), ("wait", False)])
def test_a_reply_that_an_update_may_freeze_is_streamed(loop: LoopThread, mode: str, streams: bool) -> None:
    """At its end, the server doesn't say which of its tokens are of which weights."""
    with FakeVllm().serving() as fake:
        engine = VllmEngine(fake.url, pause_mode=mode)
        loop.collect(engine.sample(wish(stream=False)))
        loop.run(engine.close())
    assert [body["stream"] for path, body in fake.requests if path == "/v1/completions"] == [streams]


def test_a_lora_adapter_is_sampled_by_its_name(loop: LoopThread) -> None:
    with FakeVllm().serving() as fake:
        engine = VllmEngine(fake.url)
        fake.adapters["mine"] = "/adapters/mine"
        assert loop.run(engine.info()).models == ("fake/model", "mine")
        request = SampleRequest(PROMPT, Sampling(max_tokens=4, temperature=0.0), model="mine")
        adapted = [token for item in loop.collect(engine.sample(request)) for token in item.token_ids]
        plain = [t for i in loop.collect(engine.sample(wish(temperature=0.0, max_tokens=4))) for t in i.token_ids]
        assert adapted != plain
        fake.adapters.clear()
        with pytest.raises(EngineError, match="does not exist") as caught:
            loop.collect(engine.sample(request))
        assert caught.value.status == 404
        loop.run(engine.close())


def test_a_mode_has_to_exist() -> None:
    with pytest.raises(ConfigError, match="hint:"):
        VllmEngine("http://x", mode="text")


def test_nothing_is_merged_into_nothing() -> None:
    assert merge([]) is None
    assert merge([Sampled([], [])]) is None
    assert merge([Sampled([], []), Sampled([1], [None])]) == Sampled([1], [None])


def test_encode_and_decode() -> None:
    ids = array(IDS, [0, 4_294_967_295])
    assert json.loads(b"".join(encode({"a": "ü"}, "ids", ids))) == {"ids": [0, 4_294_967_295], "a": "ü"}
    decoder = msgspec.json.Decoder(list[float | None])
    assert decode(decoder, b"[1.5, NaN, -Infinity]")[0] == 1.5
    with pytest.raises(msgspec.DecodeError):
        decode(decoder, b"[1.5")


def test_a_cancelled_request_frees_its_connection(loop: LoopThread) -> None:
    with RawServer([20.0]).serving() as server:
        engine = VllmEngine(server.url)

        async def give_up() -> None:
            task = asyncio.create_task(anext(engine.sample(wish())))
            while not server.requests:  # noqa: ASYNC110 - it runs on a thread
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        loop.run(give_up())
        assert engine.http.idle == []
        loop.run(engine.close())


@pytest.mark.parametrize("top", [0, 1])
@pytest.mark.parametrize("apart", [False, True])
def test_tokens_after_the_finish_are_not_of_the_sequence(loop: LoopThread, top: int, apart: bool) -> None:
    events = [
        event(choice([1], [-0.1])),
        event(choice([2], [-0.2], "stop")),
        event(choice([3, 4], [-0.3, -0.4], "length")),
    ]
    sent = [chunk(one) for one in events] if apart else [b"".join(map(chunk, events))]
    told = sample(loop, STREAM, *sent, END, request=wish(top_logprobs=top))
    assert [token for part in told for token in part.token_ids] == [1, 2]
    assert told[-1].finish == "stop"
