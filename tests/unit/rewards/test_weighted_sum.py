"""`WeightedSum`: the sum, its parts, and who is named when a part is no number."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.agent.reward import RewardFunction
from agentcore_rl_toolkit.errors import ConfigError, RewardInvalid
from agentcore_rl_toolkit.rewards import ExactMatch, TokenF1, WeightedSum


class Given(RewardFunction):
    """Returns what it was made with."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, **kwargs: Any) -> Any:
        return self.value


def test_every_component_gets_the_same_arguments() -> None:
    calls: list[dict[str, Any]] = []

    def note(**kwargs: Any) -> int:
        calls.append(kwargs)
        return 1

    assert WeightedSum([(note, 1), (note, 1)])(response_text="x", extra=3) == 2.0
    assert calls == [{"response_text": "x", "extra": 3}] * 2


def test_a_mapping_and_pairs_mean_the_same() -> None:
    answer = {"response_text": "Paris France", "ground_truth": "Paris"}
    weights: dict[RewardFunction, float] = {ExactMatch(): 2, TokenF1(): 3}
    assert WeightedSum(weights)(**answer) == WeightedSum(list(weights.items()))(**answer) == pytest.approx(2.0)


def test_components_are_values_before_weights_under_distinct_names() -> None:
    def brevity(**kwargs: Any) -> float:
        return 0.5

    taken = type("Given_2", (Given,), {})
    reward_fn = WeightedSum([(Given(1), 2), (taken(0), 7), (Given(True), 3), (brevity, -4)])
    parts = reward_fn.components(response_text="x")
    assert parts == {"Given": 1.0, "Given_2": 0.0, "Given_3": 1.0, "brevity": 0.5}
    assert reward_fn.total(parts) == reward_fn(response_text="x") == 3.0


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-10, 10)), min_size=1))
def test_it_is_the_sum_of_weight_times_value(pairs: list[tuple[float, float]]) -> None:
    reward_fn = WeightedSum([(Given(value), weight) for value, weight in pairs])
    assert reward_fn() == pytest.approx(sum(value * weight for value, weight in pairs))


@pytest.mark.parametrize("value", [1, True, numpy.float32(1), numpy.array(1.0)], ids=repr)
def test_a_component_may_give_any_scalar(value: object) -> None:
    assert WeightedSum({Given(value): 1})() == 1.0


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "1", [], [1.0, 0.5], numpy.ones(1)], ids=repr)
def test_a_component_without_one_finite_number_is_named(value: object) -> None:
    reward_fn = WeightedSum({ExactMatch(): 1, Given(value): 1})
    with pytest.raises(RewardInvalid, match=r"component Given(.|\n)*hint:"):
        reward_fn(response_text="x", ground_truth="x")


def test_a_component_of_no_weight_is_still_checked() -> None:
    with pytest.raises(RewardInvalid, match="component Given returned no reward"):
        WeightedSum({Given(None): 0})()


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), "1", None], ids=repr)
def test_a_weight_is_a_finite_number(weight: Any) -> None:
    with pytest.raises(ConfigError, match="the weight of ExactMatch is"):
        WeightedSum([(ExactMatch(), weight)])


def test_components_are_callables_and_there_is_at_least_one() -> None:
    with pytest.raises(ConfigError, match="has no components"):
        WeightedSum({})
    with pytest.raises(ConfigError, match="component str is not callable"):
        WeightedSum({"ExactMatch": 1.0})
