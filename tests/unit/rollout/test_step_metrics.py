"""A step in figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentcore_rl_toolkit.gateway.record.conversation import ReadableTurn, Transcript
from agentcore_rl_toolkit.rollout import Action, merge_metrics, step_metrics
from agentcore_rl_toolkit.rollout.rollout import NOTHING
from agentcore_rl_toolkit.rollout.step_metrics import staleness_metrics
from agentcore_rl_toolkit.types import Status
from support.rollouts import failed, make_fidelity, make_group, make_rollout, make_row


def test_a_step() -> None:
    long = make_row([1] * 10, [2] * 5)
    again = {"renders": 3, "unbridged": {"changed_history": 1, "no_turn_end": 2}}
    groups = [
        make_group(
            make_rollout(1.0, long, fidelity=make_fidelity([long], turns=3, tool_calls=2, sampled=10, **again)),
            make_rollout(0.0, make_row(), make_row()),
            others=(failed(Status.ENGINE_ERROR, Action.REFILL, rows=(), fidelity=NOTHING),),
        ),
        make_group(make_rollout(0.5), failed(rows=(), fidelity=NOTHING), dropped="too few to compare"),
        make_group(make_rollout(0.25), make_rollout(0.25)),
    ]
    metrics = step_metrics(groups)
    assert metrics == {
        "groups/kept": 2,
        "groups/dropped": 1,
        "groups/without_variance": 2,
        "groups/without_variance_share": pytest.approx(2 / 3),
        "rollouts/run": 7,
        "rollouts/trained": 4,
        "rollouts/failed": 2,
        "reward": pytest.approx((1.0 + 0.0 + 0.25 + 0.25) / 4),
        "reward/group_std": pytest.approx((0.5 + 0.0) / 2),
        "dropped/too_few_to_compare": 1,
        "left_out/agent_error": 1,
        "left_out/engine_error": 1,
        "failures/agent_error": 1,
        "failures/engine_error": 1,
        "fidelity": pytest.approx((5 + 4 + 2 + 2 + 2) / (10 + 4 + 2 + 2 + 2)),
        "fidelity/rows": pytest.approx((1 + 2 + 1 + 1 + 1) / 5),
        "fidelity/renders": 3,
        "fidelity/parse_failures": 0,
        "fidelity/unbridged": 2,
        "fidelity/unbridged/changed_history": 1,
        "fidelity/unbridged/no_turn_end": 2,
        "fidelity/omitted": 0,
        "length/turns": pytest.approx((3 + 2 + 1 + 1) / 4),
        "length/tool_calls": 0.5,
        "length/sampled_tokens": pytest.approx((10 + 4 + 2 + 2) / 4),
        "length/tokens": pytest.approx((15 + 10 + 5 + 5) / 4),
        "length/tokens_max": 15,
    }


def test_nothing_ran() -> None:
    assert set(step_metrics([]).values()) == {0}


def test_what_was_sampled_in_vain_counts_against_fidelity() -> None:
    """A rollout none of whose tokens can be trained on folds into no row."""
    lost = make_rollout(1.0, action=Action.MASK, why="nothing to train on")
    lost = replace(lost, rows=(), fidelity=make_fidelity([], sampled=2, turns=1))
    assert step_metrics([make_group(make_rollout(), lost)])["fidelity"] == 0.5


def test_the_mean_seconds_at_each_station() -> None:
    groups = [
        make_group(
            replace(make_rollout(), seconds={"open": 1.0, "session": 4.0}),
            replace(failed(), seconds={"open": 3.0}),
            others=(make_rollout(),),
        )
    ]
    metrics = step_metrics(groups)
    assert {name: value for name, value in metrics.items() if name.startswith("seconds/")} == {
        "seconds/open": 2.0,
        "seconds/session": 4.0,
    }


def test_a_group_without_a_reward_has_no_spread() -> None:
    metrics = step_metrics([make_group(make_rollout(0.0), make_rollout(1.0)), make_group(failed(), failed())])
    assert (metrics["reward"], metrics["reward/group_std"]) == (0.5, 0.5)
    assert "reward" not in step_metrics([make_group(failed())])


def test_the_figures_of_several_processes() -> None:
    one = {"rollouts/run": 4, "failures/timeout": 1, "reward": 0.5, "length/tokens_max": 9, "tokens_per_second": 10.0}
    other = {"rollouts/run": 4, "reward": 1.0, "length/tokens_max": 7, "tokens_per_second": 20.0, "fidelity": 0.5}
    assert merge_metrics([one, other]) == {
        "rollouts/run": 8,
        "failures/timeout": 1,
        "reward": 0.75,
        "length/tokens_max": 9,
        "tokens_per_second": 30.0,
        "fidelity": 0.5,
    }
    assert merge_metrics([one]) == one


def test_the_share_of_groups_without_variance_is_of_all_processes_groups() -> None:
    parts = [step_metrics([make_group(make_rollout(0.5), make_rollout(0.5))]) for _ in range(3)]
    parts.append(step_metrics([make_group(make_rollout(0.0), make_rollout(1.0))]))
    merged = merge_metrics(parts)
    assert merged["groups/without_variance"] == 3
    assert merged["groups/without_variance_share"] == 0.75


def test_only_figures_that_are_maxima_are_merged_as_maxima() -> None:
    merged = merge_metrics([{"reward/component/f1_max": value, "staleness/max": value} for value in (0.0, 1.0)])
    assert merged == {"reward/component/f1_max": 0.5, "staleness/max": 1.0}


def test_components_that_no_mean_holds_are_left_out() -> None:
    sizes = {"a": 10**400, "b": 1e308, "c": -1e308, "d": float("inf"), "e": float("nan")}
    result = {"rewards": 1.0, "components": {**sizes, "correct": 1}}
    metrics = step_metrics([make_group(*(make_rollout(result=result, sample=n) for n in range(2)))])
    assert {name: value for name, value in metrics.items() if "component" in name} == {"reward/component/correct": 1.0}


def test_names_that_agents_choose_become_figures_that_can_be_sent() -> None:
    odd = "half \ud800" + "x" * 100
    known: dict[str, Any] = {"turn": 0, "before": None, "messages": (), "tools": (odd,), "finish": "stop"}
    known |= {"started": 0.0, "seconds": 0.0, "waited": 0.0, "prompt_tokens": 1, "sampled_tokens": 2, "masked": None}
    known |= {"origin": "first", "unbridged": "", "versions": (), "parse_failures": 0}
    turn = ReadableTurn(reply={"content": "", "tool_calls": [{"name": odd}]}, **known)
    rollout = make_rollout(result={"components": {odd: 1}}, transcript=Transcript((), (turn,)))
    metrics = step_metrics([make_group(rollout)])
    named = {name: value for name, value in metrics.items() if "half" in name}
    assert named == {f"{kind}/half ?{'x' * 58}": 1 for kind in ("tools/offered", "tools/called", "reward/component")}


def test_staleness_counts_trained_tokens_by_the_updates_since() -> None:
    row = make_row((1,), (2, 3, 4, 5), (1, 0, 1, 1), versions=(("3", 1, 3), ("4", 3, 4), ("5", 4, 5)))
    fresh = make_row((1,), (2,), versions=(("5", 1, 2),))
    masked = make_rollout(None, make_row((1,), (2,), versions=(("0", 1, 2),)), action=Action.MASK)
    groups = [
        make_group(make_rollout(1.0, row), make_rollout(1.0, fresh), masked),
        make_group(masked, dropped="no variance"),
    ]
    assert staleness_metrics(groups, 5) == {"staleness/mean": 0.75, "staleness/max": 2, "staleness/mixed": 0.5}
    assert staleness_metrics([], 5) == {}
