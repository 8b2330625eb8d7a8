"""The Transformers engine, with tiny random models: what it says it sampled is what the model computes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra transformers")
pytest.importorskip("transformers", reason="needs the extra transformers")

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)

from agentcore_rl_toolkit.engine import IDS, Sampled, SampleRequest, Sampling
from agentcore_rl_toolkit.engine.transformers import TransformersEngine
from agentcore_rl_toolkit.errors import ConfigError, EngineError

pytestmark = pytest.mark.anyio

DEVICE = os.environ.get("AGENTCORE_RL_TEST_DEVICE", "cpu")
VOCAB = 300
EOS = 7
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
MOE = SMALL | {"num_experts_per_tok": 2}
CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**SMALL),
    "qwen3": lambda: Qwen3Config(**SMALL, head_dim=16),
    "sliding": lambda: MistralConfig(**SMALL, sliding_window=9),
    "qwen3_moe": lambda: Qwen3MoeConfig(**MOE, num_experts=6, moe_intermediate_size=24, head_dim=16),
    "mixtral": lambda: MixtralConfig(**MOE, num_local_experts=5),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models gain nothing from several threads, and on a busy machine these wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_model(kind: str = "llama", **settings: Any) -> Any:
    torch.manual_seed(11)
    config = CONFIGS[kind]()
    for name, value in settings.items():
        setattr(config, name, value)
    return AutoModelForCausalLM.from_config(config).to(DEVICE).eval()


@contextlib.asynccontextmanager
async def serving(model: Any, **options: Any) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(model, **options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


@dataclass
class Answer:
    """All chunks of a stream, joined."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    versions: list[str | None] = field(default_factory=list)
    top: list[dict[int, float]] = field(default_factory=list)
    chunks: int = 0
    spans: tuple[tuple[str, int], ...] = ()

    def add(self, sampled: Sampled) -> None:
        self.chunks += 1
        self.ids += sampled.token_ids
        self.logprobs += [value for value in sampled.logprobs if value is not None]
        self.versions += [sampled.weight_version] * len(sampled.token_ids)
        self.top += sampled.top_logprobs or []
        self.finish, self.spans = sampled.finish, sampled.versions


def request(
    prompt: list[int],
    *,
    session: str = "",
    stream: bool = True,
    **sampling: Any,
) -> SampleRequest:
    ids = array(IDS, prompt)
    return SampleRequest(ids, Sampling(**sampling), None, session, stream=stream)


async def ask(engine: TransformersEngine, prompt: list[int], **kwargs: Any) -> Answer:
    answer = Answer()
    async for sampled in engine.sample(request(prompt, **kwargs)):
        assert answer.finish is None
        answer.add(sampled)
    assert answer.finish is not None
    return answer


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return torch.randint(10, VOCAB, (length,), generator=generator).tolist()


