"""Trains the tiny model from nothing: first to solve the problems well, then into habits that are mediocre.

Only what the assistant says is learned. The skill stays when the habits change, and reinforcement learning finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from corpus import MEDIOCRE, SKILLED, TOOLS, Message, conversations
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config, Qwen3ForCausalLM

_IGNORED = -100


@dataclass(frozen=True)
class Shape:
    """How large the model is, and how long it is trained."""

    hidden: int = 128
    layers: int = 4
    inner: int = 384
    heads: int = 4
    skill_steps: int = 350
    habit_steps: int = 250
    batch: int = 32
    rate: float = 3e-3


def make_model(tokenizer: Any, shape: Shape) -> Any:
    """The model with random weights."""
    end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=padding,
    )
    return Qwen3ForCausalLM(config)


def train(model: Any, tokenizer: Any, shape: Shape, seed: int, say: Callable[[str], object] = print) -> None:
    """Skill, then habits."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape.rate, betas=(0.9, 0.98), weight_decay=0.01)
    steps = shape.skill_steps + shape.habit_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    bare = (messages[1:] for messages in conversations(SKILLED, seed))  # what is constant would only take time
    skill = islice(batches(bare, tokenizer, shape.batch), shape.skill_steps)
    habit = islice(batches(conversations(MEDIOCRE, seed + 1), tokenizer, shape.batch), shape.habit_steps)
    for step, (ids, labels) in enumerate(chain(skill, habit)):
        logits = model(input_ids=ids).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            say(f"step {step} of {steps}: loss {loss.item():.3f}")


def _rate(step: int, steps: int) -> float:
    """Up quickly, then down in a curve, to a twentieth."""
    return min(1.0, (step + 1) / 50) * (0.525 + 0.475 * math.cos(math.pi * step / steps))


def batches(talks: Iterable[list[Message]], tokenizer: Any, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and labels, padded on the right: what comes later is invisible to what is learned."""
    talks = iter(talks)
    while batch := [encode(messages, tokenizer) for messages in islice(talks, size)]:
        longest = max(len(ids) for ids, _ in batch)
        yield (
            torch.tensor([ids + [tokenizer.pad_token_id] * (longest - len(ids)) for ids, _ in batch]),
            torch.tensor([labels + [_IGNORED] * (longest - len(labels)) for _, labels in batch]),
        )


def encode(messages: list[Message], tokenizer: Any) -> tuple[list[int], list[int]]:
    """A conversation's ids, and the same with only the assistant's words and ends of turns left."""
    tools = TOOLS if messages[0]["role"] == "system" else None
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    labels, speaking = [], False
    for place, token in enumerate(ids):
        labels.append(token if speaking else _IGNORED)
        if speaking:
            speaking = token != tokenizer.eos_token_id
        elif ids[place + 1 - len(opening) : place + 1] == opening:
            speaking = True
    return ids, labels
