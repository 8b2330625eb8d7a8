"""Images for vLLM: encoded by the server itself, sent once, and sent again when the server has dropped them."""

from __future__ import annotations

import asyncio
from array import array
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from agentcore_rl_toolkit.engine.base import IDS, PromptImage, SampleRequest, Sampling
from agentcore_rl_toolkit.engine.remote.vllm import VllmEngine
from agentcore_rl_toolkit.errors import EngineError
from support.fake_vllm import IMAGE, FakeVllm
from support.loop import LoopThread, loop_thread

GENERATE, RENDER = "/inference/v1/generate", "/v1/chat/completions/render"


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with loop_thread() as thread:
        yield thread


@pytest.fixture
def server() -> Iterator[FakeVllm]:
    with FakeVllm().serving() as fake:
        yield fake


@pytest.fixture
def engine(loop: LoopThread, server: FakeVllm) -> Iterator[VllmEngine]:
    engine = VllmEngine(server.url)
    yield engine
    loop.run(engine.close())


def image(name: str, offset: int = 3) -> PromptImage:
    return PromptImage(offset, 4, name, IMAGE, lambda: b"png of " + name.encode())


def sample(loop: LoopThread, engine: VllmEngine, *images: PromptImage, stream: bool = False) -> list[int]:
    request = SampleRequest(array(IDS, [5, 6, 7, 8]), Sampling(max_tokens=3), stream=stream, images=images)
    return [token for item in loop.collect(engine.sample(request)) for token in item.token_ids]


def asked(server: FakeVllm, path: str) -> list[dict[str, Any]]:
    return [body for known, body in server.requests if known == path]


def test_an_image_is_sent_once_in_the_form_that_the_server_made(loop: LoopThread, server: FakeVllm, engine: VllmEngine):
    first = sample(loop, engine, image("a"))
    assert sample(loop, engine, image("a"), image("b", 9), stream=True) == first
    one, two = (body["features"] for body in asked(server, GENERATE))
    made = {name: b64encode(b"png of " + name.encode()).decode() for name in "ab"}
    assert one == {
        "mm_hashes": {"image": ["a"]},
        "mm_placeholders": {"image": [{"offset": 3, "length": 4}]},
        "kwargs_data": {"image": [made["a"]]},
    }
    assert two["kwargs_data"] == {"image": [None, made["b"]]}
    assert len(asked(server, RENDER)) == 2
    sample(loop, engine)
    assert "features" not in server.requests[-1][1]
    assert server.requests[-1][0] == "/v1/completions"


def test_an_image_that_several_rollouts_send_at_once_is_encoded_once(
    loop: LoopThread, server: FakeVllm, engine: VllmEngine
):
    async def drain() -> None:
        async for _ in engine.sample(SampleRequest(array(IDS, [5]), Sampling(max_tokens=1), images=(image("a"),))):
            pass

    async def together() -> None:
        await asyncio.gather(*(drain() for _ in range(4)))

    loop.run(together())
    assert (len(asked(server, RENDER)), len(asked(server, GENERATE))) == (1, 4)


def test_the_server_never_answers_with_a_hash_in_place_of_an_image(
    loop: LoopThread, server: FakeVllm, engine: VllmEngine
):
    sample(loop, engine, image("a"), image("b", 9))
    names = [body["messages"][0]["content"][0]["uuid"] for body in asked(server, RENDER)]
    assert len({*names, "a", "b"}) == 4


@pytest.mark.parametrize("stream", [False, True])
def test_images_that_the_server_dropped_are_sent_again(
    loop: LoopThread, server: FakeVllm, engine: VllmEngine, stream: bool
):
    first = sample(loop, engine, image("a"), stream=stream)
    server.images.clear()
    assert sample(loop, engine, image("a"), stream=stream) == first
    sent = [body["features"]["kwargs_data"]["image"][0] is not None for body in asked(server, GENERATE)]
    assert sent == [True, False, True]
    assert len(asked(server, RENDER)) == 1


def test_a_failure_with_all_images_is_not_tried_again(loop: LoopThread, server: FakeVllm, engine: VllmEngine):
    server.missing.add(GENERATE)
    with pytest.raises(EngineError):
        sample(loop, engine, image("a"))
    assert len(asked(server, GENERATE)) == 1


def test_another_number_of_tokens_is_an_error(loop: LoopThread, server: FakeVllm, engine: VllmEngine):
    server.image_tokens = 5
    with pytest.raises(EngineError, match="gives an image 5 tokens, and the gateway's tokenizer folder 4"):
        sample(loop, engine, image("a"))
    assert asked(server, GENERATE) == []


def test_a_server_without_the_endpoint_is_told_how_to_start(loop: LoopThread, server: FakeVllm, engine: VllmEngine):
    server.missing.add(RENDER)
    with pytest.raises(EngineError, match="--enable-scale-out"):
        sample(loop, engine, image("a"))


def test_encoded_images_are_bounded(
    loop: LoopThread, server: FakeVllm, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agentcore_rl_toolkit.engine.remote.vllm_images.VllmImages.most_bytes", 10)
    monkeypatch.setattr("agentcore_rl_toolkit.engine.remote.vllm_images.VllmImages.most_known", 1)
    sample(loop, engine, image("a"), image("b", 9))
    sample(loop, engine, image("a"), image("b", 9))
    assert asked(server, GENERATE)[1]["features"]["kwargs_data"]["image"][0] is not None
    assert len(asked(server, RENDER)) == 3