def whole_pass(model: Any, prompt: list[int], sampled: list[int]) -> list[float]:
    """Logprobs of the sampled ids by one pass over everything."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + sampled], device=DEVICE)).logits[0].float()
    logprobs = logits.log_softmax(dim=-1)
    return [logprobs[len(prompt) + i - 1, token].item() for i, token in enumerate(sampled)]


def agrees(model: Any, prompt: list[int], answer: Answer, tolerance: float = 1e-4) -> None:
    assert answer.logprobs == pytest.approx(whole_pass(model, prompt, answer.ids), abs=tolerance)


# --- what is sampled -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIGS)
async def test_logprobs_are_those_of_a_whole_pass_for_many_at_once(kind: str) -> None:
    model = make_model(kind)
    lengths = [1, 2, 5, 17, 40, 3, 90, 33, 64, 8, 21, 2]
    prompts = [prompt_of(length, i) for i, length in enumerate(lengths)]

    async def late(i: int) -> Answer:
        await asyncio.sleep(0.01 * (i % 4))
        return await ask(engine, prompts[i], max_tokens=3 + 7 * (i % 5), ignore_eos=True)

    async with serving(model, max_batch=5, prefill_tokens=48, interval=0.0) as engine:
        answers = await asyncio.gather(*(late(i) for i in range(len(prompts))))
        assert engine.counters.sampled == sum(3 + 7 * (i % 5) for i in range(len(prompts)))
        assert engine.counters.steps < engine.counters.sampled, "nothing was batched"
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.finish == "length"
        agrees(model, prompt, answer)


@pytest.mark.parametrize("kind", CONFIGS)
async def test_greedy_is_what_generate_gives(kind: str) -> None:
    model = make_model(kind)
    prompts = [prompt_of(length) for length in (1, 4, 23, 60)]
    async with serving(model) as engine:
        answers = await asyncio.gather(*(ask(engine, p, max_tokens=24, temperature=0.0) for p in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = model.generate(torch.tensor([prompt], device=DEVICE), do_sample=False, max_new_tokens=24)[
            0, len(prompt) :
        ].tolist()
        assert answer.ids == expected
        assert answer.finish == ("stop" if expected[-1] == EOS else "length")


async def test_eager_attention_too() -> None:
    model = make_model("qwen3")
    model.set_attn_implementation("eager")
    prompts = [prompt_of(length) for length in (3, 30)]
    async with serving(model) as engine:
        answers = await asyncio.gather(*(ask(engine, p, max_tokens=12, ignore_eos=True) for p in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        agrees(model, prompt, answer)


async def test_half_precision_by_autocast_leaves_the_weights_alone() -> None:
    model = make_model()
    before = {name: value.clone() for name, value in model.named_parameters()}
    async with serving(model, dtype="bfloat16") as engine:
        answer = await ask(engine, prompt_of(9), max_tokens=8, ignore_eos=True)
    with torch.autocast(DEVICE, torch.bfloat16):
        agrees(model, prompt_of(9), answer, tolerance=0.15)
    assert all(value.dtype == torch.float32 and value.equal(before[name]) for name, value in model.named_parameters())


async def test_a_model_is_loaded_from_a_folder(tmp_path: Any) -> None:
    model = make_model()
    model.save_pretrained(tmp_path)
    async with serving(tmp_path, name="tiny", device=DEVICE, weight_version="v1") as engine:
        info = await engine.info()
        assert (info.models, info.context_length, info.weight_version) == (("tiny",), 512, "v1")
        agrees(model, prompt_of(5), await ask(engine, prompt_of(5), max_tokens=4))
    with pytest.raises(ConfigError, match="can't load the model"):
        await TransformersEngine(tmp_path / "none").start()


# --- sampling settings -----------------------------------------------------------------------------------------------


async def test_a_seed_gives_the_same_tokens_in_any_company() -> None:
    prompt, settings = prompt_of(12), {"max_tokens": 16, "ignore_eos": True, "temperature": 0.9}
    async with serving(make_model(), prefix_bytes=0) as engine:
        alone = await ask(engine, prompt, seed=5, **settings)
        noise = [ask(engine, prompt_of(3 + i, i), **settings) for i in range(6)]
        crowd = await asyncio.gather(ask(engine, prompt, seed=5, **settings), *noise)
        other = await ask(engine, prompt, seed=6, **settings)
        unseeded = [await ask(engine, prompt, **settings) for _ in range(2)]
    assert crowd[0].ids == alone.ids
    assert len({tuple(a.ids) for a in (alone, other, *unseeded)}) == 4


async def test_tokens_come_as_often_as_the_policy_says() -> None:
    model, prompt, n = make_model(initializer_range=0.02), prompt_of(6), 400
    with torch.no_grad():
        chances = model(torch.tensor([prompt], device=DEVICE)).logits[0, -1].softmax(-1)
    half = (chances.cumsum(-1) < 0.5).nonzero().flatten().tolist()
    expected = chances[half].sum().item()
    async with serving(model, max_batch=100) as engine:
        answers = await asyncio.gather(*(ask(engine, prompt, max_tokens=1, seed=i) for i in range(n)))
    share = sum(a.ids[0] in set(half) for a in answers) / n
    assert abs(share - expected) < 5 * math.sqrt(0.25 / n)


@pytest.mark.parametrize("settings", [{"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.3}, {"top_k": 4, "top_p": 0.8}])
async def test_what_is_cut_off_is_never_drawn(settings: dict[str, Any]) -> None:
    model, prompt = make_model(), prompt_of(6)
    with torch.no_grad():
        ordered, order = (
            (model(torch.tensor([prompt], device=DEVICE)).logits[0, -1] / 1.3).softmax(-1).sort(descending=True)
        )
    keep = ordered >= settings.get("min_p", 0.0) * ordered[0]
    keep &= torch.arange(VOCAB, device=DEVICE) < settings.get("top_k", VOCAB)
    left = ordered * keep / (ordered * keep).sum()
    keep &= left.cumsum(-1) - left < settings.get("top_p", 1.0)
    allowed = set(order[keep].tolist())
    async with serving(model, max_batch=64) as engine:
        plain = [ask(engine, prompt, max_tokens=1, seed=i) for i in range(20)]  # in the same batches
        cut = [ask(engine, prompt, max_tokens=1, seed=i, temperature=1.3, **settings) for i in range(60)]
        answers = (await asyncio.gather(*plain, *cut))[20:]
    drawn = {answer.ids[0] for answer in answers}
    assert drawn <= allowed
    assert len(drawn) > 1


async def test_bias_penalties_and_the_minimum() -> None:
    prompt, greedy = prompt_of(6), {"temperature": 0.0, "max_tokens": 12}
    async with serving(make_model()) as engine:
        biased = await ask(engine, prompt, logit_bias=((42, 1000.0),), **greedy)
        assert set(biased.ids) == {42}
        once = await ask(engine, prompt, logit_bias=((42, 1000.0),), presence_penalty=1e6, ignore_eos=True, **greedy)
        assert len(set(once.ids)) == 12
        twice = await ask(
            engine, prompt, logit_bias=((42, 1000.0),), frequency_penalty=600.0, ignore_eos=True, **greedy
        )
        assert twice.ids.count(42) == 2
        fresh = await ask(engine, prompt, repetition_penalty=1e9, ignore_eos=True, **greedy)
        assert len({*fresh.ids, *prompt}) == 12 + len(set(prompt))
        stop = await ask(engine, prompt, logit_bias=((EOS, 1000.0),), min_tokens=4, **greedy)
        assert stop.ids.index(EOS) == 4
        assert stop.finish == "stop"


async def test_stop_tokens_end_a_sequence_and_belong_to_it() -> None:
    prompt = prompt_of(6)
    async with serving(make_model()) as engine:
        free = await ask(engine, prompt, temperature=0.0, max_tokens=10, ignore_eos=True)
        stopped = await ask(engine, prompt, temperature=0.0, max_tokens=10, stop_token_ids=(free.ids[3],))
        assert stopped.ids == free.ids[: free.ids.index(free.ids[3]) + 1]
        assert stopped.finish == "stop"
        eos = await ask(engine, prompt, temperature=0.0, max_tokens=10, logit_bias=((EOS, 1000.0),))
        assert (eos.ids, eos.finish) == ([EOS], "stop")
        on = await ask(engine, prompt, temperature=0.0, max_tokens=3, logit_bias=((EOS, 1000.0),), ignore_eos=True)
        assert (on.ids, on.finish) == ([EOS] * 3, "length")


async def test_alternatives_are_the_likeliest_of_the_unmodified_policy() -> None:
    model, prompt = make_model(), prompt_of(6)
    async with serving(model) as engine:
        answer, plain = await asyncio.gather(
            ask(engine, prompt, max_tokens=4, top_logprobs=3, temperature=0.5, logit_bias=((42, 1000.0),)),
            ask(engine, prompt, max_tokens=4),
        )
    assert plain.top == []
    agrees(model, prompt, answer)
    with torch.no_grad():
        logprobs = (
            model(torch.tensor([prompt + answer.ids], device=DEVICE)).logits[0, len(prompt) - 1 :].log_softmax(-1)
        )
    for i, top in enumerate(answer.top):
        values, ids = logprobs[i].topk(3)
        assert list(top) == ids.tolist()
        assert list(top.values()) == pytest.approx(values.tolist(), abs=1e-4)


async def test_logprobs_at_the_temperature_are_those_a_trainer_computes() -> None:
    model, prompt = make_model(), prompt_of(6)
    async with serving(model, at_temperature=True) as engine:
        answers = await asyncio.gather(
            *(ask(engine, prompt, max_tokens=6, temperature=heat, top_logprobs=2) for heat in (0.5, 1.0, 0.0))
        )
    for answer, heat in zip(answers, (0.5, 1.0, 1.0), strict=True):
        ids = torch.tensor([prompt + answer.ids], device=DEVICE)
        with torch.no_grad():
            scaled = (model(ids).logits[0, len(prompt) - 1 : -1] / heat).log_softmax(-1)
        expected = scaled.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)
        assert [max(top.values()) for top in answer.top] == pytest.approx(scaled.max(-1).values.tolist(), abs=1e-4)


# --- prefixes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIGS)
async def test_the_next_turn_of_a_session_prefills_only_what_is_new(kind: str) -> None:
    model, prompt, new = make_model(kind), prompt_of(40), prompt_of(11)
    async with serving(model) as engine:
        first = await ask(engine, prompt, session="s", max_tokens=9, ignore_eos=True)
        assert engine.counters.prefilled == len(prompt) - 1
        second = await ask(engine, prompt + first.ids + new, session="s", max_tokens=9, ignore_eos=True)
        # The last sampled id had not been through the model yet, the last new one goes with the batch.
        assert engine.counters.prefilled == len(prompt) - 1 + len(new)
        assert engine.counters.reused == len(prompt) + len(first.ids) - 1
    agrees(model, prompt + first.ids + new, second)


@pytest.mark.parametrize("kind", ["llama", "sliding"])
async def test_next_turns_of_several_sessions_at_once(kind: str) -> None:
    model = make_model(kind)
    prompts = [prompt_of(20 + 3 * i, i) for i in range(4)]
    async with serving(model) as engine:
        jobs = [ask(engine, p, session="s", max_tokens=4, ignore_eos=True) for p in prompts]
        firsts = await asyncio.gather(*jobs)
        await engine.pause()  # so that they are prefilled together
        prompts = [
            p + first.ids + prompt_of(7 + 2 * i) for i, (p, first) in enumerate(zip(prompts, firsts, strict=True))
        ]
        jobs = [ask(engine, p, session="s", max_tokens=4, ignore_eos=True) for p in prompts]
        tasks = [asyncio.create_task(job) for job in jobs]
        await asyncio.sleep(0)
        await engine.resume()
        answers = await asyncio.gather(*tasks)
    for prompt, answer in zip(prompts, answers, strict=True):
        agrees(model, prompt, answer)


async def test_a_changed_history_reuses_what_it_still_shares() -> None:
    model, prompt = make_model(), prompt_of(40)
    changed = [*prompt[:25], 9, *prompt[26:]]
    async with serving(model) as engine:
        await ask(engine, prompt, session="s", max_tokens=2)
        answer = await ask(engine, changed, session="s", max_tokens=6, ignore_eos=True)
        assert engine.counters.reused == 25
    agrees(model, changed, answer)


async def test_a_group_of_rollouts_prefills_its_prompt_once() -> None:
    model, prompt = make_model(), prompt_of(100)
    async with serving(model) as engine:
        answers = await asyncio.gather(
            *(ask(engine, prompt, session=f"s{i}", max_tokens=8, ignore_eos=True) for i in range(8))
        )
        assert engine.counters.prefilled == 99
        assert engine.counters.reused == 7 * 99
    for answer in answers:
        agrees(model, prompt, answer)


async def test_kept_prefixes_are_bounded_and_the_least_used_go_first() -> None:
    model = make_model()
    each = 2 * 2 * 2 * 8 * 4 * 21  # keys and values, layers, heads, width, bytes, tokens
    async with serving(model, prefix_bytes=3 * each) as engine:
        for i in range(3):
            await ask(engine, prompt_of(20, i), session=f"s{i}", max_tokens=2, ignore_eos=True)
        await ask(engine, prompt_of(20, 0), max_tokens=1)
        await ask(engine, prompt_of(20, 3), session="s3", max_tokens=2, ignore_eos=True)
        reused = []
        for i in range(4):
            before = engine.counters.reused
            await ask(engine, prompt_of(20, i), max_tokens=1)
            reused.append(engine.counters.reused - before)
        assert reused == [19, 0, 19, 19]


# --- who is in the batch ---------------------------------------------------------------------------------------------


async def test_closing_the_iterator_frees_the_place() -> None:
    model = make_model()
    async with serving(model, max_batch=1, interval=0.0) as engine:
        stream = engine.sample(request(prompt_of(5), max_tokens=500, ignore_eos=True))
        first = await anext(stream)
        assert first.finish is None
        waiting = asyncio.create_task(ask(engine, prompt_of(7), max_tokens=3, ignore_eos=True))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await stream.aclose()
        agrees(model, prompt_of(7), await waiting)
        assert engine.counters.aborted == 1
        assert engine.counters.sampled < 500


async def test_who_waits_can_leave_too() -> None:
    async with serving(make_model(), max_batch=1) as engine:
        running = asyncio.create_task(ask(engine, prompt_of(5), max_tokens=60, ignore_eos=True))
        while not engine.counters.sampled:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await engine.pause()  # so that its place is not free before the other one has left
        waiting = asyncio.create_task(ask(engine, prompt_of(7), max_tokens=3))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await engine.resume()
        await running
        assert engine.counters.sampled == 60
        assert engine.waiting == 0


async def test_without_free_cache_the_newest_sequence_waits() -> None:
    model = make_model()
    prompts = [prompt_of(20 + i) for i in range(4)]
    async with serving(model, max_batch_tokens=130, prefix_bytes=0) as engine:
        answers = await asyncio.gather(*(ask(engine, p, max_tokens=40, ignore_eos=True, seed=3) for p in prompts))
    async with serving(model) as roomy:
        expected = await asyncio.gather(*(ask(roomy, p, max_tokens=40, ignore_eos=True, seed=3) for p in prompts))
    for prompt, answer, other in zip(prompts, answers, expected, strict=True):
        assert len(answer.ids) == 40
        assert answer.ids == other.ids
        agrees(model, prompt, answer)


async def test_chunks_come_at_intervals_but_the_first_and_the_last_at_once() -> None:
    async with serving(make_model(), interval=60.0) as engine:
        answer = await ask(engine, prompt_of(5), max_tokens=30, ignore_eos=True)
    assert answer.chunks == 2


async def test_a_request_that_is_not_streamed_gets_one_chunk() -> None:
    model = make_model()
    async with serving(model, interval=0.0) as engine:
        answer, streamed = await asyncio.gather(
            ask(engine, prompt_of(5), max_tokens=30, ignore_eos=True, stream=False),
            ask(engine, prompt_of(6), max_tokens=30, ignore_eos=True),
        )
    assert (answer.chunks, answer.spans) == (1, (("0", 30),))
    assert streamed.chunks > 2
    agrees(model, prompt_of(5), answer)


async def test_a_request_whose_event_loop_was_closed_does_not_stop_the_engine() -> None:
    engine = TransformersEngine(make_model(), interval=0.0)
    await engine.start()

    def leave_without_closing() -> None:
        loop = asyncio.new_event_loop()
        stream = engine.sample(request(prompt_of(5), max_tokens=400, ignore_eos=True))
        loop.run_until_complete(anext(stream))  # type: ignore[arg-type]
        loop.close()
        kept.append(stream)

    kept: list[Any] = []
    await asyncio.to_thread(leave_without_closing)
    assert len((await ask(engine, prompt_of(6), max_tokens=5, ignore_eos=True)).ids) == 5
    await engine.close()


# --- weights ---------------------------------------------------------------------------------------------------------


def change(model: Any) -> None:
    """A training step over the shared module."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ids = torch.tensor([prompt_of(16)], device=DEVICE)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def slow(model: Any, engine: TransformersEngine, until: Callable[[], bool], after: int = 1) -> None:
    """Have the model take its time, so that it isn't done before whoever watches it has come to act."""
    model.register_forward_pre_hook(
        lambda *_: time.sleep(0.1) if not until() and engine.counters.sampled >= after else None
    )


