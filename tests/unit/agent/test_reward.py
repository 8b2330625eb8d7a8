from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.agent.reward import RewardFunction, normalize_rewards
from agentcore_rl_toolkit.errors import RewardInvalid

finite = st.floats(-1e15, 1e15)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (1, 1.0),
        (True, 1.0),
        (False, 0.0),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (np.array(2), 2.0),
        ([1, True, 0.5], [1.0, 1.0, 0.5]),
        ((np.int64(1),), [1.0]),
        (np.array([0.25, 1]), [0.25, 1.0]),
    ],
)
def test_the_rule(value: Any, expected: Any) -> None:
    result = normalize_rewards(value)
    assert result == expected
    assert type(result) is type(expected)


@given(finite | st.lists(finite, min_size=1))
def test_floats_pass_unchanged(value: Any) -> None:
    assert normalize_rewards(value) == value


@pytest.mark.parametrize(
    "value",
    ["1", b"1", {"a": 1}, {1.0}, [], (), [1, None], [[1]], float("nan"), [1, float("inf")], 10**400, 1e16, [-1e38], 1j,
     np.array([[1.0]]), np.array([]), np.array("x"), object(), np.float64("nan")],
)  # fmt: skip
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(RewardInvalid, match=r"^rewards"):
        normalize_rewards(value)


def test_a_reward_without_a_call_says_so() -> None:
    class Empty(RewardFunction):
        pass

    with pytest.raises(TypeError, match="Empty does not define __call__"):
        Empty()(response_text="x")


class Later:
    def __await__(self) -> Any: ...


class Shaped:
    """Has the attribute of an array, and is none."""

    ndim = 1


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([1, "x"], r"^rewards\[1\] is a str \('x'\), not a number"),
        ([1, float("nan")], r"^rewards\[1\] is nan"),
        ([1, -2e38], r"^rewards\[1\] is -2e\+38: beyond ±1e\+15.*\nhint: scale rewards"),
        (np.array([[1.0]]), r"^rewards is a ndarray \(array\(\[\[1\.\]\]\)\)"),
        ("x" * 1000, r"^rewards is a str \('x+… 942 characters left out …x+'\), not a number"),
        (Shaped(), r"^rewards is a Shaped"),
        (Later(), r"^rewards is a Later .*\nhint: await it"),
    ],
)
def test_what_is_refused_is_named(value: Any, says: str) -> None:
    with pytest.raises(RewardInvalid, match=says):
        normalize_rewards(value)
