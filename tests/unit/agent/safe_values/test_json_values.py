from __future__ import annotations

import datetime
import enum
import itertools
import json
import uuid
from collections import namedtuple
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.agent.safe_values.json_values import dump_json, jsonable
from agentcore_rl_toolkit.agent.safe_values.redaction import Redactor
from agentcore_rl_toolkit.errors import NotSerializable, ResultTooLarge

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
        ({"s": {object()}}, r"s\[0\] is a object"),
    ],
)
def test_what_has_no_json_form_is_named(value: Any, says: str) -> None:
    with pytest.raises(NotSerializable, match=says):
        jsonable(value)


def test_the_same_object_twice_is_no_cycle() -> None:
    shared = {"a": 1}
    assert jsonable([shared, shared]) == [shared, shared]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("inf"), "Infinity"),
        (Decimal("Infinity"), "Infinity"),
        (Decimal("1E400"), "1E+400"),
        (datetime.timedelta(minutes=1.5), 90.0),
        (datetime.time(3, 4), "03:04:00"),
        (bytearray(b"a"), "YQ=="),
        ({1, "a"}, ["a", 1]),
        ({uuid.UUID(int=0): 1}, {"00000000-0000-0000-0000-000000000000": 1}),
        ({datetime.date(2026, 1, 2): 1}, {"2026-01-02": 1}),
        ({Colour.RED: 1}, {"red": 1}),
    ],
)
def test_more_conversions(value: Any, expected: Any) -> None:
    assert jsonable(value) == expected


def test_numbers_are_plain() -> None:
    values = jsonable([np.float64(0.5), np.int64(1), np.bool_(True)])
    assert [type(value) for value in values] == [float, int, bool]


def test_text_that_is_not_valid_unicode_survives() -> None:
    data = dump_json(jsonable({"t": "a\ud800b"}))
    assert data == b'{"t":"a\\ud800b"}'
    assert json.loads(data) == {"t": "a\ud800b"}


def test_other_text_is_stored_as_it_reads() -> None:
    assert dump_json({"t": "Grüße 世界"}) == '{"t":"Grüße 世界"}'.encode()


@pytest.mark.parametrize("text", ["", "\ud800"])  # the second takes the other way out
def test_nothing_but_json_is_dumped(text: str) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_json([text, float("nan")])


def test_a_cycle_is_named_where_it_closes() -> None:
    loop: dict[str, Any] = {}
    loop["a"] = [loop]
    with pytest.raises(NotSerializable, match=r"^a\[0\] contains itself"):
        jsonable(loop)


def test_secrets_are_hidden_by_name_and_by_text() -> None:
    redact = Redactor.of({"api_key": "sk-12345678"})
    value = {"api_key": {"any": object()}, "openai_api_key": None, "said": ["it is sk-12345678"]}
    assert jsonable(value, redact=redact) == {"api_key": "***", "openai_api_key": None, "said": ["it is ***"]}


def test_secrets_used_as_keys_are_hidden() -> None:
    redact = Redactor.of({"api_key": "sk-12345678"})
    value = {"tried": {"sk-12345678": 1, "with sk-12345678": 2}, "api_key": "other"}
    assert jsonable(value, redact=redact) == {"tried": {"***": 1, "with ***": 2}, "api_key": "***"}


def test_a_name_is_judged_before_it_is_hidden() -> None:
    redact = Redactor(["my_token"], names=["my_token"])
    assert jsonable({"my_token": "not in the request"}, redact=redact) == {"***": "***"}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"sk-12345678": [object()]}, r"^\*\*\*\[0\] is a object"),
        ({"a sk-12345678": 1, "a ***": 2}, r"two keys that both become 'a \*\*\*'"),
        ({"a": {("sk-12345678",): 1}}, r"a has a tuple as a key \(\('\*\*\*',\)\)"),
    ],
)
def test_an_error_names_no_secret_key(value: Any, says: str) -> None:
    with pytest.raises(NotSerializable, match=says) as caught:
        jsonable(value, redact=Redactor(["sk-12345678"]))
    assert "sk-12345678" not in str(caught.value)


@pytest.mark.parametrize("item", [None, 1, 0.5, True, [], {}])
def test_what_never_ends_is_converted_only_up_to_the_limit(item: Any) -> None:
    class Endless(list[Any]):
        def __iter__(self) -> Any:
            return itertools.repeat(item)

    with pytest.raises(ResultTooLarge, match=r"steps\[\d+\] exceeds the limit of 1,000 bytes"):
        jsonable({"steps": Endless()}, limit=1000)


def test_an_array_is_not_unpacked_to_see_that_it_is_too_large() -> None:
    class Array:
        dtype, size = "float32", 1001

        def tolist(self) -> Any:
            raise AssertionError("too many to unpack")

    with pytest.raises(ResultTooLarge):
        jsonable({"x": Array()}, limit=1000)
    with pytest.raises(ResultTooLarge):
        jsonable({"x": bytes(1001)}, limit=1000)
    assert jsonable(np.zeros(400), limit=1000) == [0.0] * 400


def test_given_values_take_the_place_of_the_outermost_ones() -> None:
    value = {"rewards": object(), "inner": {"rewards": "kept"}, "more": 1}
    assert jsonable(value, given={"rewards": 0.5, "absent": 1}) == {
        "rewards": 0.5,
        "inner": {"rewards": "kept"},
        "more": 1,
    }
