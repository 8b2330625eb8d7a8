"""A teacher: a larger model's logprobs of the tokens that the policy sampled, for on-policy distillation.

    advantage of a token = reward_weight · (advantage of its rollout or turn)
                         + teacher_weight · (log teacher(token) − log policy(token))

The second term's mean over samples is the gradient of −KL(policy ‖ teacher) at each token, given what came before it.
TRL's distillation trainers do their own sampling and can't take agents' rollouts. The teacher is part of the advantage
instead, so every loss that takes one advantage per token can use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from ...common.private_loop import PrivateLoop
from ...engine.checkpoints import resolve_model
from ...engine.remote.vllm import VllmEngine
from ...engine.transformers.model_runner import load
from ...errors import ConfigError, EngineError
from ...rollout.rollout import SplitRow
from ...rollout.signal.credit import Floats
from .backend import SERVER

Teacher = Callable[[Sequence[Sequence[int]]], list[Floats]]
"""For each sequence of token ids the logprob of every token but the first, given those before it."""

_CONCURRENT = 16
_MOST = 20.0
"""The most that the teacher's logprob may differ from the policy's: no token's advantage is infinite."""


@dataclass
class Distillation:
    """What a teacher adds to the advantages of tokens."""

    teacher: Teacher
    weight: float = 1.0
    reward_weight: float = 1.0
    """How much the advantage from rewards counts; 0 distills only."""
    kl: float = 0.0
    """log policy − log teacher, summed over the trained tokens of the latest batch."""
    tokens: int = 0
    """How many tokens `kl` sums over."""

    def compare(self, rows: Sequence[SplitRow]) -> list[Floats]:
        """log teacher − log policy of every token after a row's prompt; 0 where nothing is trained."""
        places = [place for place, (*_, mask) in enumerate(rows) if any(mask)]
        given = self.teacher([[*rows[place][0], *rows[place][1]] for place in places])
        gaps: list[Floats] = [np.zeros(len(completion)) for _, completion, *_ in rows]
        for place, values in zip(places, given, strict=True):
            _, completion, sampled, mask = rows[place]
            gaps[place] = np.clip(values[-len(completion) :] - np.array(sampled), -_MOST, _MOST) * np.array(mask)
        self.kl = -float(sum(values.sum() for values in gaps))
        self.tokens = sum(sum(mask) for *_, mask in rows)
        return gaps

    def advantages(self, by_reward: Sequence[Floats], gaps: Sequence[Floats]) -> list[Floats]:
        """The advantage of every token, from the one that rewards give it."""
        return [self.reward_weight * a + self.weight * b for a, b in zip(by_reward, gaps, strict=True)]


def open_teacher(spec: str, *, temperature: float, batch_size: int, device: str | None, vocabulary: int) -> Teacher:
    """The teacher that `spec` names: a model in this process, or `vllm=URL`."""
    if not spec.startswith(SERVER):
        model = load(resolve_model(spec), device, None).requires_grad_(False)
        known = int(model.get_input_embeddings().num_embeddings)
        if known < vocabulary:
            hint = "a teacher needs the policy's tokenizer"
            raise ConfigError(f"the teacher {spec} has {known} tokens, and the policy has {vocabulary}", hint=hint)
        return lambda sequences: model_logprobs(model, sequences, temperature, batch_size)
    if temperature != 1.0:
        hint = "set temperature=1, or name a model that is loaded in this process"
        raise ConfigError(f"a server gives a teacher's logprobs at temperature 1, not {temperature:g}", hint=hint)
    return lambda sequences: server_logprobs(spec.removeprefix(SERVER), sequences)


def model_logprobs(
    model: torch.nn.Module, sequences: Sequence[Sequence[int]], temperature: float, batch_size: int
) -> list[Floats]:
    """A model's logprobs at a temperature, in batches of similar length."""
    found: list[Floats] = [np.zeros(0)] * len(sequences)
    order = sorted(range(len(sequences)), key=lambda place: len(sequences[place]))
    device = next(model.parameters()).device
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        ids = [torch.tensor(list(sequences[place])) for place in places]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(device)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], batch_first=True).to(device)
        with torch.no_grad():
            logits = model(input_ids=padded, attention_mask=mask).logits[:, :-1].float() / temperature
        chosen = logits.gather(2, padded[:, 1:, None])[:, :, 0] - logits.logsumexp(2)
        for place, one, values in zip(places, ids, chosen.double().cpu().numpy(), strict=True):
            found[place] = values[: len(one) - 1]
    return found


def server_logprobs(url: str, sequences: Sequence[Sequence[int]]) -> list[Floats]:
    """The logprobs of a vLLM server's model."""
    loop = PrivateLoop("teacher")
    try:
        return loop.run(_ask_server(url, sequences))
    finally:
        loop.close()


async def _ask_server(url: str, sequences: Sequence[Sequence[int]]) -> list[Floats]:
    engine, slots = VllmEngine(url), asyncio.Semaphore(_CONCURRENT)

    async def ask(ids: Sequence[int]) -> Floats:
        body = {"prompt": list(ids), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 1}
        async with slots:
            with await engine.http.post("/v1/completions", msgspec.json.encode(body)) as response:
                answer = await response.read()
        return read_prompt_logprobs(answer, ids)

    await engine.start()
    try:
        return await asyncio.gather(*(ask(ids) for ids in sequences))
    finally:
        await engine.close()


def read_prompt_logprobs(answer: bytes, ids: Sequence[int]) -> Floats:
    """The logprobs of a prompt's tokens in vLLM's answer."""
    try:
        (choice,) = msgspec.json.decode(answer)["choices"]
        known: list[dict[str, Any] | None] = choice["prompt_logprobs"]
        values = [one[str(token)]["logprob"] for one, token in zip(known[1:], ids[1:], strict=True) if one is not None]
        logprobs = np.array(values, np.float64)
        if len(logprobs) == len(ids) - 1:
            return logprobs
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        pass
    raise EngineError(f"the teacher's answer has no logprobs of its {len(ids)} prompt tokens: {answer[:200]!r}")