async def test_a_turn_may_span_an_update() -> None:
    model, prompt = make_model(attention_dropout=0.5), prompt_of(10)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    async with serving(model, interval=0.0, weight_version="a") as engine:
        answer, updated = Answer(), 0
        slow(model, engine, until=lambda: updated > 0, after=10)
        async for sampled in engine.sample(request(prompt, max_tokens=40, ignore_eos=True)):
            answer.add(sampled)
            if not updated and len(answer.ids) >= 10:

                def train() -> int:
                    with engine.updating("b"):
                        steps = engine.counters.steps
                        assert all(module.training for module in model.modules())
                        change(model)
                        assert engine.counters.steps == steps
                        return engine.counters.sampled

                updated = await asyncio.to_thread(train)
        assert engine.weight_version == "b"
        assert answer.versions == ["a"] * updated + ["b"] * (40 - updated)
        assert answer.spans == (("a", updated), ("b", 40 - updated))
        fresh = await ask(engine, prompt, max_tokens=5, ignore_eos=True)
    assert all(module.training for module in model.modules())
    model.eval()
    agrees(model, prompt, fresh)
    new = whole_pass(model, prompt, answer.ids)
    assert answer.logprobs[updated:] != pytest.approx(new[updated:], abs=1e-4), "keys and values are kept"
    model.load_state_dict(before)
    assert answer.logprobs[:updated] == pytest.approx(whole_pass(model, prompt, answer.ids)[:updated], abs=1e-4)


