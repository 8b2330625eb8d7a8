"""What every engine must do, run against each of them.

To add one, put a context manager into `SUBJECTS`. A real vLLM is added by `make test-vllm`, a real SGLang by its URL in
AGENTCORE_RL_TEST_SGLANG.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import time
import urllib.request
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentcore_rl_toolkit.engine import IDS, Engine, Sampled, SampleRequest, Sampling
from agentcore_rl_toolkit.engine.channel.channel_engine import ChannelEngine
from agentcore_rl_toolkit.engine.channel.engine_service import EngineService
from agentcore_rl_toolkit.engine.remote.sglang import SglangEngine
from agentcore_rl_toolkit.engine.remote.vllm import VllmEngine
from agentcore_rl_toolkit.engine.replicas import Replicas
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.engine.services.session_engine import SessionEngine
from agentcore_rl_toolkit.errors import EngineError
from support.fake_server import logprob, next_token
from support.fake_sglang import FakeSglang
from support.fake_vllm import FakeVllm
from support.loop import LoopThread, loop_thread


@dataclass
class Subject:
    """An engine under test, and what can be seen of it from outside."""

    engine: Engine
    aborted: Callable[[], int]
    """How many requests its server gave up so far."""
    slow: Callable[[], object] = lambda: None
    """Makes a token take so long that a request can be caught in the middle."""
    room: int = 130
    """Tokens to leave in the context: more than its server samples unasked, and few enough to wait for."""
    streams: bool = True
    """Whether it gives tokens before it has sampled them all."""
    aborts: bool = True
    """Whether its server stops sampling for a caller that gave up."""
    alternatives: bool = True
    """Whether it reports the likeliest tokens besides the sampled one."""


Open = Callable[[], AbstractContextManager[Subject]]


@contextmanager
def scripted() -> Iterator[Subject]:
    def answer(request: SampleRequest) -> list[int]:
        ids = list(request.prompt)
        seed = (request.sampling.seed or 0) if request.sampling.temperature else 0
        for _ in range(512):
            ids.append(next_token(ids, seed))
        return ids[len(request.prompt) :]

    engine = ScriptedEngine(answer, chunk=3, context_length=512)
    yield Subject(engine, lambda: len(engine.aborted), lambda: setattr(engine, "delay", 0.05))


@contextmanager
def vllm(mode: str = "tokens") -> Iterator[Subject]:
    with FakeVllm().serving() as fake:
        yield Subject(VllmEngine(fake.url, mode=mode), lambda: fake.gone, lambda: setattr(fake, "pace", 0.05))


@contextmanager
def sglang(incremental: bool = False) -> Iterator[Subject]:
    with FakeSglang(incremental=incremental).serving() as fake:
        yield Subject(SglangEngine(fake.url), lambda: fake.gone, lambda: setattr(fake, "pace", 0.05))


@contextmanager
def slime_router() -> Iterator[Subject]:
    """SGLang behind slime's router, which doesn't list its models."""
    from agentcore_rl_toolkit.backends.slime.router import RouterEngine

    with FakeSglang().serving() as fake:
        fake.missing = {"/v1/models"}
        engine = RouterEngine(fake.url, model="policy", context_length=fake.context_length)
        yield Subject(engine, lambda: fake.gone, lambda: setattr(fake, "pace", 0.05))


class VerlClient:
    """verl's `LLMServerClient`: it answers with whole sequences, by the arithmetic of the fake servers."""

    pace = 0.0

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        ids, stops = list(prompt_ids), sampling_params.get("stop_token_ids") or []
        seed = sampling_params.get("seed", 0) if sampling_params.get("temperature") else 0
        logprobs = []
        while len(logprobs) < sampling_params["max_tokens"] and ids[-1:] not in [[stop] for stop in stops]:
            await asyncio.sleep(self.pace)
            token = next_token(ids, seed)
            logprobs.append(logprob(ids, token))
            ids.append(token)
        steps = {"min_global_steps": 3, "max_global_steps": 3}
        fields = {"log_probs": logprobs, "stop_reason": "completed", "routed_experts": None, "extra_fields": steps}
        return SimpleNamespace(token_ids=ids[len(prompt_ids) :], **fields)


