"""Groups of rollouts as TRL takes them: a slot for each sample, and the rows without one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("trl")

from agentcore_rl_toolkit.backends.trl.convert import TrlBatch, to_batch
from agentcore_rl_toolkit.rollout import Action
from agentcore_rl_toolkit.rollout.rollout import split_row
from support.rollouts import failed, make_group, make_rollout, make_row, weighted

PAD = 9


def test_a_row_is_cut_where_sampling_began() -> None:
    row = make_row([1, 2, 3], [4, 5, 6, 7], [1, 0, 0, 1], [-0.5, math.nan, -3.0, -0.25])
    assert split_row(row) == ([1, 2, 3], [4, 5, 6, 7], [-0.5, 0.0, 0.0, -0.25], [1, 0, 0, 1])


def test_a_slot_for_each_sample_in_order() -> None:
    groups = [
        make_group(make_rollout(0.5, make_row([1], [2])), make_rollout([1.0, 0.25], make_row([1, 2], [3, 4]))),
        make_group(make_rollout(-1.0, make_row([5], [6])), make_rollout(2.0, make_row([7], [8]))),
    ]
    batch = to_batch(groups, 2, PAD)
    assert batch.fields() == {
        "prompt_ids": [[1], [1, 2], [5], [7]],
        "completion_ids": [[2], [3, 4], [6], [8]],
        "logprobs": [[-0.5], [-0.5, -0.5], [-0.5], [-0.5]],
        "env_mask": [[1], [1, 1], [1], [1]],
        "agent_reward": [0.5, 0.25, -1.0, 2.0],
    }
    assert (batch.weights, batch.more) == ([1.0] * 4, [])


NOTHING = ([PAD], [PAD], [0.0], [0], None, 1.0)


def slots(batch: TrlBatch) -> list[tuple[object, ...]]:
    return [(*row, *more) for row, *more in zip(batch.slots, batch.rewards, batch.weights, strict=True)]


def test_what_is_not_trained_leaves_its_slot_empty() -> None:
    masked = replace(make_rollout(1.0, make_row(), make_row()), action=Action.MASK)
    batch = to_batch([make_group(failed(), make_rollout(1.0), masked)], 3, PAD)
    whole = ([1, 2, 3], [4, 5], [-0.5, -0.5], [1, 1], 1.0, 1.0)
    assert slots(batch) == [NOTHING, whole, NOTHING]
    assert batch.more == []


def test_a_dropped_group_has_slots_and_nothing_in_them() -> None:
    rows = weighted(make_row(), make_row())
    batch = to_batch([make_group(make_rollout(1.0, *rows), make_rollout(0.0), dropped="no variance")], 2, PAD)
    assert slots(batch) == [NOTHING, NOTHING]
    assert batch.more == []


def test_a_group_always_has_as_many_slots() -> None:
    """One that stayed incomplete, one with more than asked for, and one that never was."""
    batch = to_batch([make_group(failed(), dropped="incomplete"), make_group(*[make_rollout()] * 5)], 3, PAD, count=3)
    assert [slot == NOTHING for slot in slots(batch)] == [True] * 3 + [False] * 3 + [True] * 3


def test_the_first_row_has_the_slot_and_the_others_know_it() -> None:
    rows = weighted(make_row([1], [2]), make_row([3], [4, 5, 6]), make_row([7], [8]))
    batch = to_batch([make_group(make_rollout(0.0), make_rollout(1.0, *rows)), make_group(failed(), failed())], 2, PAD)
    assert batch.slots[1][1] == [2]
    assert batch.weights == [1.0, pytest.approx(1 / 5), 1.0, 1.0]
    assert [(slot, row is other) for (slot, row), other in zip(batch.more, rows[1:], strict=True)] == [(1, True)] * 2
