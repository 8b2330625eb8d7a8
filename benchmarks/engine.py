"""The Transformers engine: tokens per second against plain `model.generate`, same random model, in the same run.

Equal: 1, 4 and 16 requests with prompts of one length that sample the same number of tokens, which suits `generate`.
Ragged: prompts and answers of different lengths; `generate` pads the prompts and goes on until the last one is done.
Rollouts: groups of sessions as in training, two turns each, many prompts at once that begin alike; against two padded
calls of `generate`.
Turns: a session of several turns, each prompt the one before with its answer and a few new tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from array import array
from random import Random
from typing import Any

import torch
from report import percentile, write
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.engine import IDS, SampleRequest, Sampling
from agentcore_rl_toolkit.engine.transformers import TransformersEngine

SIZES: dict[str, Any] = {
    "smollm2-135m": LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
    ),
    "qwen3-0.6b": Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    ),
}

Job = tuple[list[int], int]
"""A prompt, and how many tokens to sample."""


async def engine_run(engine: TransformersEngine, jobs: list[Job]) -> float:
    """Seconds until all are done."""

    async def one(prompt: list[int], count: int) -> None:
        sampling = Sampling(max_tokens=count, ignore_eos=True)
        got = 0
        async for sampled in engine.sample(SampleRequest(array(IDS, prompt), sampling)):
            got += len(sampled.token_ids)
        assert got == count

    begun = time.perf_counter()
    await asyncio.gather(*(one(*job) for job in jobs))
    return time.perf_counter() - begun


def generate_run(model: Any, jobs: list[Job]) -> float:
    """The same as one padded batch, for as long as the longest takes."""
    longest = max(len(prompt) for prompt, _ in jobs)
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt, _ in jobs], device=model.device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in jobs], device=model.device)
    count = max(count for _, count in jobs)
    begun = time.perf_counter()
    output = model.generate(
        ids, attention_mask=mask, do_sample=True, max_new_tokens=count, min_new_tokens=count, pad_token_id=0
    )
    assert len(output[0, longest:].tolist()) == count
    return time.perf_counter() - begun


async def compare(model: Any, kinds: dict[str, list[Job]], rounds: int) -> dict[str, Any]:
    # Nothing is reused between rounds: `generate` does not either.
    engine = TransformersEngine(model, prefix_bytes=0, max_batch=64)
    await engine.start()
    figures: dict[str, Any] = {}
    rows = []
    try:
        for name, jobs in kinds.items():
            tokens = sum(count for _, count in jobs)
            await engine_run(engine, jobs)
            await asyncio.to_thread(generate_run, model, jobs)
            ours, theirs = [], []
            for _ in range(rounds):  # by turns, so that a noisy moment hits both
                ours.append(tokens / await engine_run(engine, jobs))
                theirs.append(tokens / await asyncio.to_thread(generate_run, model, jobs))
            a, b = percentile(ours, 0.5), percentile(theirs, 0.5)
            figures[name] = {
                "engine_tokens_per_s": round(a, 1),
                "generate_tokens_per_s": round(b, 1),
                "ratio": round(a / b, 2),
            }
            rows.append([name, f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}"])
            print(*rows[-1], flush=True)
    finally:
        await engine.close()
    print(format_table(["requests", "engine tokens/s", "generate tokens/s", "ratio"], rows) + "\n")
    return figures


def make_rollouts(groups: int, n: int) -> list[tuple[list[int], int, list[int], int]]:
    """Prompt, tokens of the first turn, what a tool says, tokens of the second."""
    dice = Random(2)
    system, rollouts = some_ids(dice, 160), []
    for _ in range(groups):
        prompt = system + some_ids(dice, dice.randrange(15, 45))
        for _ in range(n):
            first, second = dice.randrange(8, 40), dice.randrange(4, 24)
            rollouts.append((prompt, first, some_ids(dice, dice.randrange(8, 20)), second))
    return rollouts


async def rollouts_run(engine: TransformersEngine, rollouts: list[tuple[list[int], int, list[int], int]]) -> float:
    """Seconds until all are done."""

    async def turn(ids: list[int], count: int, session: str) -> list[int]:
        got: list[int] = []
        sampling = Sampling(max_tokens=count, ignore_eos=True)
        async for sampled in engine.sample(SampleRequest(array(IDS, ids), sampling, session_id=session)):
            got += sampled.token_ids
        return ids + got

    async def one(i: int) -> None:
        prompt, first, reply, second = rollouts[i]
        await turn(await turn(prompt, first, f"s{i}") + reply, second, f"s{i}")

    begun = time.perf_counter()
    await asyncio.gather(*(one(i) for i in range(len(rollouts))))
    return time.perf_counter() - begun


async def rollouts_benchmark(model: Any, groups: int, n: int, rounds: int, dtype: str | None) -> dict[str, Any]:
    rollouts = make_rollouts(groups, n)
    dice = Random(3)
    longer = [(prompt + some_ids(dice, first) + reply, second) for prompt, first, reply, second in rollouts]
    tokens = sum(first + second for _, first, _, second in rollouts)
    seconds: dict[str, list[float]] = {"engine": [], "generate": []}
    engine = TransformersEngine(model, max_batch=len(rollouts), dtype=dtype)
    await engine.start()

    def generate() -> float:
        with torch.autocast(model.device.type, getattr(torch, dtype or "float32"), enabled=dtype is not None):
            first = generate_run(model, [(prompt, first) for prompt, first, _, _ in rollouts])
            return first + generate_run(model, longer)

    for i in range(rounds + 2):  # by turns; the first two are for getting warm
        seconds["engine"].append(await rollouts_run(engine, rollouts))
        engine.update(str(i))
        seconds["generate"].append(await asyncio.to_thread(generate))
    await engine.close()
    figures = {
        name: {
            "seconds": round(percentile(some[2:], 0.5), 3),
            "tokens_per_s": round(tokens / percentile(some[2:], 0.5), 1),
        }
        for name, some in seconds.items()
    }
    rows = [[name, str(f["seconds"]), str(f["tokens_per_s"])] for name, f in figures.items()]
    print(format_table([f"{groups} groups of {n} rollouts", "seconds", "tokens/s"], rows) + "\n")
    return figures


async def turns_benchmark(model: Any, turns: int, prompt: int, count: int) -> dict[str, Any]:
    """Seconds a turn, with and without what was kept of the turn before."""
    figures, rows = {}, []
    for name, kept in (("prefix kept", 4 << 30), ("prefix not kept", 0)):
        engine = TransformersEngine(model, prefix_bytes=kept)
        await engine.start()
        dice, seconds = Random(1), []
        ids = some_ids(dice, prompt)
        for _ in range(turns):
            begun = time.perf_counter()
            sampling = Sampling(max_tokens=count, ignore_eos=True)
            async for sampled in engine.sample(SampleRequest(array(IDS, ids), sampling, session_id="s")):
                ids = ids + sampled.token_ids
            seconds.append(time.perf_counter() - begun)
            ids = ids + some_ids(dice, 32)
        figures[name] = {
            "last_turn_s": round(seconds[-1], 3),
            "all_turns_s": round(sum(seconds), 2),
            "prefilled_tokens": engine.counters.prefilled,
        }
        rows.append([name, f"{seconds[-1]:.3f}", f"{sum(seconds):.2f}", str(engine.counters.prefilled)])
        await engine.close()
    print(format_table([f"{turns} turns from {prompt} tokens", "last turn s", "all s", "prefilled tokens"], rows))
    return figures


def some_ids(dice: Random, count: int) -> list[int]:
    return [dice.randrange(10, 40000) for _ in range(count)]


def make_jobs(prompt: int, count: int) -> dict[str, list[Job]]:
    dice = Random(0)
    kinds: dict[str, list[Job]] = {}
    for n in (1, 4, 16):
        kinds[f"{n}, equal"] = [(some_ids(dice, prompt), count) for _ in range(n)]
    for n in (4, 16):
        spread = [(prompt // 4 + 3 * prompt * i // (2 * n), count // 4 + 3 * count * i // (2 * n)) for i in range(n)]
        kinds[f"{n}, ragged"] = [(some_ids(dice, length), max(1, tokens)) for length, tokens in spread]
    return kinds


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--groups", type=int, default=2, help="of rollouts; 0 for none")
    parser.add_argument("-n", type=int, default=8, help="rollouts of a group")
    parser.add_argument("--autocast", help="for rollouts: what to cast to, as a trainer does it")
    parser.add_argument("--only", choices=["throughput", "rollouts", "turns"])
    args = parser.parse_args()
    torch.manual_seed(0)
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(SIZES[args.size], dtype=getattr(torch, args.dtype)).eval()
    device = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{args.size} in {args.dtype} on {device}, {args.prompt} tokens of prompt, {args.tokens} sampled\n")
    figures: dict[str, Any] = {"setting": vars(args) | {"device": device, "torch": torch.__version__}}
    if args.only in (None, "throughput"):
        figures["throughput"] = await compare(model, make_jobs(args.prompt, args.tokens), args.rounds)
    if args.only in (None, "rollouts") and args.groups:
        figures["rollouts"] = await rollouts_benchmark(model, args.groups, args.n, args.rounds, args.autocast)
    if args.only in (None, "turns"):
        figures["turns"] = await turns_benchmark(model, args.turns, 8 * args.prompt, args.tokens)
    write("engine" if args.device == "cpu" else f"engine_{args.device}", figures)


if __name__ == "__main__":
    asyncio.run(main())