@contextmanager
def verl() -> Iterator[Subject]:
    from agentcore_rl_toolkit.backends.verl.verl_engine import VerlEngine

    client = VerlClient()
    engine = VerlEngine(client, model="policy", context_length=512)
    slow = lambda: setattr(client, "pace", 0.05)  # noqa: E731
    yield Subject(engine, lambda: 0, slow, streams=False, aborts=False, alternatives=False)


@contextmanager
def replicas() -> Iterator[Subject]:
    # Their connections are there from the start: without a pace, all of a stream could come in one piece.
    with FakeVllm(pace=0.01).serving() as one, FakeVllm(pace=0.01).serving() as two:

        def slow() -> None:
            one.pace = two.pace = 0.05

        engine = Replicas([VllmEngine(one.url), VllmEngine(two.url)])
        yield Subject(engine, lambda: one.gone + two.gone, slow)


class QueueLink:
    """One end of a link in this process, where a gateway's workers have a WebSocket."""

    def __init__(self, given: asyncio.Queue[bytes | None], wanted: asyncio.Queue[bytes | None]) -> None:
        self.given, self._wanted = given, wanted

    async def send(self, data: bytes) -> None:
        self._wanted.put_nowait(data)

    async def receive(self) -> bytes | None:
        return await self.given.get()


