"""Rollouts as examples: shifted by one, zero where nothing is trained, each rollout once in its group."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from agentcore_rl_toolkit.backends.loop.mismatch import Truncation
from agentcore_rl_toolkit.backends.loop.service_examples import advantages, measure_example_logprobs, to_examples
from support.rollouts import failed, make_group, make_rollout, make_row, weighted


def test_each_token_predicts_the_next() -> None:
    row = make_row([1, 2], [3, 4, 5, 6], [1, 0, 1, 1], [-0.5, math.nan, -1.0, -2.0])
    example, _ = to_examples([make_group(make_rollout(1.0, row), make_rollout(0.5))], scale=False)
    assert example.tokens.tolist() == [1, 2, 3, 4, 5]
    assert example.targets.tolist() == [2, 3, 4, 5, 6]
    assert example.mask.tolist() == [0.0, 1.0, 0.0, 1.0, 1.0]
    assert example.logprobs.tolist() == [0.0, -0.5, 0.0, -1.0, -2.0]  # NaN never leaves
    assert example.advantages.tolist() == [0.0, 0.25, 0.0, 0.25, 0.25]
    assert {str(values.dtype) for values in (example.tokens, example.targets)} == {"int64"}
    assert {str(values.dtype) for values in (example.mask, example.logprobs, example.advantages)} == {"float32"}


def test_advantages_are_the_distance_from_the_mean_in_spreads() -> None:
    rewards = [1.0, 0.0, 0.5, 0.0]
    spread = statistics.stdev(rewards) + 1e-4
    assert advantages(rewards) == pytest.approx([(reward - 0.375) / spread for reward in rewards])
    assert advantages(rewards, scale=False) == [0.625, -0.375, 0.125, -0.375]


@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [1.0], []])
def test_nothing_to_compare_is_no_advantage(rewards: list[float]) -> None:
    assert advantages(rewards) == [0.0] * len(rewards)


def test_rows_of_one_rollout_share_its_advantage_and_count_it_once() -> None:
    rows = weighted(make_row([1], [2, 3, 4]), make_row([5], [6]))
    group = make_group(make_rollout(1.0, *rows), make_rollout(0.0), failed())
    examples = to_examples([group], scale=False)
    assert [example.advantage for example in examples] == [0.5, 0.5, -0.5]
    assert [example.rollout for example in examples] == [group.rollouts[0], group.rollouts[0], group.rollouts[1]]
    assert [max(example.advantages.tolist(), key=abs) for example in examples] == [0.5, 0.5, -0.5]


def test_with_per_rollout_the_tokens_of_all_rows_add_up_to_the_advantage() -> None:
    rows = weighted(make_row([1], [2, 3, 4]), make_row([5], [6]))
    examples = to_examples([make_group(make_rollout(1.0, *rows), make_rollout(0.0))], scale=False, per="rollout")
    sums = [float(example.advantages.sum()) for example in examples]
    assert sums == pytest.approx([0.5 * 3 / 4, 0.5 * 1 / 4, -0.5])


def test_dropped_groups_and_failed_rollouts_are_left_out() -> None:
    kept = make_group(make_rollout(1.0), make_rollout(0.0), failed(), index=3)
    dropped = make_group(make_rollout(1.0), make_rollout(0.0), index=4, dropped="incomplete")
    assert [example.group for example in to_examples([dropped, kept])] == [3, 3]


def test_large_ids_stay_as_they_are() -> None:
    row = make_row([200_000, 151_645], [2**31 - 1])
    example, _ = to_examples([make_group(make_rollout(1.0, row), make_rollout(0.0))])
    assert (example.tokens.tolist(), example.targets.tolist()) == ([200_000, 151_645], [151_645, 2**31 - 1])


def test_only_examples_with_an_advantage_move_the_weights() -> None:
    examples = to_examples([make_group(make_rollout(1.0), make_rollout(0.5), make_rollout(0.0))])
    assert [example.has_advantage for example in examples] == [True, False, True]


def test_the_trainers_logprobs_are_compared_with_the_samplers_where_it_trains() -> None:
    row = make_row([1, 2], [3, 4, 5], [1, 0, 1], [-0.5, math.nan, -1.0])
    examples = to_examples([make_group(make_rollout(1.0, row), make_rollout(0.0, row))])
    trainer = [np.array([9.0, -0.5, 9.0, -1.0 + math.log(4)])] * 2  # 9: of targets that are not trained on
    figures = measure_example_logprobs(examples, trainer, Truncation.symmetric(0.0, 2.0))
    assert figures["sampler/ratio_max"] == pytest.approx(4.0)
    assert figures["off_policy/ratio"] == pytest.approx(2.5)
    assert figures["off_policy/truncated"] == 0.5
    clipped = measure_example_logprobs(examples, trainer, Truncation(most=1.2, least_bad=0.8))
    assert clipped["off_policy/truncated"] == 0.25, "PPO clips it where it would gain by it"
    assert not {name for name in measure_example_logprobs(examples, trainer, None) if name.startswith("off_policy")}
