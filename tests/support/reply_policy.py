"""A policy that can learn, in place of a model: a number for each reply, of which one is drawn.

The fakes of Tinker and of SageMaker's training sessions sample from it, and add up the gradient of the
importance-sampling loss in these numbers.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Sampled = tuple[int, float, str]
"""A token, its logprob, and the finish of the whole reply."""


@dataclass(frozen=True)
class Weights:
    """A model at one moment."""

    numbers: tuple[float, ...] = ()
    """Of each reply; the more, the likelier."""
    steps: int = 0

    def moved(self, gradient: Sequence[float], rate: float) -> Weights:
        moved = [number + rate * slope for number, slope in zip(self.numbers, gradient, strict=True)]
        return Weights(tuple(moved), self.steps + 1)


@dataclass
class Seen:
    """A datum as it arrived."""

    tokens: list[int]
    inputs: dict[str, list[float]]


@dataclass
class ReplyPolicy:
    """`replies` are what it can say, as token ids. All of a reply's probability is at its first token."""

    replies: Sequence[Sequence[int]]
    seed: int = 0
    scale: float = 1.0
    """How much larger steps are than the learning rate says."""
    _dice: dict[str, random.Random] = field(default_factory=dict)
    """By prompt, so that what a row gets doesn't depend on which request was first."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def new(self) -> Weights:
        return Weights((0.0,) * len(self.replies))

    def zero(self) -> list[float]:
        """A gradient of nothing."""
        return [0.0] * len(self.replies)

    def sample(self, weights: Weights, prompt: list[int], params: Mapping[str, Any]) -> list[Sampled]:
        chances = _softmax(weights.numbers)
        with self._lock:
            dice = self._dice.setdefault(str(prompt), random.Random(f"{self.seed}/{prompt}"))
            drawn = dice.choices(range(len(chances)), chances)[0]
        tokens = self.replies[drawn][: params["max_tokens"]]
        finish = "length" if len(tokens) < len(self.replies[drawn]) else "stop"
        return [(token, math.log(chances[drawn]) if i == 0 else 0.0, finish) for i, token in enumerate(tokens)]

    def learn(self, weights: Weights, datum: Seen, gradient: list[float]) -> float:
        """Add a datum's part of the gradient of Σ ratio · advantage; gives its loss."""
        chances, loss = _softmax(weights.numbers), 0.0
        targets, advantages = datum.inputs["target_tokens"], datum.inputs["advantages"]
        firsts = {reply[0]: index for index, reply in enumerate(self.replies)}
        for target, advantage, logprob in zip(targets, advantages, datum.inputs["logprobs"], strict=True):
            if not advantage or target not in firsts:
                continue
            drawn = firsts[int(target)]
            ratio = chances[drawn] / math.exp(logprob)
            loss -= ratio * advantage
            for index, chance in enumerate(chances):
                gradient[index] += ratio * advantage * ((index == drawn) - chance)
        return loss

    def logprobs(self, weights: Weights, datum: Seen) -> list[float]:
        """Of each target, with the weights as they are."""
        chances = _softmax(weights.numbers)
        firsts = {reply[0]: math.log(chance) for reply, chance in zip(self.replies, chances, strict=True)}
        return [firsts.get(int(target), 0.0) for target in datum.inputs["target_tokens"]]


def _softmax(numbers: Sequence[float]) -> list[float]:
    powers = [math.exp(number - max(numbers)) for number in numbers]
    return [power / sum(powers) for power in powers]