class LinkedEngine(ChannelEngine):
    """Samples through a link to an engine of its own."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._engine.start()
        ready, ends = asyncio.Event(), (asyncio.Queue[bytes | None](), asyncio.Queue[bytes | None]())

        async def is_ready() -> None:
            ready.set()

        serving = EngineService(self._engine).serve(QueueLink(*ends))
        attached = self.attach(QueueLink(*reversed(ends)), is_ready)
        self._tasks = [asyncio.create_task(serving), asyncio.create_task(attached)]
        await asyncio.wait_for(ready.wait(), 60)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._engine.close()


@contextmanager
def channel() -> Iterator[Subject]:
    """What `gateway serve --engine trainer` and `--gateway workers=N` sample from."""
    with FakeVllm(pace=0.01).serving() as fake:  # without a pace, all of a stream could come in one piece
        engine = LinkedEngine(VllmEngine(fake.url))
        yield Subject(engine, lambda: fake.gone, lambda: setattr(fake, "pace", 0.05))


@contextmanager
def transformers() -> Iterator[Subject]:
    torch = pytest.importorskip("torch", reason="needs the extra transformers")
    from transformers import AutoModelForCausalLM, LlamaConfig

    from agentcore_rl_toolkit.engine.transformers import TransformersEngine

    torch.manual_seed(1)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    sizes = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
    model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, **heads, initializer_range=0.3))
    engine = TransformersEngine(model, name="tiny")
    slow = lambda: model.register_forward_pre_hook(lambda *_: time.sleep(0.05))  # noqa: E731
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them wait for one another, for a model this small
    yield Subject(engine, lambda: engine.counters.aborted, slow)
    torch.set_num_threads(threads)


@contextmanager
def tinker() -> Iterator[Subject]:
    pytest.importorskip("tinker", reason="needs the extra tinker")
    from agentcore_rl_toolkit.engine.services.tinker import TinkerEngine
    from support.fake_tinker import MODEL, FakeTinker

    with FakeTinker().serving() as fake:
        engine = TinkerEngine(MODEL, base_url=fake.url, api_key="tml-test")
        yield Subject(engine, lambda: fake.gone, lambda: setattr(fake, "pace", 0.05), streams=False)


@contextmanager
def sagemaker_session() -> Iterator[Subject]:
    from agentcore_rl_toolkit.engine.services.training_session import TrainingSession
    from support.fake_training_session import FakeTrainingSession

    with FakeTrainingSession().serving() as fake, pytest.MonkeyPatch.context() as patch:
        for name, value in fake.env.items():
            patch.setenv(name, value)
        fake.start_session("contract")
        engine = SessionEngine(TrainingSession("contract"), context_length=fake.context_length)
        slow = lambda: setattr(fake, "pace", 0.005)  # noqa: E731 - it samples 512 tokens at least
        yield Subject(engine, lambda: 0, slow, streams=False, aborts=False, alternatives=False)


@contextmanager
def real_vllm(url: str, mode: str) -> Iterator[Subject]:
    log = Path(os.environ["AGENTCORE_RL_TEST_VLLM_LOG"])  # of a server that runs with --enable-log-requests
    yield Subject(VllmEngine(url, mode=mode), lambda: len(re.findall(r"Request \S+ aborted", log.read_text())), room=20)


@contextmanager
def real_sglang(url: str) -> Iterator[Subject]:
    """It runs with --enable-metrics, and with --enable-deterministic-inference, as it ignores seeds without."""

    def aborted() -> int:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
            counts = re.findall(r"^sglang:num_aborted_requests_total\S* (\S+)", reply.read().decode(), re.MULTILINE)
        return int(sum(map(float, counts)))

    def sleep(seconds: float) -> None:
        """Makes it sleep before each forward pass."""
        body = json.dumps({"forward_sleep_time": seconds}).encode()
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{url}/slow_down", body, headers), timeout=10).close()

    yield Subject(SglangEngine(url), aborted, lambda: sleep(0.05), room=20)
    sleep(0)


@cache
def in_process(model: str) -> Any:
    """vLLM in this process, as TRL makes it."""
    from vllm import LLM

    return LLM(model=model, dtype="float32", max_model_len=512, enforce_eager=True, logprobs_mode="processed_logprobs")


@contextmanager
def colocated() -> Iterator[Subject]:
    pytest.importorskip("trl", reason="needs the extra trl")
    from agentcore_rl_toolkit.backends.trl.colocated import ColocatedEngine
    from support.fake_colocated import FakeLlm, vllm_importable

    llm = FakeLlm()
    llm.pace = 0.001
    with vllm_importable():
        engine = ColocatedEngine(SimpleNamespace(llm=llm), name="colocated", interval=0.005)
        yield Subject(engine, lambda: len(llm.aborted), lambda: setattr(llm, "pace", 0.05))


@contextmanager
def real_colocated(model: str) -> Iterator[Subject]:
    from agentcore_rl_toolkit.backends.trl.colocated import ColocatedEngine

    llm = in_process(model)
    aborted: list[str] = []
    abort = llm.llm_engine.abort_request

    def counted(numbers: list[str]) -> None:
        aborted.extend(numbers)
        abort(numbers)

    llm.llm_engine.abort_request = counted
    engine = ColocatedEngine(SimpleNamespace(llm=llm), name="colocated")
    yield Subject(engine, lambda: len(aborted), room=20)
    llm.llm_engine.abort_request = abort


SUBJECTS: dict[str, Open] = {
    "scripted": scripted,
    "vllm": vllm,
    "vllm-generate": lambda: vllm("generate"),
    "sglang": sglang,
    "sglang-incremental": lambda: sglang(True),
    "slime-router": slime_router,
    "verl": verl,
    "replicas": replicas,
    "transformers": transformers,
    "tinker": tinker,
    "sagemaker-session": sagemaker_session,
    "colocated": colocated,
    "channel": channel,
}
if url := os.environ.get("AGENTCORE_RL_TEST_VLLM"):
    SUBJECTS["real-vllm"] = lambda: real_vllm(url, "tokens")
    SUBJECTS["real-vllm-generate"] = lambda: real_vllm(url, "generate")

if sglang_url := os.environ.get("AGENTCORE_RL_TEST_SGLANG"):
    SUBJECTS["real-sglang"] = lambda: real_sglang(sglang_url)

if model := os.environ.get("AGENTCORE_RL_TEST_COLOCATED"):
    SUBJECTS["real-colocated"] = lambda: real_colocated(model)


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with loop_thread() as thread:
        yield thread


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest, loop: LoopThread) -> Iterator[Subject]:
    with SUBJECTS[request.param]() as subject:
        loop.run(subject.engine.start())
        yield subject
        loop.run(subject.engine.close())
        loop.run(subject.engine.close())


def prompt(length: int = 12, shift: int = 0) -> array[int]:
    return array(IDS, [100 + (shift + i * 7) % 400 for i in range(length)])


def wish(*, ids: array[int] | None = None, stream: bool = True, **sampling: Any) -> SampleRequest:
    """A request that goes on to its limit with the likeliest token each time, unless `sampling` says otherwise."""
    wishes: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True} | sampling
    return SampleRequest(prompt() if ids is None else ids, Sampling(**wishes), stream=stream, session_id="s")


def start(engine: Engine, request: SampleRequest) -> AsyncIterator[Sampled]:
    """Begin to sample; without `ignore_eos` where an engine refuses it, whose model here never ends by itself."""
    if isinstance(engine, SessionEngine):
        request = replace(request, sampling=replace(request.sampling, ignore_eos=False))
    return engine.sample(request)


def items(engine: Engine, request: SampleRequest) -> AbstractContextManager[Any]:
    return cast(Any, aclosing(cast(Any, start(engine, request))))


async def collect(engine: Engine, request: SampleRequest) -> list[Sampled]:
    return [item async for item in start(engine, request)]


async def whole(engine: Engine, request: SampleRequest) -> Sampled:
    """All of a sequence, as one."""
    got = await collect(engine, request)
    assert [item.finish for item in got[:-1]] == [None] * (len(got) - 1)
    tops = [top for item in got for top in item.top_logprobs or []]
    return Sampled(
        [token for item in got for token in item.token_ids],
        [logprob for item in got for logprob in item.logprobs],
        got[-1].finish,
        top_logprobs=tops or None,
    )


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for happens in another process
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("stream", [True, False])
def test_each_token_has_its_logprob(subject: Subject, loop: LoopThread, stream: bool) -> None:
    got = loop.run(whole(subject.engine, wish(stream=stream)))
    assert len(got.token_ids) == len(got.logprobs) == 8
    assert all(logprob is not None and math.isfinite(logprob) and logprob <= 0 for logprob in got.logprobs)
    assert got.finish == "length"


def test_what_is_streamed_adds_up_to_what_is_not(subject: Subject, loop: LoopThread) -> None:
    streamed = loop.run(collect(subject.engine, wish(max_tokens=24)))
    at_once = loop.run(collect(subject.engine, wish(max_tokens=24, stream=False)))
    assert len(at_once) == 1
    assert len(streamed) > 1 or not subject.streams
    assert [token for item in streamed for token in item.token_ids] == at_once[0].token_ids
    logprobs = [logprob for item in streamed for logprob in item.logprobs]
    assert logprobs == pytest.approx(at_once[0].logprobs, abs=1e-3)


def test_the_first_tokens_come_before_the_last_are_sampled(subject: Subject, loop: LoopThread) -> None:
    if not subject.streams:
        pytest.skip("it gives all tokens at once")
    subject.slow()

    async def first() -> Sampled:
        async with items(subject.engine, wish(max_tokens=400)) as sampled:
            return await anext(sampled)

    got = loop.run(first())
    assert 1 <= len(got.token_ids) < 400
    assert got.finish is None


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("limit", [1, 5])
def test_max_tokens(subject: Subject, loop: LoopThread, limit: int, stream: bool) -> None:
    got = loop.run(whole(subject.engine, wish(max_tokens=limit, stream=stream)))
    assert len(got.token_ids) == limit
    assert got.finish == "length"


def test_without_max_tokens_the_context_is_the_limit(subject: Subject, loop: LoopThread) -> None:
    length = loop.run(subject.engine.info()).context_length
    assert length is not None
    got = loop.run(whole(subject.engine, wish(ids=prompt(length - subject.room), max_tokens=None, stream=False)))
    assert subject.room - 2 <= len(got.token_ids) <= subject.room  # SGLang leaves two
    assert got.finish == "length"


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_token_ends_it_and_is_part_of_it(subject: Subject, loop: LoopThread, stream: bool) -> None:
    free = loop.run(whole(subject.engine, wish())).token_ids
    stop = next(token for i, token in enumerate(free) if i >= 2)
    end = free.index(stop) + 1
    got = loop.run(whole(subject.engine, wish(stop_token_ids=(stop,), ignore_eos=False, stream=stream)))
    assert got.token_ids == free[:end]
    assert len(got.logprobs) == end
    assert got.finish == "stop"


def test_a_seed_makes_it_repeatable(subject: Subject, loop: LoopThread) -> None:
    sampled = [loop.run(whole(subject.engine, wish(temperature=1.0, seed=seed, max_tokens=16))) for seed in (7, 7, 8)]
    assert sampled[0].token_ids == sampled[1].token_ids
    assert sampled[0].token_ids != sampled[2].token_ids


@pytest.mark.parametrize("stream", [True, False])
def test_alternatives_have_the_likeliest(subject: Subject, loop: LoopThread, stream: bool) -> None:
    if not subject.alternatives:
        pytest.skip("it reports no alternatives")
    got = loop.run(whole(subject.engine, wish(top_logprobs=2, stream=stream)))
    assert got.top_logprobs is not None
    assert len(got.top_logprobs) == len(got.token_ids)
    for token, value, top in zip(got.token_ids, got.logprobs, got.top_logprobs, strict=True):
        assert 1 <= len(top) <= 2
        assert top[token] == value == max(top.values())


def test_closing_it_aborts_the_request(subject: Subject, loop: LoopThread) -> None:
    if not subject.streams:
        pytest.skip("there is nothing to close before the end")
    subject.slow()
    before = subject.aborted()

    async def leave() -> None:
        async with items(subject.engine, wish(max_tokens=400)) as sampled:
            await anext(sampled)
        await until(lambda: subject.aborted() == before + 1)

    loop.run(leave())


@pytest.mark.parametrize("stream", [True, False])
def test_cancelling_the_caller_aborts_the_request(subject: Subject, loop: LoopThread, stream: bool) -> None:
    if not subject.aborts:
        pytest.skip("its server samples to the end")
    subject.slow()
    before = subject.aborted()

    async def cancel() -> None:
        task = asyncio.create_task(collect(subject.engine, wish(max_tokens=400, stream=stream)))
        await asyncio.sleep(1)  # it is on its way
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: subject.aborted() == before + 1)

    loop.run(cancel())


def test_many_at_once_stay_apart(subject: Subject, loop: LoopThread) -> None:
    async def all_of_them() -> list[Sampled]:
        wishes = [wish(ids=prompt(shift=i * 11), stream=i % 2 == 0) for i in range(16)]
        return list(await asyncio.gather(*(whole(subject.engine, one) for one in wishes)))

    together = loop.run(all_of_them())
    for i in (0, 7, 15):
        alone = loop.run(whole(subject.engine, wish(ids=prompt(shift=i * 11))))
        assert together[i].token_ids == alone.token_ids
        assert together[i].logprobs == pytest.approx(alone.logprobs, abs=1e-3)


def test_it_says_what_it_serves(subject: Subject, loop: LoopThread) -> None:
    info = loop.run(subject.engine.info())
    assert info.models
    assert all(info.models)
    assert info.context_length
    assert info.context_length > 128


def test_the_model_can_be_named(subject: Subject, loop: LoopThread) -> None:
    name = loop.run(subject.engine.info()).models[0]
    request = SampleRequest(prompt(), Sampling(max_tokens=2, ignore_eos=True), model=name)
    assert len(loop.run(whole(subject.engine, request)).token_ids) == 2


def test_a_pause_holds_new_requests_until_it_ends(subject: Subject, loop: LoopThread) -> None:
    async def pause() -> tuple[bool, Sampled]:
        await subject.engine.pause()
        try:
            task = asyncio.create_task(whole(subject.engine, wish()))
            await asyncio.wait([task], timeout=0.5)
            held = not task.done()
        finally:
            await subject.engine.resume()
        return held, await task

    held, got = loop.run(pause())
    assert held
    assert len(got.token_ids) == 8


def test_pausing_twice_is_pausing_once(subject: Subject, loop: LoopThread) -> None:
    async def pause() -> tuple[bool, Sampled]:
        await subject.engine.pause()
        try:
            await subject.engine.pause()
            task = asyncio.create_task(whole(subject.engine, wish()))
            await asyncio.wait([task], timeout=0.3)
            held = not task.done()
        finally:
            await subject.engine.resume()
        return held, await task

    held, got = loop.run(pause())
    assert held
    assert len(got.token_ids) == 8


def test_resuming_what_is_not_paused_changes_nothing(subject: Subject, loop: LoopThread) -> None:
    async def resume() -> tuple[bool, Sampled]:
        await subject.engine.resume()
        assert len((await whole(subject.engine, wish())).token_ids) == 8
        try:
            await subject.engine.pause()
        finally:
            await subject.engine.resume()
        await subject.engine.resume()
        assert len((await whole(subject.engine, wish())).token_ids) == 8
        await subject.engine.pause()  # one pause is one pause, however often it was resumed before
        try:
            task = asyncio.create_task(whole(subject.engine, wish()))
            await asyncio.wait([task], timeout=0.3)
            held = not task.done()
        finally:
            await subject.engine.resume()
        return held, await task

    held, got = loop.run(resume())
    assert held
    assert len(got.token_ids) == 8


def test_what_is_sampled_when_a_pause_comes_is_sampled_to_its_end(subject: Subject, loop: LoopThread) -> None:
    """Two pauses at the same moment, and two resumes: it continues, once."""
    subject.slow()

    async def pause() -> Sampled:
        task = asyncio.create_task(whole(subject.engine, wish(max_tokens=12)))
        await asyncio.sleep(0.2)  # it is on its way
        try:
            await asyncio.gather(subject.engine.pause(), subject.engine.pause())
        finally:
            await asyncio.gather(subject.engine.resume(), subject.engine.resume())
        return await task

    got = loop.run(pause())
    assert len(got.token_ids) == len(got.logprobs) == 12
    assert got.finish == "length"
    assert len(loop.run(whole(subject.engine, wish())).token_ids) == 8


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_too_long_is_refused_with_the_engines_words(subject: Subject, loop: LoopThread, stream: bool) -> None:
    length = loop.run(subject.engine.info()).context_length
    assert length is not None
    with pytest.raises(EngineError, match=str(length)) as caught:
        loop.run(collect(subject.engine, wish(ids=prompt(length + 5), stream=stream)))
    assert caught.value.status == 400
    assert not caught.value.sampled_any


def test_it_works_on_after_an_error_and_an_abort(subject: Subject, loop: LoopThread) -> None:
    length = loop.run(subject.engine.info()).context_length or 0

    async def trouble() -> None:
        with pytest.raises(EngineError):
            await collect(subject.engine, wish(ids=prompt(length + 5)))
        sampled = start(subject.engine, wish(max_tokens=100))
        await anext(sampled)
        await cast(Any, sampled).aclose()

    loop.run(trouble())
    assert len(loop.run(whole(subject.engine, wish())).token_ids) == 8
