"""What becomes of one rollout, and of a group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rollout import FAILURES, Action, Judge, failure_table
from agentcore_rl_toolkit.rollout.rollout import NOTHING
from agentcore_rl_toolkit.rollout.step_metrics import step_metrics
from agentcore_rl_toolkit.types import Status
from support.rollouts import failed, make_fidelity, make_group, make_rollout, make_row

# The failure table


def test_every_way_to_end_has_a_line() -> None:
    assert set(FAILURES) == set(Status)


def test_only_what_completed_is_trained_and_the_infrastructures_failures_are_run_again() -> None:
    by_action = {action: {s.value for s in Status if FAILURES[s] is action} for action in Action}
    assert by_action == {
        Action.TRAIN: {"completed"},
        Action.MASK: {"truncated", "timeout", "agent_error", "reward_error"},
        Action.REFILL: {"session_lost", "engine_error", "cancelled"},
        Action.STOP: set(),
    }


def test_changes_change_their_line_and_nothing_else() -> None:
    table = failure_table({"timeout": "train", "agent_error": "stop"})
    assert table == dict(FAILURES) | {Status.TIMEOUT: Action.TRAIN, Status.AGENT_ERROR: Action.STOP}
    assert FAILURES[Status.TIMEOUT] is Action.MASK
    assert failure_table() == failure_table({}) == dict(FAILURES)


@pytest.mark.parametrize("line", [("timeout", "ignore"), ("slow", "train"), ("TIMEOUT", "train"), ("timeout", "")])
def test_a_line_that_is_none_is_refused_by_name(line: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"{line[0]}={line[1]}") as caught:
        failure_table(dict([line]))
    assert "hint: one of completed, truncated" in str(caught.value)
    assert "= one of train, mask, refill, stop" in str(caught.value)


# One rollout


def test_a_completed_rollout_with_a_reward_is_trained() -> None:
    judged = Judge().rollout(make_rollout(0.5, action=Action.MASK, why="nobody has judged it"))
    assert (judged.action, judged.why, judged.reward, judged.trained) == (Action.TRAIN, None, 0.5, True)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.COMPLETED])
def test_what_did_not_complete_is_what_the_table_says(status: Status) -> None:
    judged = Judge(failed_reward=-1.0).rollout(failed(status, Action.TRAIN))
    assert (judged.action, judged.why) == (failure_table()[status], status.value)
    assert judged.reward is None  # `failed_reward` is for those that are trained on
    assert not judged.trained


def test_a_failure_that_the_table_trains_on_gets_the_reward_of_failures() -> None:
    judge = Judge(table=failure_table({"timeout": "train"}), failed_reward=-1.0)
    judged = judge.rollout(failed(Status.TIMEOUT))
    assert (judged.action, judged.why, judged.reward) == (Action.TRAIN, None, -1.0)
    assert judge.rollout(make_rollout(0.5)).reward == 0.5
    # even one that had named a reward before it failed
    assert judge.rollout(replace(failed(Status.TIMEOUT), rewards=1.0)).reward == -1.0


def test_a_failure_that_never_reached_the_model_can_not_be_trained_on() -> None:
    judge = Judge(table=failure_table({"timeout": "train"}))
    judged = judge.rollout(replace(failed(Status.TIMEOUT), rows=(), fidelity=NOTHING))
    assert (judged.action, judged.why) == (Action.MASK, "nothing to train on")


def test_completed_may_be_masked_too() -> None:
    judged = Judge(table=failure_table({"completed": "stop"})).rollout(make_rollout())
    assert (judged.action, judged.why) == (Action.STOP, "completed")


def test_no_reward_is_masked() -> None:
    judged = Judge().rollout(make_rollout(None))
    assert (judged.action, judged.why) == (Action.MASK, "no reward")
    assert Judge().rollout(make_rollout(0.0)).trained


@pytest.mark.parametrize(("ratio", "trained"), [(0.0, True), (0.5, True), (0.51, False), (1.0, False)])
def test_the_fidelity_gate(ratio: float, trained: bool) -> None:
    rollout = make_rollout(1.0, fidelity=make_fidelity([make_row()], sampled=4))
    judged = Judge(min_trained_ratio=ratio).rollout(rollout)
    assert judged.trained is trained
    assert judged.why == (None if trained else "low fidelity")


def test_side_calls_do_not_count_against_fidelity() -> None:
    fidelity = make_fidelity([make_row()], sampled=4, masked={"side_call": 2})
    rollout = make_rollout(1.0, fidelity=fidelity)
    assert Judge(min_trained_ratio=1.0).rollout(rollout).trained
    assert step_metrics([make_group(rollout)])["fidelity"] == 1.0


def test_a_perfect_rollout_passes_the_strictest_gate() -> None:
    assert Judge(min_trained_ratio=1.0).rollout(make_rollout()).trained


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_the_gate_is_a_share(ratio: float) -> None:
    with pytest.raises(ConfigError, match=f"min_trained_ratio is from 0 to 1, not {ratio}"):
        Judge(min_trained_ratio=ratio)


@pytest.mark.parametrize(("most", "trained"), [(None, True), (10, True), (9, False), (5, False)])
def test_all_rows_of_a_rollout_count_as_its_length(most: int | None, trained: bool) -> None:
    judged = Judge(max_rollout_tokens=most).rollout(make_rollout(1.0, make_row(), make_row()))
    assert judged.tokens == 10
    assert judged.trained is trained
    assert judged.why == (None if trained else "too long")


@pytest.mark.parametrize(("now", "action"), [(5, Action.TRAIN), (7, Action.TRAIN), (8, Action.REFILL)])
def test_the_oldest_token_decides_how_stale_a_rollout_is(now: int, action: Action) -> None:
    rows = make_row(versions=(("10", 0, 1), ("5", 3, 4))), make_row(versions=(("9", 3, 5),))
    judged = Judge(max_staleness=2, version=lambda: now).rollout(make_rollout(1.0, *rows))
    assert judged.action is action
    assert judged.why == (None if action is Action.TRAIN else "stale")


def test_versions_are_numbers_not_texts() -> None:
    rollout = make_rollout(1.0, make_row(versions=(("9", 3, 4), ("10", 4, 5))))
    assert Judge(max_staleness=1, version=lambda: 10).rollout(rollout).trained
    assert not Judge(max_staleness=0, version=lambda: 10).rollout(rollout).trained


def test_without_versions_nothing_is_stale() -> None:
    assert Judge(max_staleness=0, version=lambda: 9).rollout(make_rollout()).trained


def test_versions_that_are_no_numbers_are_refused_where_staleness_is_asked_for() -> None:
    rollout = make_rollout(1.0, make_row(versions=(("main@3f", 3, 5), ("7", 4, 5))))
    with pytest.raises(ConfigError, match=r"that are numbers, not \['7', 'main@3f'\]") as caught:
        Judge(max_staleness=1).rollout(rollout)
    assert "hint: name weights by the training step" in str(caught.value)
    assert Judge().rollout(rollout).trained


def test_the_first_objection_is_the_reason() -> None:
    """In this order: each is only the reason where the ones before it are not."""
    old = make_row(versions=(("0", 3, 5),))
    judge = Judge(min_trained_ratio=1.0, max_rollout_tokens=4, max_staleness=0, version=lambda: 1)
    nothing = make_fidelity([], sampled=4)
    poor = make_fidelity([old], sampled=4)
    cases = [
        (make_rollout(None, old, fidelity=nothing), "no reward"),
        (make_rollout(1.0, old, fidelity=nothing), "nothing to train on"),
        (make_rollout(1.0, old, fidelity=poor), "low fidelity"),
        (make_rollout(1.0, old), "too long"),
    ]
    assert [judge.rollout(rollout).why for rollout, _ in cases] == [why for _, why in cases]
    assert replace(judge, max_rollout_tokens=5).rollout(make_rollout(1.0, old)).why == "stale"


# A group


def test_a_whole_group_is_kept() -> None:
    group = make_group(make_rollout(0.0), make_rollout(1.0), failed())
    assert Judge().group(group, 3) is group
    assert group.dropped is None


def test_a_group_with_a_sample_missing_is_dropped() -> None:
    group = make_group(make_rollout(0.0), make_rollout(1.0))
    assert Judge().group(group, 3).dropped == "incomplete"
    assert Judge().group(group, 2).dropped is None


def test_one_rollout_can_be_compared_with_nothing() -> None:
    group = make_group(make_rollout(1.0), failed(), failed())
    assert Judge().group(group, 3).dropped == "too few to compare"
    assert Judge().group(make_group(failed(), failed()), 2).dropped == "too few to compare"


def test_samples_of_one_are_not_compared() -> None:
    assert Judge().group(make_group(make_rollout(1.0)), 1).dropped is None
    assert Judge().group(make_group(failed()), 1).dropped == "too few to compare"


def test_without_variance_only_dynamic_sampling_drops() -> None:
    same = make_group(make_rollout(1.0), make_rollout(1.0), replace(failed(), rewards=0.0))
    assert Judge().group(same, 3).dropped is None
    assert Judge(dynamic_sampling=True).group(same, 3).dropped == "no variance"
    differing = make_group(make_rollout(1.0), make_rollout(0.0))
    assert Judge(dynamic_sampling=True).group(differing, 2).dropped is None


def test_a_mean_counts_only_what_is_trained() -> None:
    group = make_group(
        make_rollout(1.0), make_rollout(0.5), replace(failed(), rewards=-100.0), others=(make_rollout(9),)
    )
    assert (group.mean, group.rewards, group.has_variance) == (0.75, [1.0, 0.5], True)
    assert make_group(failed()).mean is None
    assert not make_group(failed()).has_variance


def test_with_a_reward_for_each_turn_the_last_one_counts() -> None:
    group = make_group(make_rollout([0.0, 0.0, 1.0]), make_rollout([1.0, 0.0]))
    assert group.rewards == [1.0, 0.0]


def test_a_groups_tokens_are_those_that_have_a_place_in_it() -> None:
    group = make_group(make_rollout(), make_rollout(1.0, make_row(), make_row()), others=(make_rollout(),))
    assert group.tokens == 15
