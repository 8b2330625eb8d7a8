"""What only a real vLLM can show: LoRA swaps, weight updates and their versions, chat, structured output.

`run.py` boots the server and says where it and its adapters are; this file is not collected on its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from array import array
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from agentcore_rl_toolkit.engine import IDS, Sampled, SampleRequest, Sampling
from agentcore_rl_toolkit.engine.remote.vllm import VllmEngine
from agentcore_rl_toolkit.engine.reply_form import Form
from agentcore_rl_toolkit.errors import EngineError
from support.loop import LoopThread, loop_thread

URL = os.environ["AGENTCORE_RL_TEST_VLLM"]
FOLDER = Path(os.environ["AGENTCORE_RL_TEST_VLLM_FOLDER"])
PROMPT = array(IDS, [504, 3575, 282, 4649, 314])


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with loop_thread() as thread:
        yield thread


@pytest.fixture
def engine(loop: LoopThread) -> Iterator[VllmEngine]:
    engine = VllmEngine(URL)
    yield engine
    loop.run(engine.close())


def sample(loop: LoopThread, engine: VllmEngine, model: str | None = None, **sampling: Any) -> Sampled:
    wishes: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True} | sampling
    request = SampleRequest(PROMPT, Sampling(**wishes), model=model, stream=False)
    return loop.collect(engine.sample(request))[-1]


def post(loop: LoopThread, engine: VllmEngine, path: str, **body: Any) -> Any:
    async def exchange() -> bytes:
        with await engine.http.post(path, json.dumps(body).encode()) as answer:
            return await answer.read()

    said = loop.run(exchange())
    return msgspec.json.decode(said) if said else None


def text(loop: LoopThread, engine: VllmEngine, ids: list[int]) -> str:
    return str(post(loop, engine, "/detokenize", tokens=ids)["prompt"])


def load_adapter(loop: LoopThread, engine: VllmEngine, folder: str) -> None:
    fields = {"lora_name": "mine", "lora_path": str(FOLDER / folder), "load_inplace": True}
    loop.run(engine.http.post_command("/v1/load_lora_adapter", json.dumps(fields).encode()))


def test_adapters_are_swapped_under_one_name(loop: LoopThread, engine: VllmEngine) -> None:
    plain = sample(loop, engine)
    took = time.perf_counter()
    load_adapter(loop, engine, "one")
    print(f"a LoRA adapter loads in {time.perf_counter() - took:.3f} s")  # noqa: T201
    one = sample(loop, engine, "mine")
    load_adapter(loop, engine, "two")
    two = sample(loop, engine, "mine")
    assert "mine" in loop.run(engine.info()).models
    loop.run(engine.http.post_command("/v1/unload_lora_adapter", b'{"lora_name": "mine"}'))
    assert one.logprobs[0] != plain.logprobs[0] != two.logprobs[0] != one.logprobs[0]
    assert sample(loop, engine).token_ids == plain.token_ids
    with pytest.raises(EngineError) as caught:
        sample(loop, engine, "mine")
    assert caught.value.status == 404


def test_new_weights_and_their_version(loop: LoopThread, engine: VllmEngine) -> None:
    generate = VllmEngine(URL, mode="generate")
    before = sample(loop, engine)
    first = loop.run(engine.info()).weight_version
    assert first is not None
    assert sample(loop, generate).versions == ((first, 12),)

    def update(weights: str, version: str) -> None:
        took = time.perf_counter()
        loop.run(engine.pause())
        try:
            path = {"weights_path": str(FOLDER / weights)}
            post(loop, engine, "/collective_rpc", method="reload_weights", kwargs=path)
            post(loop, engine, "/update_weight_version", new_version=version)
        finally:
            loop.run(engine.resume())
        print(f"new weights in {time.perf_counter() - took:.3f} s")  # noqa: T201

    update("model-b", "b")
    try:
        assert loop.run(engine.info()).weight_version == "b"
        other = sample(loop, generate)
        assert other.versions == (("b", 12),)
        assert other.token_ids != before.token_ids
    finally:
        update("model", first)
    again = sample(loop, engine)
    assert again.token_ids == before.token_ids
    assert again.logprobs == pytest.approx(before.logprobs, abs=1e-4)
    loop.run(generate.close())


def test_a_sequence_that_spans_an_update_tells_both_versions(loop: LoopThread) -> None:
    engine = VllmEngine(URL, mode="generate", pause_mode="keep")
    first = loop.run(engine.info()).weight_version

    async def span() -> list[Sampled]:
        request = SampleRequest(PROMPT, Sampling(max_tokens=60, temperature=0.0, ignore_eos=True))
        got: list[Sampled] = []
        async with aclosing(cast(Any, engine.sample(request))) as items:
            got.append(await anext(items))
            await engine.pause()
            try:
                await engine.http.post_command("/update_weight_version", b'{"new_version": "spanned"}')
            finally:
                await engine.resume()
            got += [item async for item in items]
        return got

    got = loop.run(span())
    post(loop, engine, "/update_weight_version", new_version=first)
    loop.run(engine.close())
    assert sum(len(item.token_ids) for item in got) == 60
    (one, many), (two, rest) = got[-1].versions
    assert (one, two) == (first, "spanned")
    assert many >= 1
    assert rest >= 1
    assert many + rest == 60


def test_a_pause_that_aborts(loop: LoopThread) -> None:
    engine = VllmEngine(URL, pause_mode="abort")

    async def pause() -> list[Sampled]:
        request = SampleRequest(PROMPT, Sampling(max_tokens=400, temperature=0.0, ignore_eos=True))
        async with aclosing(cast(Any, engine.sample(request))) as items:
            got = [await anext(items)]
            await engine.pause()
            try:
                got += [item async for item in items]
            finally:
                await engine.resume()
        return got

    got = loop.run(pause())
    loop.run(engine.close())
    assert got[-1].finish == "abort"
    assert sum(len(item.token_ids) for item in got) < 400


def test_settings_are_obeyed(loop: LoopThread, engine: VllmEngine) -> None:
    forced = sample(loop, engine, logit_bias=((504, 100.0),))
    assert forced.token_ids == [504] * 12
    free = sample(loop, engine)
    banned = sample(loop, engine, logit_bias=((free.token_ids[0], -100.0),))
    assert banned.token_ids[0] != free.token_ids[0]
    word = text(loop, engine, free.token_ids[3:4])
    stopped = sample(loop, engine, stop=(word,))
    assert stopped.finish == "stop"
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    assert len(stopped.logprobs) == len(stopped.token_ids) < 12


@pytest.mark.parametrize("mode", ["tokens", "generate"])
def test_json_of_a_schema(loop: LoopThread, mode: str) -> None:
    engine = VllmEngine(URL, mode=mode)
    schema = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}},
        "required": ["yes"],
        "additionalProperties": False,
    }
    got = sample(loop, engine, json_schema=schema, max_tokens=60, ignore_eos=False)
    said = json.loads(text(loop, engine, got.token_ids).removesuffix("<|im_end|>"))
    loop.run(engine.close())
    assert isinstance(said["yes"], bool)


@pytest.mark.parametrize("mode", ["tokens", "generate"])
def test_a_form_of_thought_and_call_or_text(loop: LoopThread, mode: str) -> None:
    engine = VllmEngine(URL, mode=mode)
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    for form in (Form("optional", "<tool_call>", schema), Form("optional", '<tool_call>\n{"name": "')):
        got = sample(loop, engine, form=form, max_tokens=400, ignore_eos=False)
        said = text(loop, engine, got.token_ids).rpartition("</think>")[2].strip()
        assert (
            got.finish == "length" or said.startswith(form.call) or "yes" in json.loads(said.removesuffix("<|im_end|>"))
        )
    loop.run(engine.close())


def test_how_fast_it_is(loop: LoopThread, engine: VllmEngine) -> None:
    """No verdict, only figures."""
    for concurrent in (1, 16):

        async def run(count: int = concurrent) -> int:
            request = SampleRequest(PROMPT, Sampling(max_tokens=48, temperature=1.0, ignore_eos=True))

            async def one() -> int:
                return sum([len(item.token_ids) async for item in engine.sample(request)])

            return sum(await asyncio.gather(*(one() for _ in range(count))))

        took = time.perf_counter()
        count = loop.run(run())
        print(f"{concurrent} at once: {count / (time.perf_counter() - took):.0f} tokens/s")  # noqa: T201