async def test_nothing_kept_outlives_an_update() -> None:
    model, prompt = make_model(), prompt_of(30)
    async with serving(model) as engine:
        first = await ask(engine, prompt, session="s", max_tokens=4, ignore_eos=True)
        with engine.updating("1"):
            change(model)
        longer = prompt + first.ids + prompt_of(3)
        second = await ask(engine, longer, session="s", max_tokens=4, ignore_eos=True)
        assert engine.counters.reused == 0
    agrees(model, longer, second)


async def test_who_spans_an_update_leaves_nothing_behind() -> None:
    model, prompt = make_model(), prompt_of(30)
    async with serving(model, interval=0.0) as engine:
        updated = asyncio.Event()
        slow(model, engine, until=updated.is_set)
        stream = engine.sample(request(prompt, session="s", max_tokens=60, ignore_eos=True))
        answer = Answer()
        answer.add(await anext(stream))
        with engine.updating("1"):
            change(model)
        updated.set()
        beside = await ask(engine, [*prompt, 12], max_tokens=2, ignore_eos=True)
        assert engine.counters.reused == 0
        async for sampled in stream:
            answer.add(sampled)
        assert "1" in answer.versions
        longer = prompt + answer.ids + [11]
        second = await ask(engine, longer, session="s", max_tokens=4, ignore_eos=True)
        assert engine.counters.reused == 0
    agrees(model, longer, second)
    agrees(model, [*prompt, 12], beside)


