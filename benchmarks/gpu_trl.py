"""One case of `gpu.py` with TRL or an engine, in a separate process; prints its figures as a line of JSON.

    python benchmarks/gpu_trl.py steps-colocate FOLDER

`steps-…`: seconds of a training step of 128 rollouts. `sample-…`: seconds to sample 128 sequences, 8 of a prompt. The
model in FOLDER has made weights, so it never calls a tool, and all that counts is time. `tiny-…`: seconds of a step of
128 rollouts of the built-in policy, which does call its tool; with `-workers`, the gateway is in two processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
AGENT = ROOT / "examples" / "strands_math_agent"
sys.path.insert(0, str(AGENT))
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

ROWS, N, STEPS, PROMPT, TOKENS, ROUNDS = 16, 8, 6, 64, 128, 5


def main(case: str, model: str) -> None:
    kind, _, how = case.partition("-")
    with tempfile.TemporaryDirectory() as folder:
        if kind == "sample":
            found = sampling_seconds(how, model)
        else:
            found = step_seconds(how, model, Path(folder), tokens=TOKENS if kind == "steps" else 64)
    print(json.dumps(found))


# --- training steps --------------------------------------------------------------------------------------------------


class RolloutThreads:
    """Reads the CPU time of this process's threads that serve rollouts, every half second."""

    NAMES = ("gateway", "rollout", "announcements", "local-runtime")

    def __enter__(self) -> RolloutThreads:
        self._seen: list[tuple[float, dict[int, float]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def cores(self) -> float:
        """How much of a core they used in the second half."""
        (began, before), (ended, after) = self._seen[len(self._seen) // 2], self._seen[-1]
        return round(sum(value - before.get(number, 0.0) for number, value in after.items()) / (ended - began), 3)

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            names = {thread.native_id: thread.name for thread in threading.enumerate()}
            self._seen.append((time.monotonic(), dict(self._read(names))))

    def _read(self, names: dict[int | None, str]) -> Iterator[tuple[int, float]]:
        for number, name in names.items():
            if number is not None and name.startswith(self.NAMES):
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/self/task/{number}/stat").read_text().rpartition(")")[2].split()
                    yield number, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def step_seconds(how: str, model: str, folder: Path, tokens: int) -> dict[str, Any]:
    """Seconds of a step: ours with an engine, or TRL alone on the same prompts without an agent."""
    from problems import problems

    from agentcore_rl_toolkit.backends.trl import TrlSettings, train

    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(one.row) + "\n" for one in islice(problems("train"), 4 * ROWS)))
    how, _, workers = how.partition("-")
    vllm = "colocate" if how in ("colocate", "trl_vllm") else None
    settings = TrlSettings(
        agent=str(AGENT / "rl_app.py"),
        data=str(rows),
        model=model,
        output=str(folder / "run"),
        steps=STEPS,
        rows_per_step=ROWS,
        n=N,
        batch_size=ROWS * N,
        concurrency=ROWS * N,
        tps_limit=1000.0,
        max_tokens=tokens,
        gateway={"workers": 2} if workers else {},
        dtype="bfloat16",
        save_every=1000,
        failures={"truncated": "train", "agent_error": "train"},  # made weights seldom end a reply
        vllm=vllm,
        options={"vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": 1024} if vllm else {},
    )
    if how.startswith("trl"):
        return _trl_alone(settings)
    with RolloutThreads() as threads:
        train(settings)
    steps = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return {
        "step_s": round(statistics.median(step["step_time"] for step in steps[1:]), 3),
        "rollouts_s": round(statistics.median(step["seconds/rollouts"] for step in steps[1:]), 3),
        "tokens_per_rollout": round(statistics.fmean(step["length/sampled_tokens"] for step in steps[1:]), 1),
        "fidelity": min(step["fidelity"] for step in steps),
        "cores_of_rollouts_in_the_trainer": threads.cores(),
    }


