"""How far the sampler's distribution is from the trainer's, measured on the tokens that are trained on. Pure.

Sampler and trainer have the same weights, so they should give every sampled token the same logprob. And tokens drawn
from the trainer's distribution are on average as surprising (−logprob) as its entropy says. Only the second check finds
a sampler that draws from another distribution but reports the right logprobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

_WIDEST = 20.0
"""The largest difference of two logprobs that is counted: exp(20) is a ratio of 5e8."""
_RARE = np.logspace(-12, math.log10(0.5), 256)
_ENTROPIES = -_RARE * np.log(_RARE) - (1 - _RARE) * np.log1p(-_RARE)
_VARIANCES = _RARE * (1 - _RARE) * np.log((1 - _RARE) / _RARE) ** 2
"""Entropy and variance of −logprob of dice with two sides, by the probability of the rarer one."""


@dataclass(frozen=True)
class Truncation:
    """Where a loss stops following the ratio of the policy to the sampler, by the sign of a token's advantage.

    In PPO's clipping, for example, a token that went well stops counting above 1.2, one that went badly below 0.8.
        >>> Truncation(most=1.2, least_bad=0.8).applies(np.array([1.3, 1.3, 0.7]), np.array([1.0, -1.0, -1.0]))
        array([ True, False,  True])
    """

    most: float = math.inf
    """The largest ratio, with a positive advantage."""
    least: float = 0.0
    """The smallest one, with a positive advantage."""
    most_bad: float = math.inf
    """The largest ratio, with a negative advantage."""
    least_bad: float = 0.0
    """The smallest one, with a negative advantage."""

    @classmethod
    def symmetric(cls, least: float, most: float) -> Truncation:
        """The same for either sign."""
        return cls(most, least, most, least)

    def applies(self, ratio: Any, advantage: Any) -> Any:
        """Which tokens have a truncated ratio; arrays or tensors."""
        good = (advantage > 0) & ((ratio > self.most) | (ratio < self.least))
        return good | ((advantage < 0) & ((ratio > self.most_bad) | (ratio < self.least_bad)))


@dataclass
class Mismatch:
    """Sums over tokens, which several batches and processes add up to."""

    tokens: int = 0
    kl: float = 0.0
    gap_max: float = 0.0
    known: int = 0
    """Tokens for which the trainer gave an entropy."""
    entropy: float = 0.0
    surprise: float = 0.0
    """The sum of −logprob − entropy."""
    surprise_squares: float = 0.0
    """The sum of the squares of these differences."""
    spread: float = 0.0
    """Their variance, summed over tokens, as two-sided dice of the same entropy would have it."""

    def add(self, sampler: Any, trainer: Any, entropy: Any = None) -> None:
        """Add tokens: both sides' logprobs, and the entropy of the trainer's distribution where it is known."""
        ours, theirs = np.asarray(sampler, np.float64), np.asarray(trainer, np.float64)
        gap = np.clip(theirs - ours, -_WIDEST, _WIDEST)
        gap = gap[np.isfinite(gap)]
        self.tokens += len(gap)
        self.kl += float((np.expm1(gap) - gap).sum())
        self.gap_max = max(self.gap_max, float(np.abs(gap).max(initial=0.0)))
        if entropy is not None:
            spread = np.asarray(entropy, np.float64)
            excess = -theirs - spread
            self.known += len(excess)
            self.entropy += float(spread.sum())
            self.surprise += float(excess.sum())
            self.surprise_squares += float((excess**2).sum())
            self.spread += float(np.interp(spread, _ENTROPIES, _VARIANCES, right=0.0).sum())

    @classmethod
    def merged(cls, parts: Iterable[Mismatch]) -> Mismatch:
        """The tokens of several batches or processes together."""
        whole = cls()
        for part in parts:
            for field in fields(cls):
                before, here = getattr(whole, field.name), getattr(part, field.name)
                setattr(whole, field.name, max(before, here) if field.name == "gap_max" else before + here)
        return whole

    def metrics(self) -> dict[str, float]:
        """The figures of a step; none without tokens.

        `sampler/surprise` is in nats a token, and `sampler/surprise_z` how many standard errors that is from 0.
        """
        if not self.tokens:
            return {}
        found = {"sampler/kl": self.kl / self.tokens, "sampler/ratio_max": math.exp(self.gap_max)}
        if self.known:
            found["entropy"] = self.entropy / self.known
            found["sampler/surprise"] = self.surprise / self.known
            # Without its rare tokens, a sample of a sharp distribution looks far more certain than it is.
            variance = max(self.surprise_squares, self.spread) or 1.0
            found["sampler/surprise_z"] = self.surprise / math.sqrt(variance)
        return found