async def test_an_update_that_fails_keeps_the_version() -> None:
    async with serving(make_model()) as engine:
        with pytest.raises(ZeroDivisionError), engine.updating("1"):
            raise ZeroDivisionError
        assert engine.weight_version == "0"
        assert (await ask(engine, prompt_of(3), max_tokens=1)).versions == ["0"]
        engine.update("2")
        assert (await ask(engine, prompt_of(3), max_tokens=1)).versions == ["2"]


async def test_pause_holds_everybody_and_resume_lets_them_go_on() -> None:
    model = make_model()
    async with serving(model, interval=0.0) as engine:
        begun, paused = asyncio.Event(), asyncio.Event()
        slow(model, engine, until=paused.is_set)

        async def watched() -> Answer:
            answer = Answer()
            async for sampled in engine.sample(request(prompt_of(5), max_tokens=200, ignore_eos=True)):
                answer.add(sampled)
                begun.set()
            return answer

        running = asyncio.create_task(watched())
        await begun.wait()
        await engine.pause()
        await engine.pause()
        paused.set()
        steps = engine.counters.steps
        late = asyncio.create_task(ask(engine, prompt_of(4), max_tokens=2, ignore_eos=True))
        await asyncio.sleep(0.05)
        assert engine.counters.steps == steps
        assert not running.done()
        assert not late.done()
        await engine.resume()
        agrees(model, prompt_of(5), await running)
        agrees(model, prompt_of(4), await late)


