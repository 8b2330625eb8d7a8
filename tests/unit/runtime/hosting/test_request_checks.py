"""What a runtime reads of a request: whatever it is, sound values or one refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.runtime.hosting.request_checks import check_command, check_session_id, rollout_request

TEXT = st.text(st.characters(), max_size=20)  # half surrogate pairs too
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
NAMES = ("s3_bucket", "sqs_url", "base_url", "model_id", "exp_id", "input_id")


def refused(call: Callable[..., Any], *args: Any) -> bool:
    """Whether it is a `ValidationException`; nothing else may be raised."""
    try:
        call(*args)
    except RuntimeFault as fault:
        return fault.code == "ValidationException"
    return False


@given(st.dictionaries(st.sampled_from(NAMES), JSON) | JSON)
def test_any_settings(settings: Any) -> None:
    payload = json.dumps({"_rollout": settings}).encode()
    if refused(rollout_request, payload):
        return
    read = rollout_request(payload)
    assert read == ({} if settings is None else {"_rollout": settings})
    for name in NAMES:
        value = read.get("_rollout", {}).get(name)
        assert value is None or isinstance(value, (str, int))
        assert b"\0" not in str(value).encode()


@given(st.binary())
def test_any_bytes(payload: bytes) -> None:
    assert refused(rollout_request, payload) or isinstance(rollout_request(payload), dict)


@pytest.mark.parametrize("payload", [b'{"_rollout": null}', b'["_rollout"]', b'"_rollout"', b"7", b'{"x": "_rollout"}'])
def test_payloads_without_a_rollout(payload: bytes) -> None:
    assert rollout_request(payload) == {}


@given(TEXT, st.integers())
def test_any_command(command: str, timeout: int) -> None:
    assert refused(check_command, command, timeout) or b"\0" not in command.encode()


@given(st.text(st.characters(), min_size=33, max_size=60))
def test_any_session_id(session_id: str) -> None:
    assert refused(check_session_id, session_id) or session_id.isascii()
