from __future__ import annotations

import enum
import json
import uuid
from collections import namedtuple
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import NotSerializable
from agentcore_rl_toolkit.jsonable import dump_json, jsonable

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_json_values_pass_unchanged(value: Any) -> None:
    assert json.loads(dump_json(jsonable(value))) == value


@given(st.text(alphabet=st.characters()))
def test_any_text_survives(text: str) -> None:
    assert json.loads(dump_json(jsonable({"t": text})))["t"] == text


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Kind(str, enum.Enum):
    A = "a"


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Kind.A, "a"),
        ({Kind.A: 1, 2: 2, None: 3, True: 4, 1.5: 5}, {"a": 1, "2": 2, "null": 3, "true": 4, "1.5": 5}),
        (Pair(1, 2), {"x": 1, "y": 2}),
        (Decimal("0.1"), 0.1),
        (Decimal("0.1000000000000000055511151231257827"), "0.1000000000000000055511151231257827"),
        (Decimal("NaN"), "NaN"),
        (float("-inf"), "-Infinity"),
        (np.float64("nan"), "NaN"),
        (np.array([[True], [False]]), [[True], [False]]),
        (np.int8(3), 3),
        ({np.int64(7): np.bool_(True)}, {"7": True}),
        (frozenset({3, 1}), [1, 3]),
        (uuid.UUID(int=0), "00000000-0000-0000-0000-000000000000"),
        (memoryview(b"a"), "YQ=="),
    ],
)
def test_conversions(value: Any, expected: Any) -> None:
    result = jsonable(value)
    assert result == expected
    assert json.loads(dump_json(result)) == expected


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [{"b": object()}]}, r"a\[0\]\.b is a object"),
        (object(), "the result is a object"),
        ({"f": test_conversions}, "f is a function"),
        ({1: "a", "1": "b"}, "two keys that both become '1'"),
        ({"a": {(1, 2): 3}}, "a has a tuple as a key"),
        (deep(10_000), "nested more than"),
        ({"s": {object()}}, "s{…} is a object"),
    ],
)
def test_what_has_no_json_form_is_named(value: Any, says: str) -> None:
    with pytest.raises(NotSerializable, match=says):
        jsonable(value)


def test_the_same_object_twice_is_no_cycle() -> None:
    shared = {"a": 1}
    assert jsonable([shared, shared]) == [shared, shared]