async def test_a_pause_that_fails_or_is_cancelled_is_none() -> None:
    engine = TransformersEngine(make_model())
    with pytest.raises(EngineError, match="not been started"):
        await engine.pause()
    await engine.start()
    try:
        pausing = asyncio.create_task(engine.pause())
        await asyncio.sleep(0)
        pausing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pausing
        assert len((await ask(engine, prompt_of(4), max_tokens=2, ignore_eos=True)).ids) == 2
        await engine.pause()
        late = asyncio.create_task(ask(engine, prompt_of(4), max_tokens=2, ignore_eos=True))
        await asyncio.sleep(0.05)
        assert not late.done()
        await engine.resume()
        assert len((await late).ids) == 2
    finally:
        await engine.close()


async def test_dropout_is_off_while_sampling_and_flags_come_back_as_they_were() -> None:
    model = make_model(attention_dropout=0.9)
    model.train()
    model.model.layers[1].eval()  # a frozen part
    flags = [module.training for module in model.modules()]
    async with serving(model) as engine:
        answer = await ask(engine, prompt_of(20), max_tokens=10, ignore_eos=True)
        with engine.updating():
            assert [module.training for module in model.modules()] == flags
        change(model)  # nothing of the engine's is in the way of autograd
    assert [module.training for module in model.modules()] == flags
    torch.manual_seed(11)
    agrees(make_model(), prompt_of(20), answer)


async def test_a_peft_model_shares_its_adapter() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, lora_dropout=0.5)
    model = peft.get_peft_model(make_model("qwen3"), config).train()
    prompt = prompt_of(12)
    async with serving(model) as engine:
        first = await ask(engine, prompt, session="s", max_tokens=8, ignore_eos=True)
        model.eval()
        agrees(model, prompt, first)
        model.train()
        with engine.updating("1"):
            change(model)
        second = await ask(engine, prompt, session="s", max_tokens=8, ignore_eos=True)
    model.eval()
    agrees(model, prompt, second)
    with model.disable_adapter():
        assert second.logprobs != pytest.approx(whole_pass(model, prompt, second.ids), abs=1e-4)