def _trl_alone(settings: Any) -> dict[str, Any]:
    from datasets import Dataset
    from trl import GRPOTrainer

    from agentcore_rl_toolkit.backends.trl.grpo_config import load_policy, trl_config

    model, tokenizer = load_policy(settings)
    prompts = [json.loads(line)["prompt"] for line in Path(settings.data).read_text().splitlines()]
    data = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in prompts]

    def length(completions: list[Any], **_: Any) -> list[float]:
        return [float(len(completion[-1]["content"]) % 7) for completion in completions]

    config = trl_config(settings)
    config.max_completion_length = settings.max_tokens
    trainer = GRPOTrainer(
        model, [length], args=config, train_dataset=Dataset.from_list(data), processing_class=tokenizer
    )
    trainer.train()
    logs = [line for line in trainer.state.log_history if "step_time" in line][1:]
    return {
        "step_s": round(statistics.median(line["step_time"] for line in logs), 3),
        "tokens_per_rollout": round(statistics.fmean(line["completions/mean_length"] for line in logs), 1),
    }


# --- sampling alone --------------------------------------------------------------------------------------------------


def sampling_seconds(how: str, model: str) -> dict[str, Any]:
    """Seconds to sample every sequence to its full length, the median of several rounds after a first one."""
    prompts = [[(7 * i + 13 * k) % 200 + 5 for k in range(PROMPT)] for i in range(ROWS) for _ in range(N)]
    sample = _SAMPLERS[how](model)
    taken = []
    for _ in range(ROUNDS + 1):
        began = time.monotonic()
        counts = sample(prompts)
        taken.append(time.monotonic() - began)
        assert counts == [TOKENS] * len(prompts), counts
    seconds = statistics.median(taken[1:])
    return {"seconds": round(seconds, 3), "tokens_per_s": round(len(prompts) * TOKENS / seconds)}


Sampler = Callable[[list[list[int]]], list[int]]
"""Samples from prompts, and returns how many tokens each got."""


def _our_engine(model: str) -> Sampler:
    from agentcore_rl_toolkit.engine.base import IDS, SampleRequest, Sampling
    from agentcore_rl_toolkit.engine.transformers import TransformersEngine

    engine = TransformersEngine(model, dtype="bfloat16", max_batch=ROWS * N, prefix_bytes=0)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(engine.start())
    sampling = Sampling(max_tokens=TOKENS, temperature=1.0, ignore_eos=True)

    async def one(prompt: list[int]) -> int:
        request = SampleRequest(array(IDS, prompt), sampling, stream=False)
        return sum([len(part.token_ids) async for part in engine.sample(request)])

    async def every(prompts: list[list[int]]) -> list[int]:
        return list(await asyncio.gather(*map(one, prompts)))

    return lambda prompts: loop.run_until_complete(every(prompts))


def _load(model: str, attention: str = "sdpa") -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, attn_implementation=attention)
    return loaded.cuda().eval(), GenerationConfig(
        do_sample=True, max_new_tokens=TOKENS, min_new_tokens=TOKENS, eos_token_id=-1, pad_token_id=0
    )


def _generate(model: str) -> Sampler:
    import torch

    loaded, config = _load(model)

    def sample(prompts: list[list[int]]) -> list[int]:
        ids = torch.tensor(prompts, device="cuda")
        out = loaded.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return [len(row) - PROMPT for row in out]

    return sample


def _generate_batch(model: str) -> Sampler:
    loaded, config = _load(model)

    def sample(prompts: list[list[int]]) -> list[int]:
        out = loaded.generate_batch(inputs=prompts, generation_config=config)
        return [len(one.generated_tokens) for one in out.values()]

    return sample


def _vllm(model: str, *, seeded: bool = False) -> Sampler:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model, dtype="bfloat16", max_model_len=1024, gpu_memory_utilization=0.3, logprobs_mode="processed_logprobs"
    )
    plain = SamplingParams(temperature=1.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, logprobs=0)

    def sample(prompts: list[list[int]]) -> list[int]:
        params = []
        for number in range(len(prompts)):
            params.append(plain.clone())
            params[-1].seed = number if seeded else None
        out = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [len(one.outputs[0].token_ids) for one in out]

    return sample


_SAMPLERS: dict[str, Callable[[str], Sampler]] = {
    "engine": _our_engine,
    "generate": _generate,
    "generate_batch": _generate_batch,
    "vllm": _vllm,
    "vllm_seeded": lambda model: _vllm(model, seeded=True),
}


if __name__ == "__main__":
    main(*sys.argv[1:])
