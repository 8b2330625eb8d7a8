"""Every backend: the same rollouts, and what its trainer makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from agentcore_rl_toolkit.gateway.record.trajectory import RouteTable, Row
from agentcore_rl_toolkit.rollout import Action, Group, Rollout
from agentcore_rl_toolkit.rollout.signal.credit import TurnCredit
from agentcore_rl_toolkit.types import Status
from support.backends import Seen, adapter, adapters
from support.rollouts import failed, make_group, make_rollout, make_row, weighted

N = 3


@pytest.fixture(params=adapters())
def backend(request: pytest.FixtureRequest) -> ModuleType:
    return adapter(request.param)


def expected(groups: Sequence[Group]) -> dict[tuple[int, ...], tuple[tuple[int, ...], list[float], Rollout, Group]]:
    """The rows that may be trained on, by their ids: places, logprobs, rollout and group."""
    return {
        tuple(row.token_ids): (
            tuple(np.flatnonzero(row.loss_mask).tolist()),
            row.logprobs[row.loss_mask.astype(bool)].tolist(),
            rollout,
            group,
        )
        for group in groups
        if group.dropped is None
        for rollout in group.trained
        for row in rollout.rows
    }


def check(found: Sequence[Seen], groups: Sequence[Group]) -> None:
    """Exactly the rows of trained rollouts, each once, exactly as sampled, with the advantage of their rollout."""
    rows = expected(groups)
    assert sorted(row.ids for row in found) == sorted(rows)
    scales: dict[int, float] = {}
    for row in found:
        places, logprobs, rollout, group = rows[row.ids]
        assert row.trained == places
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)
        assert rollout.reward is not None
        assert group.mean is not None
        above = rollout.reward - group.mean  # of trained rollouts, each once
        if abs(above) < 1e-9:
            assert row.advantage == pytest.approx(0.0, abs=1e-4)
        else:  # trainers divide by a group's spread, or not: in the same way for all of its rollouts
            assert scales.setdefault(group.index, row.advantage / above) == pytest.approx(
                row.advantage / above, rel=1e-3
            )
    assert all(scale > 0 for scale in scales.values())


def distinct(*rewards: float | list[float]) -> list[Rollout]:
    """Rollouts of one row each, with ids of their own."""
    return [
        make_rollout(reward, make_row([1, 2, 3], [4, 5 + i], logprobs=[-0.5, -0.1 * (i + 1)]), sample=i)
        for i, reward in enumerate(rewards)
    ]


def test_single_rows(backend: ModuleType) -> None:
    groups = [make_group(*distinct(1.0, 0.0, 0.5)), make_group(*_moved(distinct(0.0, 0.0, 2.0), 20), index=1)]
    check(backend.seen(groups, N), groups)


def test_tool_results_between_are_not_trained_on(backend: ModuleType) -> None:
    row = make_row([1, 2], [3, 4, 5, 6, 7], [1, 1, 0, 0, 1], [-0.5, -1.0, math.nan, math.nan, -2.0])
    groups = [make_group(make_rollout(1.0, row), *distinct(0.0, 0.25))]
    check(backend.seen(groups, N), groups)


def test_a_rollout_of_several_rows_counts_once(backend: ModuleType) -> None:
    rows = weighted(make_row([7, 8], [9, 10, 11]), make_row([7, 8, 12], [13]), make_row([14], [15, 16]))
    groups = [make_group(make_rollout(1.0, *rows), *distinct(0.0, 0.25))]
    check(backend.seen(groups, N), groups)


@pytest.mark.parametrize("status", [Status.AGENT_ERROR, Status.TIMEOUT, Status.TRUNCATED, Status.REWARD_ERROR])
def test_a_failed_rollout_enters_no_mean_and_no_gradient(backend: ModuleType, status: Status) -> None:
    broken = failed(status, rows=(make_row([30], [31, 32]),))
    groups = [make_group(*distinct(1.0, 0.0), broken)]
    check(backend.seen(groups, N), groups)


def test_a_failed_rollout_of_several_rows(backend: ModuleType) -> None:
    broken = failed(rows=weighted(make_row([30], [31, 32]), make_row([33], [34])))
    rows = weighted(make_row([7, 8], [9, 10, 11]), make_row([7, 8, 12], [13]))
    groups = [make_group(broken, make_rollout(3.0, *rows), *distinct(1.0))]
    check(backend.seen(groups, N), groups)


def test_a_failure_that_the_table_trains_on(backend: ModuleType) -> None:
    late = replace(make_rollout(-1.0, make_row([30], [31, 32])), status=Status.TIMEOUT)
    assert late.action is Action.TRAIN
    groups = [make_group(*distinct(1.0, 0.0), late)]
    check(backend.seen(groups, N), groups)


def test_rewards_by_turn_count_with_their_last(backend: ModuleType) -> None:
    groups = [make_group(*distinct([0.0, 5.0, 1.0], [9.0, 0.0], 0.5))]
    check(backend.seen(groups, N), groups)


def test_a_dropped_group_is_not_trained_on(backend: ModuleType) -> None:
    dropped = make_group(*_moved(distinct(1.0, 0.0, 1.0), 20), index=1, dropped="incomplete")
    groups = [make_group(*distinct(1.0, 0.0, 0.5)), dropped]
    check(backend.seen(groups, N), groups)


def test_a_group_without_variance_moves_nothing(backend: ModuleType) -> None:
    groups = [make_group(*distinct(1.0, 1.0, 1.0)), make_group(*_moved(distinct(0.0, 1.0, 0.0), 20), index=1)]
    found = backend.seen(groups, N)
    still = {row.ids for row in found if abs(row.advantage) < 1e-6}
    assert {row.ids for row in found} - still == expected(groups[1:]).keys()


def test_expert_routes_reach_the_trainer(backend: ModuleType) -> None:
    if "routes" not in backend.PASSES_ON:
        pytest.skip("this trainer takes no routes")
    table = RouteTable(np.arange(10, dtype=np.int32).reshape(5, 2), np.ones(5, np.uint8))
    row = make_row([1, 2, 3], [4, 50], routes=table)
    groups = [make_group(make_rollout(1.0, row), *distinct(0.0, 0.5))]
    routes = {seen.ids: seen.routes for seen in backend.seen(groups, N)}
    assert np.asarray(routes[(1, 2, 3, 4, 50)]).reshape(-1, 2).tolist()[:4] == table.data.tolist()[:4]


def test_weight_versions_reach_the_trainer(backend: ModuleType) -> None:
    if "versions" not in backend.PASSES_ON:
        pytest.skip("this trainer takes no weight versions")
    row = make_row([1, 2, 3], [4, 50], versions=(("7", 3, 4), ("8", 4, 5)))
    groups = [make_group(make_rollout(1.0, row), *distinct(0.0, 0.5))]
    versions = {seen.ids: seen.versions for seen in backend.seen(groups, N)}
    assert versions[(1, 2, 3, 4, 50)] == ("7", "8")


def test_turn_credit_gives_each_token_the_advantage_of_its_turn(backend: ModuleType) -> None:
    """Also in a rollout of two rows."""
    first = make_row([1, 2], [3, 4, 5, 6], [1, 1, 0, 1], [-0.5, -0.5, math.nan, -1.0], turns=[(0, 0, 2), (2, 3, 4)])
    again = make_row([1, 2, 3, 4], [7, 8], turns=[(1, 0, 2)])
    second = make_row([1, 2], [9, 10], [1, 1], turns=[(0, 0, 1), (1, 1, 2)])
    third = make_row([1, 2], [11], turns=[(0, 0, 1)])
    groups = [
        make_group(
            make_rollout([1.0, 0.5, 2.0], *weighted(first, again)),
            make_rollout([0.0, 1.0], second, sample=1),
            make_rollout(4.0, third, sample=2),
        )
    ]
    # Returns-to-go at discount 0.5 and process weight 2: [3, 2, 2], [0.5, 1], [4].
    expected = {
        (1, 2, 3, 4, 5, 6): (3.0 - 2.25, 3.0 - 2.25, 2.0 - 2.5),  # nobody else got to the third turn
        (1, 2, 3, 4, 7, 8): (2.0 - 1.0, 2.0 - 1.0),
        (1, 2, 9, 10): (0.5 - 3.5, 1.0 - 2.0),
        (1, 2, 11): (4.0 - 1.75,),
    }
    found = backend.seen(groups, N, credit=TurnCredit(discount=0.5, process_weight=2.0))
    assert {row.ids for row in found} == expected.keys()
    scales = []
    for row in found:
        assert row.trained == tuple(np.flatnonzero(_row_of(groups, row.ids).loss_mask).tolist())
        scales += [got / want for got, want in zip(row.advantages, expected[row.ids], strict=True)]
    assert scales == pytest.approx([1.0] * len(scales), rel=1e-4)


def _row_of(groups: Sequence[Group], ids: tuple[int, ...]) -> Row:
    rows = [row for group in groups for rollout in group.rollouts for row in rollout.rows]
    return next(row for row in rows if tuple(row.token_ids) == ids)


def _moved(rollouts: list[Rollout], by: int) -> list[Rollout]:
    """With other ids, so that rows can be told apart."""
    moved = []
    for rollout in rollouts:
        rows = [
            make_row([i + by for i in row.token_ids[:3]], [i + by for i in row.token_ids[3:]]) for row in rollout.rows
        ]
        moved.append(replace(rollout, rows=tuple(rows)))
    return moved