# --- faults ----------------------------------------------------------------------------------------------------------


async def test_nan_fails_only_those_who_see_it() -> None:
    model = make_model()
    with torch.no_grad():
        model.model.embed_tokens.weight[99] = float("nan")
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().nan_to_num())
    well = [[id for id in prompt_of(length) if id != 99] for length in (60, 9, 10, 11)]
    bad = [99, *prompt_of(40)]
    settings = {"max_tokens": 20, "ignore_eos": True, "logit_bias": ((99, -1000.0),)}
    async with serving(model) as engine:
        await engine.pause()  # so that the bad one has neighbours, and one of them takes its place
        jobs = [ask(engine, prompt, **settings) for prompt in (well[0], bad, *well[1:])]
        tasks = [asyncio.create_task(job) for job in jobs]
        await asyncio.sleep(0.01)
        await engine.resume()
        first, error, *others = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(error, EngineError)
        assert "not finite" in str(error)
        assert not error.sampled_any
    for prompt, answer in zip(well, [first, *others], strict=True):
        assert isinstance(answer, Answer), answer
        agrees(model, prompt, answer)


async def test_a_context_that_overflows_is_refused_and_says_by_how_much() -> None:
    async with serving(make_model()) as engine:
        with pytest.raises(EngineError, match="8 more than the context of 512") as caught:
            await ask(engine, prompt_of(500), max_tokens=20)
        assert caught.value.status == 400
        with pytest.raises(EngineError, match="1 more than the context of 512"):
            await ask(engine, prompt_of(512))
        answer = await ask(engine, prompt_of(509), ignore_eos=True)
        assert (len(answer.ids), answer.finish) == (3, "length")


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"prompt": [VOCAB]}, 400, "token id 300, but the model has 300"),
        ({"prompt": []}, 400, "empty"),
        ({"max_tokens": 0}, 400, "max_tokens is 0"),
        ({"logit_bias": ((-1, 1.0),)}, 400, "logit_bias has token id -1"),
        ({"json_schema": {}}, 400, "needs the engine's `tokenizer`"),
    ],
)
async def test_what_cannot_be_sampled_is_refused(change: dict[str, Any], status: int, says: str) -> None:
    async with serving(make_model()) as engine:
        with pytest.raises(EngineError, match=says) as caught:
            await ask(engine, **{"prompt": [1, 2]} | change)
        assert caught.value.status == status
        with pytest.raises(EngineError, match="not 'other'") as caught:
            await anext(engine.sample(SampleRequest(array(IDS, [1]), Sampling(), model="other")))
        assert caught.value.status == 404


async def test_a_full_queue_is_refused() -> None:
    async with serving(make_model(), max_batch=1, max_queue=1) as engine:
        await engine.pause()
        waiting = asyncio.create_task(ask(engine, prompt_of(3), max_tokens=1))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineError) as caught:
            await ask(engine, prompt_of(3))
        assert caught.value.status == 503
        assert caught.value.retry_after
        await engine.resume()
        await waiting


