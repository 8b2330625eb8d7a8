"""Rewards by turn as advantages: by hand, and without bias against a decision process listed whole."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.record.trajectory import TurnSpan
from agentcore_rl_toolkit.rollout import Action, Judge
from agentcore_rl_toolkit.rollout.signal.credit import TurnCredit, mean_advantage, rewards_by_turn, trained_turns
from support.mdp import Mdp, Weigh, estimate
from support.rollouts import make_group, make_rollout, make_row, weighted

# Without bias


def expectation(mdp: Mdp, n: int, weigh: Weigh) -> Any:
    """The expected estimate of a group of n, over all groups that there are."""
    paths = list(mdp.paths())
    assert sum(path.chance for path in paths) == pytest.approx(1.0)
    return sum(
        float(np.prod([path.chance for path in group])) * estimate(group, weigh)
        for group in itertools.product(paths, repeat=n)
    )


@pytest.mark.parametrize(("discount", "process"), [(1.0, 1.0), (0.6, 1.0), (1.0, 0.25)])
def test_the_expected_gradient_of_a_group_is_the_enumerated_one(discount: float, process: float) -> None:
    mdp = Mdp()
    credit = TurnCredit(discount=discount, process_weight=process)
    exact = mdp.gradient(discount, process)
    assert np.abs(exact).max() > 0.1
    np.testing.assert_allclose(expectation(mdp, 2, credit.advantages), exact, atol=1e-12)


def test_so_is_that_of_a_group_of_three() -> None:
    """None, one or both of the others got to the second turn."""
    mdp, credit = Mdp(turns=2), TurnCredit(discount=0.6, process_weight=0.25)
    np.testing.assert_allclose(expectation(mdp, 3, credit.advantages), mdp.gradient(0.6, 0.25), atol=1e-12)


def test_a_baseline_that_reads_its_own_rollout_is_biased() -> None:
    """The check can fail: neither the group's mean at a turn, nor whole returns by who got so far, are unbiased."""

    def group_mean(rewards: list[list[float]]) -> list[Any]:
        to_go = [np.cumsum(turns[::-1])[::-1] for turns in rewards]
        reached = [[own[t] for own in to_go if len(own) > t] for t in range(max(map(len, to_go)))]
        return [np.array([own[t] - np.mean(reached[t]) for t in range(len(own))]) for own in to_go]

    mdp = Mdp()
    off = np.abs(expectation(mdp, 2, group_mean) - mdp.gradient()).max()
    assert off > 0.05


def test_sampled_groups_agree_with_the_enumerated_gradient() -> None:
    """`benchmarks/turn_credit.py` has 100,000 rollouts; here are 8,000."""
    mdp, dice, credit = Mdp(), np.random.default_rng(1), TurnCredit()
    estimates = np.array([estimate([mdp.sample(dice) for _ in range(4)], credit.advantages) for _ in range(2_000)])
    error = estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates))
    assert (np.abs(estimates.mean(axis=0) - mdp.gradient()) < 3.5 * error).all()


# By hand


def lists(values: list[Any]) -> list[list[float]]:
    return [own.tolist() for own in values]


def test_each_turn_is_compared_with_those_of_the_others_that_got_so_far() -> None:
    given = TurnCredit().advantages([[1.0, 2.0, 4.0], [0.0, 8.0], [16.0]])
    # Returns-to-go: [7, 6, 4], [8, 8], [16].
    assert lists(given) == [[7 - 12.0, 6 - 8.0, 4 - 12.0], [8 - 11.5, 8 - 6.0], [16 - 7.5]]


def test_outcomes_alone_are_compared_as_whole_rollouts_are() -> None:
    """All but the last reward are zero: each turn gets what leave-one-out gives the rollout."""
    outcomes = [1.0, 0.0, 0.5]
    given = TurnCredit().advantages([[0.0, 0.0, reward] for reward in outcomes])
    mean = sum(outcomes) / 3
    for own, reward in zip(given, outcomes, strict=True):
        assert own == pytest.approx([(reward - mean) * 3 / 2] * 3)


