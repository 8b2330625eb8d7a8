"""Bodies as they are read: what is refused, long or short."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.wire.json_body import MAX_DEPTH, depth, read_json


def nested(levels: int) -> dict[str, Any]:
    """An object of so many levels, lists and objects by turns."""
    value: Any = {} if levels % 2 else []
    for level in range(levels - 1, 0, -1):
        value = {"a": value} if level % 2 else [value]
    return dict(value)


@pytest.mark.parametrize("text", ["", "x" * 30_000])
def test_how_deep_a_body_may_be(text: str) -> None:
    for levels in (1, 2, MAX_DEPTH):
        body = nested(levels) | {"text": text}
        assert depth(body) == levels
        assert read_json(json.dumps(body).encode()) == body
    with pytest.raises(GatewayFault, match="nested more than 100 deep"):
        read_json(json.dumps(nested(MAX_DEPTH + 1) | {"text": text}).encode())


def test_many_brackets_are_not_depth() -> None:
    body = {"messages": [{"content": [{"text": "[" * 200}]}] * 60}
    assert read_json(json.dumps(body).encode()) == body


@pytest.mark.parametrize("body", [b"[1]", b"3", b"", b"{", b'{"a": NaN}', b'{"a": 1e999}'])
def test_a_body_that_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(GatewayFault, match=r"not a JSON object|not valid JSON"):
        read_json(body)


@pytest.mark.parametrize("unit", [b"[],", b'{"a":0},', b'{"role":"user","content":"a"},', b'\\"[],[],\\",'])
def test_many_small_values_are_refused_by_the_memory_they_would_take(unit: bytes) -> None:
    inner = unit * (10_000_000 // len(unit))
    body = b'{"a": "%b"}' % inner if b"\\" in unit else b'{"a": [%b0]}' % inner
    with pytest.raises(GatewayFault, match="MB of memory") as raised:
        read_json(body)
    assert (raised.value.status, raised.value.code) == (413, "body_too_large")


@pytest.mark.parametrize("unit", ["words, and more words, and (now and then) a [bracket]. ", "x", "12345, "])
def test_long_texts_and_lists_of_tokens_are_read(unit: str) -> None:
    text = unit * (10_000_000 // len(unit))
    assert read_json(json.dumps({"a": text}).encode()) == {"a": text}


def test_an_integer_larger_than_any_float_is_read() -> None:
    assert read_json(b'{"a": [%d, -%d, %d]}' % (10**400, 10**400, 2**70)) == {"a": [math.inf, -math.inf, 2.0**70]}