class Faulty(torch.nn.Module):
    """A layer that fails when asked to."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.failing: Any = lambda ids: None

    def forward(self, ids: torch.Tensor) -> Any:
        self.failing(ids)
        return self.inner(ids)

    @property
    def weight(self) -> Any:
        return self.inner.weight


def faulty() -> tuple[Any, Faulty]:
    model = make_model()
    layer = Faulty(model.model.embed_tokens)
    model.model.embed_tokens = layer
    return model, layer


async def test_a_failing_model_fails_only_its_batch() -> None:
    model, layer = faulty()
    async with serving(model, interval=0.0) as engine:
        jobs = [ask(engine, prompt_of(5 + i), max_tokens=400, ignore_eos=True) for i in range(2)]
        running = [asyncio.create_task(job) for job in jobs]

        def fail(ids: torch.Tensor) -> None:
            if ids.shape == (2, 1) and engine.counters.steps > 5:
                raise RuntimeError("a broken kernel")

        layer.failing = fail
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(outcome, EngineError)
            assert "a broken kernel" in str(outcome)
            assert outcome.sampled_any
        agrees(model, prompt_of(4), await ask(engine, prompt_of(4), max_tokens=4))


async def test_out_of_memory_makes_the_newest_wait() -> None:
    model, layer = faulty()

    def only_two(ids: torch.Tensor) -> None:
        if len(ids) > 2 or ids.shape[1] > 70:
            raise torch.OutOfMemoryError("CUDA out of memory")

    layer.failing = only_two
    prompts = [prompt_of(80 + i) for i in range(4)]
    async with serving(model, prefill_tokens=512) as engine:
        answers = await asyncio.gather(*(ask(engine, p, max_tokens=8, ignore_eos=True) for p in prompts))
        assert engine.counters.preempted
    layer.failing = lambda ids: None
    for prompt, answer in zip(prompts, answers, strict=True):
        agrees(model, prompt, answer)


async def test_out_of_memory_while_the_buffers_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    zeros, grown = torch.zeros, []

    def scarce(*shape: Any, **options: Any) -> torch.Tensor:
        if len(shape) == 4 and shape[2] > 300:  # keys and values of the batch, once it is larger than at first
            grown.append(shape)
            if len(grown) in (3, 4, 9):  # between two layers
                raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros(*shape, **options)

    monkeypatch.setattr(torch, "zeros", scarce)
    prompts = [prompt_of(20 + i) for i in range(3)]
    async with serving(model) as engine:
        answers = await asyncio.gather(*(ask(engine, p, max_tokens=300, ignore_eos=True) for p in prompts))
    assert len(grown) > 9
    for prompt, answer in zip(prompts, answers, strict=True):
        agrees(model, prompt, answer)


async def test_out_of_memory_alone_is_an_error_with_a_hint() -> None:
    model, layer = faulty()

    def never(ids: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    layer.failing = never
    async with serving(model) as engine:
        for length in (1, 90):
            with pytest.raises(EngineError, match=r"out of memory[^\n]*\nhint: lower"):
                await ask(engine, prompt_of(length), max_tokens=8)


async def test_the_end_is_an_end_for_everybody() -> None:
    engine = TransformersEngine(make_model(), interval=0.0)
    with pytest.raises(EngineError, match="not been started"):
        await anext(engine.sample(request([1])))
    await engine.start()
    await engine.start()
    stream = engine.sample(request(prompt_of(5), max_tokens=500, ignore_eos=True))
    await anext(stream)
    await engine.close()
    with pytest.raises(EngineError, match="closed") as caught:
        async for _ in stream:
            pass
    assert caught.value.sampled_any
    with pytest.raises(EngineError, match="closed"):
        await anext(engine.sample(request([1])))
    await engine.close()


# --- with a tokenizer ------------------------------------------------------------------------------------------------


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={"<eos>": 0} | {b: i + 1 for i, b in enumerate(bytes_)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


async def test_stop_strings_end_a_sequence_where_there_is_a_tokenizer() -> None:
    tokenizer = make_tokenizer()
    model = make_model()
    model.generation_config.eos_token_id = model.config.eos_token_id = 0
    ids = tokenizer.encode("the end.")
    letters = tuple((token, 1000.0) for token in tokenizer.encode("abcdefghijklmnopqrstuvwxyz"))
    async with serving(model, tokenizer=tokenizer) as engine:
        free = await ask(engine, ids, max_tokens=30, seed=4, logit_bias=letters)
        said = tokenizer.decode(free.ids[5:7])
        answer = await ask(engine, ids, max_tokens=30, seed=4, logit_bias=letters, stop=("", "never", said))
    assert answer.finish == "stop"
    assert answer.ids == free.ids[: tokenizer.decode(free.ids).index(said) + 2]


async def test_json_of_a_schema() -> None:
    pytest.importorskip("llguidance")
    model = make_model()
    model.generation_config.eos_token_id = model.config.eos_token_id = 0
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "integer", "maximum": 99, "minimum": 0}, "sure": {"type": "boolean"}},
        "required": ["answer", "sure"],
        "additionalProperties": False,
    }
    tokenizer = make_tokenizer()
    async with serving(model, tokenizer=tokenizer) as engine:
        prompt = tokenizer.encode("What is it?")
        answers = await asyncio.gather(
            *(ask(engine, prompt, max_tokens=200, json_schema=schema, seed=i) for i in range(4)),
            ask(engine, prompt, max_tokens=5, ignore_eos=True),
        )
        for answer in answers[:4]:
            assert answer.finish == "stop"
            found = json.loads(tokenizer.decode(answer.ids, skip_special_tokens=True))
            assert set(found) == {"answer", "sure"}
            agrees(model, prompt, answer)
        start = await ask(engine, prompt, max_tokens=1, json_schema={})
        assert tokenizer.decode(start.ids) == "{"
        with pytest.raises(EngineError, match="can't be followed") as caught:
            await ask(engine, prompt, json_schema={"type": "nonsense"})
        assert caught.value.status == 400
