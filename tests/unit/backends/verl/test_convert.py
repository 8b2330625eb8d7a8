"""Which rollouts verl gets, and as what."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from agentcore_rl_toolkit.backends.verl.convert import (
    measured_rollouts,
    to_outputs,
    to_validation_outputs,
    trained_rollouts,
)
from agentcore_rl_toolkit.gateway.record.trajectory import RouteTable
from agentcore_rl_toolkit.rollout.rollout import NOTHING
from agentcore_rl_toolkit.types import Status
from support.rollouts import failed, make_group, make_rollout, make_row, weighted


def test_a_row_is_prompt_response_mask_and_logprobs() -> None:
    row = make_row([1, 2], [3, 4, 5, 6], [1, 0, 0, 1], [-0.5, math.nan, math.nan, -2.0])
    (fields,) = to_outputs(make_rollout(0.5, row, seconds={"session": 3.0, "model": 1.0}))
    assert (fields["prompt_ids"], fields["response_ids"]) == ([1, 2], [3, 4, 5, 6])
    assert fields["response_mask"] == [1, 0, 0, 1]
    assert fields["response_logprobs"] == [-0.5, 0.0, 0.0, -2.0]
    assert (fields["reward_score"], fields["num_turns"]) == (0.5, 1)
    assert fields["metrics"] == {"generate_sequences": 1.0, "tool_calls": 2.0}
    assert "routed_experts" not in fields


def test_every_row_of_a_rollout_has_its_reward_and_its_turns_rewards() -> None:
    rollout = make_rollout([0.0, 2.0], *weighted(make_row([1], [2]), make_row([3], [4, 5])))
    made = to_outputs(rollout)
    assert [fields["reward_score"] for fields in made] == [2.0, 2.0]
    assert [fields["extra_fields"]["turn_scores"] for fields in made] == [[0.0, 2.0]] * 2
    assert made[0]["extra_fields"] is not made[1]["extra_fields"]


def test_steps_are_the_oldest_and_the_newest() -> None:
    row = make_row([1], [2, 3, 4], versions=(("9", 1, 2), ("10", 2, 4)))
    (fields,) = to_outputs(make_rollout(1.0, row))
    assert fields["extra_fields"]["min_global_steps"] == 9
    assert fields["extra_fields"]["max_global_steps"] == 10
    (unknown,) = to_outputs(make_rollout(1.0))
    assert unknown["extra_fields"]["min_global_steps"] is None


def test_fewer_than_two_are_no_group() -> None:
    good = make_rollout(1.0)
    assert trained_rollouts(make_group(good, failed(), failed())) == []
    assert trained_rollouts(make_group(good, good, failed())) == [good, good]
    assert trained_rollouts(make_group(good, good, dropped="incomplete")) == []


def test_where_routes_are_replayed_there_have_to_be_some() -> None:
    known = np.array([1, 1, 1, 1, 0], np.uint8)  # the last token never went through the model
    table = RouteTable(np.arange(20, dtype=np.int32).reshape(5, 4), known)
    good = make_rollout(1.0, make_row(routes=table))
    gap = make_rollout(1.0, make_row(routes=replace(table, known=known[::-1])))
    assert trained_rollouts(make_group(good, good, gap, make_rollout(0.0)), (2, 2)) == [good, good]
    assert trained_rollouts(make_group(good, gap), (2, 2)) == []
    (fields,) = to_outputs(good, routes=(2, 2))
    assert fields["routed_experts"].shape == (5, 2, 2)
    assert fields["routed_experts"][1].tolist() == [[4, 5], [6, 7]]


def test_a_validation_leaves_out_what_says_nothing_of_the_policy() -> None:
    good, broken, lost, unjudged = make_rollout(1.0), failed(), failed(Status.SESSION_LOST), failed(Status.REWARD_ERROR)
    assert measured_rollouts(make_group(good, broken, lost, unjudged)) == [good, broken]


def test_a_validations_failures_have_the_failed_reward() -> None:
    never = failed(rows=(), fidelity=NOTHING)
    (fields,) = to_validation_outputs(never, -1.0, padding=7)
    assert (fields["prompt_ids"], fields["response_ids"], fields["response_mask"]) == ([7], [7], [0])
    assert fields["reward_score"] == -1.0
    late = replace(make_rollout(0.8), status=Status.TIMEOUT)
    assert [fields["reward_score"] for fields in to_validation_outputs(late, 0.0, padding=7)] == [0.0]
    assert [fields["reward_score"] for fields in to_validation_outputs(make_rollout(0.8), 0.0, padding=7)] == [0.8]
    assert [fields["reward_score"] for fields in to_validation_outputs(make_rollout(None), 0.0, padding=7)] == [0.0]
