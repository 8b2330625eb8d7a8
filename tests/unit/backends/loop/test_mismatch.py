"""What sampler and trainer should agree about, on tokens drawn from known distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentcore_rl_toolkit.backends.loop.mismatch import Mismatch


def draw(rare: float, tokens: int = 4000, *, temperature: float = 1.0, seed: int = 0) -> Mismatch:
    """Draws of two-sided dice; at another temperature, the logprobs are still those of temperature 1."""
    logits = np.log(np.array([1 - rare, rare])) / temperature
    chances = np.exp(logits) / np.exp(logits).sum()
    chosen = np.random.default_rng(seed).random(tokens) < chances[1]
    logprobs = np.where(chosen, math.log(rare), math.log(1 - rare))
    entropy = -rare * math.log(rare) - (1 - rare) * math.log(1 - rare)
    mismatch = Mismatch()
    mismatch.add(logprobs, logprobs, np.full(tokens, entropy))
    return mismatch


@pytest.mark.parametrize("rare", [0.3, 0.02, 0.001, 1e-5])
def test_draws_from_the_policy_are_as_surprising_as_its_entropy(rare: float) -> None:
    """Also where no rare token came up: a sample without any looks surer than the policy is."""
    errors = [draw(rare, 400, seed=seed).metrics()["sampler/surprise_z"] for seed in range(200)]
    assert max(map(abs, errors)) < 5
    assert abs(np.mean(errors)) < 0.35


def test_draws_at_another_temperature_are_not() -> None:
    assert draw(0.2, temperature=0.5).metrics()["sampler/surprise_z"] < -6
    assert draw(0.2, temperature=2.0).metrics()["sampler/surprise_z"] > 6


def test_logprobs_that_differ() -> None:
    mismatch = Mismatch()
    mismatch.add([-1.0, -2.0], [-1.0, -2.0 + math.log(2)])
    assert mismatch.metrics() == {
        "sampler/kl": pytest.approx((1 - math.log(2)) / 2),
        "sampler/ratio_max": pytest.approx(2.0),
    }


def test_parts_add_up() -> None:
    parts = [draw(0.2, 100, seed=1), draw(0.2, 300, seed=2)]
    whole = Mismatch.merged(parts)
    assert (whole.tokens, whole.known) == (400, 400)
    assert whole.surprise == pytest.approx(sum(part.surprise for part in parts))
    assert Mismatch.merged([]).metrics() == {}


def test_values_that_are_no_numbers_leave_figures_finite() -> None:
    mismatch = Mismatch()
    mismatch.add([-1.0, float("nan"), -1000.0], [-1.0, -1.0, 0.0])
    assert all(math.isfinite(value) for value in mismatch.metrics().values())
