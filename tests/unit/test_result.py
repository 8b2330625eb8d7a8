from __future__ import annotations

import asyncio
import concurrent.futures
import json
from typing import Any

import pytest

from agentcore_rl_toolkit.redact import Redactor
from agentcore_rl_toolkit.result import RESERVED, Result, ResultBuilder, classify
from agentcore_rl_toolkit.types import RolloutId, Status


def builder(**payload: Any) -> ResultBuilder:
    return ResultBuilder(RolloutId("e", "i", "s"), "/store", payload, Redactor.of(payload), "request", 1.0)


def exception(name: str, module: str, base: type[Exception] = Exception) -> Exception:
    return type(name, (base,), {"__module__": module})("x")


def chained(inner: Exception) -> Exception:
    try:
        try:
            raise inner
        except Exception as error:
            raise RuntimeError("wrapped") from error
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x"), Status.AGENT_ERROR),
        (TimeoutError("a tool's"), Status.AGENT_ERROR),
        (asyncio.CancelledError(), Status.CANCELLED),
        (concurrent.futures.CancelledError(), Status.CANCELLED),
        (exception("APIConnectionError", "openai"), Status.ENGINE_ERROR),
        (exception("InternalServerError", "anthropic._exceptions"), Status.ENGINE_ERROR),
        (chained(exception("RateLimitError", "openai")), Status.ENGINE_ERROR),
        (exception("APIConnectionError", "somebody.elses"), Status.AGENT_ERROR),
        (exception("MaxTokensReachedException", "strands.types.exceptions"), Status.TRUNCATED),
        (chained(exception("ContextWindowOverflowException", "strands.types.exceptions")), Status.TRUNCATED),
    ],
)
def test_exceptions_are_told_apart(error: BaseException, status: Status) -> None:
    assert classify(error) is status


def test_the_status_is_read_back() -> None:
    for status in Status:
        document = builder().failed(status, ValueError("x"), 2.0).to_bytes()
        assert Result.from_bytes(document).status is status
    assert Result({"status_code": 500}).status is Status.AGENT_ERROR
    assert Result({"status_code": 500, "error": {"kind": "unheard of"}}).status is Status.AGENT_ERROR
    with pytest.raises(ValueError, match="not a list"):
        Result.from_bytes(b"[]")


def test_no_reserved_key_is_overwritten_silently() -> None:
    mine = {name: f"my {name}" for name in RESERVED}
    document = builder(prompt="p").returned(mine, 2.0).document
    kept = document["shadowed"]
    for name, value in mine.items():
        assert document.get(name) == value or kept.get(name) == value, name
    assert document["payload"] == {"prompt": "p"}
    assert (document["status_code"], kept["status_code"]) == (200, "my status_code")
    assert document["stop_reason"] == "my stop_reason"


def test_a_value_whose_repr_fails_is_still_a_failed_result() -> None:
    class Nasty:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    document = builder().returned({"rewards": 1, "x": Nasty(), "api_key": Nasty()}, 2.0).document
    assert document["error"]["type"] == "NotSerializable"
    assert document["returned"] == {"rewards": 1, "x": "a Nasty, whose repr fails", "api_key": "***"}
    json.dumps(document)


def test_an_exception_without_a_message_is_named() -> None:
    assert builder().raised(KeyError(), 2.0).document["stop_reason"] == "KeyError"