def test_a_rollouts_own_end_and_rewards_change_nothing_in_its_baseline() -> None:
    others = [[0.3, 0.1, 0.7], [0.2, 0.9]]
    baselines = []
    for own in ([1.0, 5.0, -3.0], [1.0, 0.0, 0.0], [1.0]):
        advantages = TurnCredit().advantages([own, *others])[0]
        baselines.append(sum(own) - advantages[0])
    assert baselines == pytest.approx([1.1] * 3)


def test_equal_rewards_are_exactly_nothing_to_learn() -> None:
    credit = TurnCredit(discount=0.9)
    assert not any(own.any() for own in credit.advantages([[0.1, 0.1]] * 3))
    assert lists(credit.advantages([[0.1, 3.0]])) == [[0.0, 0.0]]


@pytest.mark.parametrize("settings", [{"discount": -0.1}, {"discount": 1.5}, {"process_weight": -1.0}])
def test_weights_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        TurnCredit(**settings)


# Turns and tokens


def test_tokens_have_the_advantage_of_their_turn_and_others_none() -> None:
    rows = weighted(
        make_row([1], [2, 3, 4, 5], [1, 0, 1, 1], turns=[(0, 0, 2), (3, 2, 4)]),
        make_row([1, 2], [6], turns=[(1, 0, 1)]),
    )
    repeated = replace(rows[1], spans=(TurnSpan(0, 1, 2, False, "stop"), *rows[1].spans))  # trained in the other row
    long = make_rollout([1.0, 10.0, 100.0], rows[0], repeated)
    short = make_rollout(5.0, make_row([1], [7], turns=[(4, 0, 1)]), sample=1)
    group = make_group(long, short)
    assert trained_turns(long) == [0, 1, 3]
    first, second = TurnCredit().token_advantages(group)[0]
    assert first.tolist() == [0.0, 106.0, 0.0, 95.0, 95.0]
    assert second.tolist() == [0.0, 0.0, 105.0]
    assert mean_advantage(long.rows, [first, second]) == pytest.approx((106 + 95 + 95 + 105) / 4)


def test_one_reward_is_the_last_turns() -> None:
    row = make_row([1], [2, 3, 4], turns=[(0, 0, 1), (1, 1, 2), (2, 2, 3)])
    assert rewards_by_turn(make_rollout(2.0, row)) == [0.0, 0.0, 2.0]


def test_rewards_for_other_turns_than_there_are_are_not_trained_on() -> None:
    row = make_row([1], [2, 3], turns=[(0, 0, 1), (1, 1, 2)])
    rollout = make_rollout([1.0, 2.0, 3.0], row)
    masked = Judge(credit=TurnCredit()).rollout(rollout)
    assert (masked.action, masked.why) == (Action.MASK, "rewards don't match turns")
    assert masked.error == "3 rewards for 2 trained turns"
    assert Judge().rollout(rollout).action is Action.TRAIN
    assert Judge(credit=TurnCredit()).rollout(make_rollout([1.0, 2.0], row)).action is Action.TRAIN


def test_a_group_teaches_by_its_turns() -> None:
    """Equal outcomes, but one got there with a reward on the way."""
    row = make_row([1], [2, 3], turns=[(0, 0, 1), (1, 1, 2)])
    group = make_group(make_rollout([1.0, 1.0], row), make_rollout([0.0, 1.0], row, sample=1))
    by_turn, by_rollout = (Judge(dynamic_sampling=True, credit=credit) for credit in (TurnCredit(), None))
    assert by_turn.group(group, 2).dropped is None
    assert by_rollout.group(group, 2).dropped == "no variance"
    assert by_turn.group(make_group(*[make_rollout([0.5, 1.0], row)] * 2), 2).dropped == "no variance"
