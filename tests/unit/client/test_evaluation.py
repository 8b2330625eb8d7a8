"""The figures of an evaluation: against known values, against their definitions, and on nothing at all."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.agent.result import Result, ResultBuilder
from agentcore_rl_toolkit.agent.safe_values.redaction import Redactor
from agentcore_rl_toolkit.client.evaluation import (
    Comparison,
    Latency,
    Outcome,
    PassAtK,
    compare,
    pass_at_k,
    summarize,
    t_quantile,
)
from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.types import RolloutId, Status

numbers = itertools.count()


def outcome(
    input_id: str = "row", reward: float | None = 1.0, status: Status = Status.COMPLETED, seconds: float | None = 1.0
) -> Outcome:
    return Outcome(input_id, f"s{next(numbers)}", status, reward, seconds)


def scored(*rewards: float, start: int = 0) -> list[Outcome]:
    """One completed rollout per reward, on inputs `start`, `start` + 1, …"""
    return [outcome(f"row-{i}", reward) for i, reward in enumerate(rewards, start)]


outcomes = st.lists(
    st.builds(
        Outcome,
        input_id=st.sampled_from("abcdefgh"),
        session_id=st.just("s"),
        status=st.sampled_from([Status.COMPLETED] * 8 + list(Status)),
        reward=st.none() | st.floats(-100, 100),
        seconds=st.none() | st.floats(0, 1000),
    ),
    max_size=40,
)


# Reading results


def test_an_outcome_is_read_from_what_the_app_stored() -> None:
    builder = ResultBuilder(RolloutId("exp", "row-1", "abc"), "bucket", {}, Redactor(), None, started_at=1000.0)
    done = Result.from_bytes(builder.returned({"rewards": 0.5}, 1002.5).to_bytes())
    assert Outcome.from_result(done) == Outcome("row-1", "abc", Status.COMPLETED, 0.5, 2.5)
    failed = Result.from_bytes(builder.failed(Status.TIMEOUT, TimeoutError(), 1009.0).to_bytes())
    assert Outcome.from_result(failed) == Outcome("row-1", "abc", Status.TIMEOUT, None, 9.0)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"rewards": [0.1, 0.9, 0.4]}, ("", "", Status.COMPLETED, 0.4, None)),
        ({"rewards": "high"}, ("", "", Status.REWARD_ERROR, None, None)),
        (
            {"rewards": "high", "status_code": 500, "error": {"kind": "timeout"}},
            ("", "", Status.TIMEOUT, None, None),
        ),
        ({"result_key": "exp/row-2/xyz.json"}, ("row-2", "xyz", Status.COMPLETED, None, None)),
        ({"result_key": 7, "_rollout": "lost"}, ("", "", Status.COMPLETED, None, None)),
        ({"_rollout": {"started_at": "yesterday", "finished_at": None}}, ("", "", Status.COMPLETED, None, None)),
        (
            {"_rollout": {"started_at": "2025-01-01T00:00:00", "finished_at": "2025-01-01T00:00:01+00:00"}},
            ("", "", Status.COMPLETED, None, None),
        ),
    ],
)
def test_what_a_document_lacks_is_left_open(document: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert Outcome.from_result(Result(document)) == Outcome(*expected)


# Summaries


def test_a_summary() -> None:
    summary = summarize(
        [
            outcome("a", 1.0, seconds=1),
            outcome("a", 0.0, seconds=2),
            outcome("b", 1.0, seconds=3),
            outcome("b", None, Status.TIMEOUT, seconds=60),
            outcome("c", 0.25, seconds=4),
            outcome("d", None, Status.AGENT_ERROR, seconds=None),
            outcome("d", 9.0, Status.TIMEOUT, seconds=60),
            outcome("d", None, seconds=5),
        ],
        ks=(1, 2, 3),
    )
    assert (summary.rollouts, summary.inputs, summary.completed, summary.rewarded) == (8, 4, 5, 4)
    assert list(summary.failed.items()) == [(Status.TIMEOUT, 2), (Status.AGENT_ERROR, 1)]
    assert summary.reward == pytest.approx((0.5 + 0.5 + 0.25 + 0) / 4), "a failed rollout counts as 0"
    assert summary.pass_at[0] == PassAtK(1, pytest.approx((0.5 + 0.5 + 0 + 0) / 4), inputs=4, excluded=0)
    assert summary.pass_at[1] == PassAtK(2, pytest.approx((1 + 1 + 0) / 3), inputs=3, excluded=1)
    assert summary.pass_at[2] == PassAtK(3, 0.0, inputs=1, excluded=3)
    assert summary.latency == Latency(p50=4, p90=60, p99=60, max=60)
    assert summary.rows() == [
        ["rollouts", "8"],
        ["inputs", "4"],
        ["completed", "5"],
        ["failed: timeout", "2"],
        ["failed: agent_error", "1"],
        ["completed without a reward", "1"],
        ["failures counted as 0", "3"],
        ["mean reward", "0.3125 [0, 0.6934]"],
        ["pass@1", "0.25"],
        ["pass@2", "0.6667 (1 of 4 inputs have too few samples)"],
        ["pass@3", "0 (3 of 4 inputs have too few samples)"],
        ["seconds, p50", "4.00"],
        ["seconds, p90", "60.00"],
        ["seconds, p99", "60.00"],
        ["seconds, max", "60.00"],
    ]


def test_the_interval_is_students_over_the_means_of_inputs() -> None:
    """Four samples each of three inputs: two degrees of freedom, not eleven."""
    summary = summarize(
        [outcome(name, reward) for name, reward in [("a", 0.0), ("b", 5.0), ("c", 10.0)] for _ in "1234"]
    )
    half = 4.30265273 * 5 / 3**0.5
    assert summary.interval == pytest.approx((5 - half, 5 + half))
    assert summary.error == pytest.approx(half / 2)


def test_an_input_weighs_the_same_however_many_of_its_samples_completed() -> None:
    rollouts = [outcome("easy", 1.0)] * 3 + [outcome("hard", 0.0)] + [outcome("hard", None, Status.ENGINE_ERROR)] * 2
    assert summarize(rollouts).reward == 0.5


def test_a_model_that_fails_where_it_is_weak_does_not_win() -> None:
    """30 solved and 70 truncated are worse than 100 with a mean of 0.5."""
    a = [outcome(f"q{n}", float(n % 2)) for n in range(100)]
    b = [outcome(f"q{n}", 1.0) for n in range(30)]
    b += [outcome(f"q{n}", None, Status.TRUNCATED) for n in range(30, 100)]
    found = compare(a, b)
    assert (found.both, found.failed_a, found.failed_b) == (100, 0, 70)
    assert found.difference == pytest.approx(-0.2)
    assert found.verdict.startswith("a is better by 0.2 [")
    assert found.verdict.endswith("; 0 failures of a and 70 of b count as 0")
    assert ["failures counted as 0 in b", "70"] in found.rows()
    assert compare(a, b, failed_reward=-1.0).difference == pytest.approx(0.3 - 0.7 - 0.5)


@pytest.mark.parametrize("status", list(Status))
def test_what_a_rollout_that_did_not_complete_counts_for(status: Status) -> None:
    counts = status in (Status.TRUNCATED, Status.TIMEOUT, Status.AGENT_ERROR)
    summary = summarize([outcome("a", 0.5), outcome("b", 0.25, status)], failed_reward=-1.0)
    if status is not Status.COMPLETED:
        assert summary.reward == (-0.25 if counts else 0.5)
    assert summary.counted_failures == counts
    assert (["failures counted as -1", "1"] in summary.rows()) == counts


def test_latency_is_a_value_that_occurred() -> None:
    summary = summarize([outcome(seconds=s) for s in random.Random(0).sample(range(1, 1001), 1000)])
    assert summary.latency == Latency(p50=500, p90=900, p99=990, max=1000)


@pytest.mark.parametrize("rollouts", [[], [outcome(reward=None, status=Status.SESSION_LOST, seconds=None)] * 5])
def test_nothing_to_go_by_is_said_and_not_made_up(rollouts: list[Outcome]) -> None:
    summary = summarize(rollouts)
    assert (summary.completed, summary.reward, summary.interval, summary.latency) == (0, None, None, None)
    assert summary.pass_at == [PassAtK(1, 0.0 if rollouts else None, len(rollouts) and 1, 0)]
    assert ["mean reward", "-"] in summary.rows()


def test_one_outcome_has_a_mean_and_no_interval() -> None:
    summary = summarize(scored(0.75))
    assert (summary.reward, summary.interval) == (0.75, None)
    assert ["mean reward", "0.75"] in summary.rows()


def test_two_inputs_are_enough_for_an_interval() -> None:
    assert summarize(scored(0.0, 2.0)).interval == pytest.approx((1 - 2 * 6.353102368, 1 + 2 * 6.353102368))


def test_the_interval_of_rewards_within_0_and_1_stays_there() -> None:
    summary = summarize(scored(*[0.0] * 8, 1.0))
    assert summary.interval == (0.0, pytest.approx(0.36734, abs=1e-4))
    assert ["mean reward", "0.1111 [0, 0.3673]"] in summary.rows()
    assert summary.error == pytest.approx((0.36734 - 0.11111) / 2, abs=1e-4), "the side that is cut off says nothing"
    assert summarize(scored(*[1.0] * 8, 0.0)).interval == (pytest.approx(0.63266, abs=1e-4), 1.0)


@pytest.mark.parametrize("rewards", [[0.0, 1.0, 1.5], [-0.5, 0.0, 1.0]])
def test_rewards_of_another_scale_keep_the_whole_interval(rewards: list[float]) -> None:
    low, high = summarize(scored(*rewards)).interval or (0.0, 0.0)
    assert low < 0
    assert high > 1


def test_the_scale_is_that_of_rewards_not_of_the_means_of_inputs() -> None:
    """Both inputs have a mean within [0, 1], of rewards from -1 to 1."""
    rollouts = [outcome(name, reward) for name, reward in [("a", -1.0), ("a", 1.0), ("b", 1.0), ("b", 1.0)]]
    low, high = summarize(rollouts).interval or (0.0, 0.0)
    assert low < 0
    assert high > 1


def test_rollouts_without_rewards_have_no_mean_and_pass_nothing() -> None:
    summary = summarize([outcome("a", None), outcome("b", None)])
    assert (summary.completed, summary.rewarded, summary.reward) == (2, 0, None)
    assert summary.pass_at[0].value == 0


def test_the_threshold_is_reached_by_what_equals_it() -> None:
    rollouts = scored(0.4, 0.5, 0.6, 0.7)
    assert summarize(rollouts, threshold=0.5).pass_at[0].value == 0.75
    assert summarize(rollouts).pass_at[0].value == 0


def test_a_failed_rollout_did_not_pass_whatever_its_reward() -> None:
    assert summarize([outcome(reward=1.0, status=Status.TRUNCATED)]).pass_at[0].value == 0


@given(outcomes)
def test_any_summary_is_consistent(rollouts: list[Outcome]) -> None:
    summary = summarize(rollouts, ks=(1, 2, 3), threshold=0.5)
    assert summary.completed + sum(summary.failed.values()) == summary.rollouts == len(rollouts)
    assert Status.COMPLETED not in summary.failed
    if summary.interval is not None and summary.reward is not None:
        assert summary.interval[0] <= summary.reward <= summary.interval[1]
    for entry in summary.pass_at:
        assert entry.inputs + entry.excluded == summary.inputs
        assert entry.value is None or 0 <= entry.value <= 1
    if summary.latency is not None:
        assert summary.latency.p50 <= summary.latency.p90 <= summary.latency.p99 <= summary.latency.max
    assert {type(status) for status in summary.to_dict()["failed"]} <= {str}
    assert json.loads(json.dumps(summary.to_dict(), allow_nan=False))["rollouts"] == len(rollouts)
    assert format_table(["figure", "value"], summary.rows())


# pass@k


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_is_a_chance_and_grows_with_k(case: tuple[int, int]) -> None:
    samples, passed = case
    values = [pass_at_k(samples, passed, k) for k in range(1, samples + 1)]
    assert all(0 <= value <= 1 for value in values)
    assert values == sorted(values)
    assert values[0] == pytest.approx(passed / samples)
    assert values[-1] == (passed > 0)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(1, 7))
def test_pass_at_k_is_the_share_of_draws_with_a_pass(passed: list[bool], k: int) -> None:
    k = min(k, len(passed))
    draws = [any(draw) for draw in itertools.combinations(passed, k)]
    assert pass_at_k(len(passed), sum(passed), k) == pytest.approx(sum(draws) / len(draws))


def test_pass_at_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        summarize(scored(1.0), ks=(0,))


# Student's t


@pytest.mark.parametrize(
    ("p", "df", "value"),
    [
        (0.975, 1, 12.706204736),
        (0.975, 2, 4.302652730),
        (0.975, 3, 3.182446305),
        (0.975, 4, 2.776445105),
        (0.975, 5, 2.570581836),
        (0.975, 10, 2.228138852),
        (0.975, 30, 2.042272456),
        (0.975, 100, 1.983971519),
        (0.975, 1000, 1.962339081),
        (0.95, 1, 6.313751515),
        (0.95, 4, 2.131846786),
        (0.995, 9, 3.249835544),
        (0.9995, 2, 31.599054577),
        (0.5, 7, 0.0),
    ],
)
def test_the_quantiles_of_the_printed_tables(p: float, df: int, value: float) -> None:
    assert t_quantile(p, df) == pytest.approx(value, rel=1e-8, abs=1e-9)


# Comparisons


def verdict(a: Sequence[float], b: Sequence[float]) -> str:
    return compare(scored(*a), scored(*b)).verdict


def test_a_comparison_is_paired_by_input() -> None:
    a = [outcome("x", 0.0), outcome("x", 1.0), outcome("y", 0.5), outcome("z", 1.0), outcome("only a", 1.0)]
    a += [outcome("only a too", 1.0)]
    b = [outcome("z", 0.0), outcome("y", 0.5), outcome("x", 1.0), outcome("only b", 1.0)]
    b += [outcome("only a", None, Status.SESSION_LOST), outcome("neither", None)]
    comparison = compare(a, b)
    assert (comparison.both, comparison.only_a, comparison.only_b) == (3, 2, 1)
    assert (comparison.wins, comparison.losses, comparison.ties) == (1, 1, 1)
    assert comparison.difference == pytest.approx((0.5 + 0 - 1) / 3)
    assert comparison.rows() == [
        ["inputs in both", "3"],
        ["only in a", "2"],
        ["only in b", "1"],
        ["b wins", "1"],
        ["a wins", "1"],
        ["ties", "1"],
        ["mean difference, b - a", "-0.1667"],
    ]


def test_pairing_finds_a_small_gain_under_a_large_spread() -> None:
    rng = random.Random(5)
    a = [rng.uniform(0, 10) for _ in range(40)]
    b = [x + 0.1 + rng.gauss(0, 0.1) for x in a]
    comparison = compare(scored(*a), scored(*b))
    low, high = comparison.interval or (0, 0)
    assert 0.05 < low < (comparison.difference or 0) < high < 0.2
    assert comparison.verdict.startswith("b is better by 0.1")
    assert verdict(b, a) == comparison.verdict.replace("b is", "a is")


def test_the_verdicts() -> None:
    gain, noise = [0.05, 0.19, 0.12, 0.12, 0.06, 0.18] * 5, [-1.0, 1.0, 0.5, -0.5, 0.25, -0.25]
    assert Comparison(6, 0, 0, 6, 0, 0, 0.12, (0.05, 0.19)).verdict == "b is better by 0.12 [0.05, 0.19]"
    assert Comparison(6, 0, 0, 0, 6, 0, -0.12, (-0.19, -0.05)).verdict == "a is better by 0.12 [0.05, 0.19]"
    assert Comparison(6, 0, 3, 6, 0, 0, 0.12, (0.05, 0.19)).verdict.endswith("0.19], on the 6 inputs in both")
    assert verdict([0.0] * 30, gain).startswith("b is better by 0.12 [")
    assert verdict([0.0] * 6, noise).startswith("no difference can be told apart: b - a is 0 [-")
    assert verdict([0.3] * 6, [0.1 + 0.2] * 6).startswith("no difference can be told apart")
    assert verdict([], [1.0]) == "nothing to compare: no input has a reward in both"


def test_rounding_errors_are_not_shown() -> None:
    assert Comparison(6, 0, 0, 0, 0, 6, -1e-17, (-1e-17, 1e-17)).rows()[-1][1] == "0 [0, 0]"


def test_too_few_inputs_are_not_enough_however_clear_they_look() -> None:
    assert compare(scored(*[0.0] * 5), scored(*[1.0] * 5)).interval is None
    assert verdict([0.0] * 5, [1.0] * 5) == "no difference can be told apart: inputs in both are 5, and it takes 6"
    assert verdict([0.0] * 6, [1.0] * 6) == "b is better by 1 [1, 1]"


def test_a_comparison_comes_out_the_same_every_time_and_follows_its_dice() -> None:
    rng = random.Random(6)
    a, b = (scored(*[rng.random() for _ in range(12)]) for _ in "ab")
    assert compare(a, b) == compare(a, b)
    other = compare(a, b, dice=random.Random(7).random)
    assert other.interval != compare(a, b).interval
    assert other.interval == pytest.approx(compare(a, b).interval, abs=0.05)


def test_the_interval_covers_the_truth_19_times_in_20() -> None:
    """300 sets of 8 differences around zero: a plain percentile bootstrap would cover about 270."""
    rng = random.Random(8)
    covered = 0
    for _ in range(300):
        b = scored(*[rng.gauss(0, 1) for _ in range(8)])
        low, high = compare(scored(*[0.0] * 8), b, dice=rng.random, resamples=600).interval or (1, 0)
        covered += low <= 0 <= high
    assert 277 <= covered <= 294


@given(outcomes, outcomes)
def test_any_comparison_is_consistent(a: list[Outcome], b: list[Outcome]) -> None:
    forth, back = compare(a, b, resamples=50), compare(b, a, resamples=50)
    assert (forth.wins, forth.losses, forth.ties) == (back.losses, back.wins, back.ties)
    assert forth.wins + forth.losses + forth.ties == forth.both == back.both
    assert (forth.only_a, forth.only_b) == (back.only_b, back.only_a)
    if forth.interval is not None:
        assert forth.interval[0] <= forth.interval[1]
    assert json.loads(json.dumps(forth.to_dict(), allow_nan=False))["verdict"] == forth.verdict
    assert format_table(["figure", "value"], forth.rows())


@given(outcomes)
def test_a_set_is_no_better_than_itself(rollouts: list[Outcome]) -> None:
    comparison = compare(rollouts, rollouts, resamples=20)
    assert comparison.ties == comparison.both
    assert comparison.difference in (0, None)
    assert "better" not in comparison.verdict


def test_the_mean_of_a_summary_and_of_a_comparison_agree() -> None:
    a, b = scored(0.1, 0.4, 0.4), scored(0.3, 0.2, 0.9)
    difference = (summarize(b).reward or 0) - (summarize(a).reward or 0)
    assert compare(a, b).difference == pytest.approx(difference) == pytest.approx(statistics.fmean([0.2, -0.2, 0.5]))
