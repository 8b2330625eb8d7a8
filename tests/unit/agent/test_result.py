from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
from typing import Any, cast

import anthropic
import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion
from strands.types.exceptions import (
    ContextWindowOverflowException,
    MaxTokensReachedException,
    ModelThrottledException,
)

from agentcore_rl_toolkit.agent.result import Result, ResultBuilder, classify
from agentcore_rl_toolkit.agent.safe_values.json_values import jsonable
from agentcore_rl_toolkit.agent.safe_values.redaction import Redactor
from agentcore_rl_toolkit.errors import RewardInvalid
from agentcore_rl_toolkit.types import RolloutId, Status


def builder(**payload: Any) -> ResultBuilder:
    return ResultBuilder(RolloutId("e", "i", "s"), "/store", payload, Redactor.of(payload), "request", 1.0)


REQUEST = httpx.Request("POST", "http://model/v1")


def refused(kind: Any, status: int) -> Exception:
    return cast("Exception", kind("x", response=httpx.Response(status, request=REQUEST), body=None))


def length_finish_reason() -> Exception:
    message = {"role": "assistant", "content": "x"}
    choices = [{"index": 0, "finish_reason": "length", "message": message}]
    completion = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    return openai.LengthFinishReasonError(completion=ChatCompletion.model_validate(completion))


class APIConnectionError(Exception):
    """Only its name is that of a model client's."""


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
        (RewardInvalid("not a number"), Status.REWARD_ERROR),
        (asyncio.CancelledError(), Status.CANCELLED),
        (concurrent.futures.CancelledError(), Status.CANCELLED),
        (openai.APIConnectionError(request=REQUEST), Status.ENGINE_ERROR),
        (openai.APITimeoutError(REQUEST), Status.ENGINE_ERROR),
        (anthropic.APIConnectionError(request=REQUEST), Status.ENGINE_ERROR),
        (APIConnectionError("x"), Status.AGENT_ERROR),
        (refused(openai.InternalServerError, 500), Status.ENGINE_ERROR),
        (refused(openai.RateLimitError, 429), Status.ENGINE_ERROR),
        (refused(openai.BadRequestError, 400), Status.AGENT_ERROR),
        (refused(anthropic.APIStatusError, 529), Status.ENGINE_ERROR),
        (refused(anthropic.NotFoundError, 404), Status.AGENT_ERROR),
        (chained(refused(openai.RateLimitError, 429)), Status.ENGINE_ERROR),
        (ModelThrottledException("x"), Status.ENGINE_ERROR),
        (MaxTokensReachedException("x"), Status.TRUNCATED),
        (chained(ContextWindowOverflowException("x")), Status.TRUNCATED),
        (length_finish_reason(), Status.TRUNCATED),
    ],
    ids=repr,
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
    reserved = {*builder().failed(Status.TIMEOUT, ValueError(), 2.0, returned=1).document, "shadowed"}
    mine = {name: f"my {name}" for name in reserved}
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
    assert document["returned"] == {"rewards": 1, "x": "a Nasty whose repr fails", "api_key": "***"}
    json.dumps(document)


def test_an_exception_without_a_message_is_named() -> None:
    assert builder().raised(KeyError(), 2.0).document["stop_reason"] == "KeyError"


def linked(*, cause: BaseException | None = None, context: BaseException | None = None) -> Exception:
    error = RuntimeError("wrapped")
    error.__cause__, error.__context__ = cause, context
    return error


ENGINE = openai.APIConnectionError(request=REQUEST)


@pytest.mark.parametrize(
    "error",
    [linked(cause=ENGINE), linked(context=ENGINE), linked(cause=linked(context=ENGINE), context=ValueError())],
    ids=["cause", "context", "context of the cause"],
)
def test_causes_are_classified_too(error: BaseException) -> None:
    assert classify(error) is Status.ENGINE_ERROR


@pytest.mark.timeout(10)
def test_exceptions_that_cause_each_other_have_an_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert classify(first) is Status.AGENT_ERROR


def test_what_names_the_same_thing_is_not_shadowed() -> None:
    assert "shadowed" not in builder().returned({"input_id": "i", "s3_bucket": "/store"}, 2.0).document


@pytest.mark.parametrize("code", [True, "500", 500.0, None])
def test_a_status_code_is_a_whole_number(code: Any) -> None:
    document = builder().returned({"status_code": code}, 2.0).document
    assert document["status_code"] == 200
    assert type(document["status_code"]) is int
    assert document["shadowed"] == {"status_code": code}


@pytest.mark.parametrize("reason", [7, None, ["max_turns"]])
def test_a_stop_reason_is_text(reason: Any) -> None:
    document = builder().returned({"stop_reason": reason}, 2.0).document
    assert (document["stop_reason"], document["shadowed"]) == ("end_turn", {"stop_reason": reason})


def test_an_own_failure_keeps_its_own_error() -> None:
    document = builder().returned({"status_code": 503, "stop_reason": "gave up", "error": "mine"}, 2.0).document
    assert document["status_code"] == 503
    assert document["error"] == {"kind": "agent_error", "type": "Returned", "message": "gave up"}
    assert document["shadowed"] == {"error": "mine"}


def test_what_is_left_of_a_value_is_short_and_has_no_secrets() -> None:
    class Talkative:
        def __repr__(self) -> str:
            return "sk-12345678 " + "x" * 5000

    value = {"said by sk-12345678": Talkative(), "api_key": "sk-another-one", "n": 1}
    returned = builder(api_key="sk-12345678").returned(value, 2.0).document["returned"]
    text = returned.pop("said by ***")
    assert returned == {"api_key": "***", "n": 1}
    assert text.startswith("*** xxx")
    assert len(text) <= 1000


def test_a_failure_has_no_secrets() -> None:
    try:
        raise ValueError("401 for sk-12345678")
    except ValueError as error:
        document = builder(api_key="sk-12345678").raised(error, 2.0).document
    assert document["stop_reason"] == "ValueError: 401 for ***"
    assert document["error"]["message"] == "401 for ***"
    assert "ValueError: 401 for ***" in document["traceback"]
    assert "sk-12345678" not in document["traceback"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[" * 200_000, "at most 200 levels deep"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "at most 200 levels deep"),
        (b'{"a":' + b"[" * 201 + b"]" * 201 + b"}", "at most 200 levels deep"),
        (b'{"rewards": NaN}', "NaN is not a JSON number"),
        (b'{"rewards": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"n": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a": "\xff"}', "utf-8"),
        (b"{half", "Expecting property name"),
        (b"", "Expecting value"),
        (b"[1]", "not a list"),
    ],
)
def test_what_is_no_result_is_one_kind_of_error(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Result.from_bytes(data)


@pytest.mark.parametrize(
    ("data", "readable"),
    [
        (b'{"a":[%s[]]}' % (b"[]," * 3_000_000), False),
        (b'{"a":[%s[]]}' % (b"[]," * 100_000), True),
        (b'{"a":[%s1]}' % (b'{"x":1},' * 1_000_000), False),
        (b'{"a":"%s"}' % (rb"[],\"{:" * 3_000_000), True),  # text
        (b'{"a":[%s1]}' % (b"12345," * 1_000_000), True),
    ],
    ids=["lists", "few lists", "objects", "a text", "numbers"],
)
def test_a_result_of_millions_of_small_values_is_not_read(data: bytes, readable: bool) -> None:
    """It would take gigabytes of memory, and keep every other thread from running for half a minute."""
    if readable:
        assert Result.from_bytes(data).status is Status.COMPLETED
    else:
        with pytest.raises(ValueError, match=r"many small values would take about [0-9,]+ MB of memory"):
            Result.from_bytes(data)


def test_what_is_nested_as_deep_as_a_result_may_be_can_be_written_again() -> None:
    data = b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"
    assert Result(jsonable(Result.from_bytes(data).document)).to_bytes() == data


HOSTILE = [1, "x", [], [[]], {}, {"kind": []}, {"kind": {}}, {"kind": "no such thing"}, None, True, -1.5, "\ud800"]


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_whatever_is_in_a_result_it_can_be_read(value: Any) -> None:
    for name in ("status_code", "error", "stop_reason", "_rollout", "rewards", "result_key", "input_id"):
        result = Result({"status_code": 500, name: value})
        assert isinstance(result.status, Status)
        assert result.seconds is None
        with contextlib.suppress(RewardInvalid):
            assert result.rewards is None or isinstance(result.rewards, (float, list))
    for started, finished in itertools.product([value, "2026-01-01T00:00:00", "2026-01-01T00:00:00+00:00"], repeat=2):
        taken = Result({"_rollout": {"started_at": started, "finished_at": finished}}).seconds
        assert taken is None or taken == 0.0
