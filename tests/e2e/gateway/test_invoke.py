"""Bedrock's InvokeModel with Anthropic's bodies, by boto3 and the `anthropic` SDK as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import anthropic
import httpx
import pytest
from botocore.exceptions import ClientError, EventStreamError

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine
from agentcore_rl_toolkit.errors import EngineError
from support.bedrock import ARN, CLAUDE, bedrock
from support.gateway import KEEPS_ALIVE, MODEL, Gated, gateway, ids

BODY = {
    "anthropic_version": "bedrock-2023-05-31",
    "anthropic_beta": ["interleaved-thinking-2025-05-14"],
    "max_tokens": 99,
    "temperature": 0.5,
    "messages": [{"role": "user", "content": "what is two plus two?"}],
}


@contextmanager
def client(session: dict[str, Any]) -> Iterator[Any]:
    made = bedrock(session)
    try:
        yield made
    finally:
        made.close()


def invoke(made: Any, model: str = MODEL, *, stream: bool = False, **body: Any) -> dict[str, Any]:
    """What Anthropic's API would have answered."""
    given = {"modelId": model, "body": json.dumps(BODY | body)}
    if not stream:
        answer: dict[str, Any] = json.loads(made.invoke_model(**given)["body"].read())
        return answer
    events = [json.loads(event["chunk"]["bytes"]) for event in made.invoke_model_with_response_stream(**given)["body"]]
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    return events[0]["message"] | events[-2]["delta"] | {"content": [{"type": "text", "text": text}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", [CLAUDE, ARN])
def test_the_session_says_which_model_is_meant(name: str, stream: bool):
    engine = ScriptedEngine([ids("four")])
    with gateway(engine) as running:
        with client(running.open_session(model=MODEL)) as made:
            answer = invoke(made, name, stream=stream)
        assert answer["content"] == [{"type": "text", "text": "four"}]
        assert (answer["stop_reason"], answer["role"], answer["type"]) == ("end_turn", "assistant", "message")
        (request,) = engine.requests
        assert (request.model, request.sampling.temperature, request.sampling.max_tokens) == (MODEL, 0.5, 99)
        with client(running.open_session()) as made, pytest.raises(ClientError, match="does not exist") as refused:
            invoke(made, name, stream=stream)
        assert refused.value.response["Error"]["Code"] == "ResourceNotFoundException"


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_those_of_bedrock(stream: bool):
    with gateway([ScriptedLine([], fails=EngineError("too bad", status=429))]) as running:
        session = running.open_session()
        with client(session) as made:
            with pytest.raises(ClientError, match="too bad") as caught:
                invoke(made, stream=stream)
            assert caught.value.response["Error"]["Code"] == "ThrottlingException"
            with pytest.raises(ClientError, match="max_tokens is missing") as caught:
                invoke(made, stream=stream, max_tokens=None)
            assert caught.value.response["Error"]["Code"] == "ValidationException"
        with speak(session) as made, pytest.raises(anthropic.BadRequestError, match="max_tokens is 0"):
            made.messages.create(**BODY_OF_SDK | {"max_tokens": 0}, stream=stream)


BODY_OF_SDK: dict[str, Any] = {"model": MODEL, "max_tokens": 9, "messages": BODY["messages"]}


def speak(session: dict[str, Any]) -> anthropic.AnthropicBedrock:
    keys = {"aws_access_key": "x", "aws_secret_key": "x", "aws_region": "us-west-2"}
    return anthropic.AnthropicBedrock(base_url=session["bedrock_endpoint_url"], max_retries=0, **keys)


def test_an_error_in_a_stream():
    failing = [ScriptedLine(ids("four", end=False), fails=EngineError("too bad", sampled_any=True))] * 2
    with gateway(failing) as running:
        session = running.open_session()
        with client(session) as made:
            answer = made.invoke_model_with_response_stream(modelId=MODEL, body=json.dumps(BODY))
            with closing(answer["body"]) as events, pytest.raises(EventStreamError, match="too bad"):
                list(events)
        with speak(session) as made, pytest.raises(anthropic.APIError, match="too bad"):
            list(made.messages.create(**BODY_OF_SDK, stream=True))


def test_signs_of_life_are_nothing_to_the_clients():
    engine = Gated(ScriptedEngine([ids("four"), ids("five")]))
    with gateway(engine, limits=KEEPS_ALIVE) as running:
        session = running.open_session()
        with client(session) as made:
            answer = made.invoke_model_with_response_stream(modelId=MODEL, body=json.dumps(BODY))  # with the first sign
            engine.let(100)
            assert len(list(answer["body"])) > 4
        with speak(session) as made, made.messages.create(**BODY_OF_SDK, stream=True) as events:
            assert [event.type for event in events][-1] == "message_stop"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"prompt": "hi"}', b'{"inputText": "hi"}', b"\xff"])
@pytest.mark.parametrize("operation", ["invoke", "invoke-with-response-stream"])
def test_garbage_is_refused_in_awss_shape(served: dict[str, Any], operation: str, body: bytes):
    answer = httpx.post(f"{served['bedrock_endpoint_url']}/model/{CLAUDE}/{operation}", content=body)
    assert (answer.status_code, answer.headers["x-amzn-ErrorType"]) == (400, "ValidationException")
    assert list(answer.json()) == ["message"]


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Any]]:
    with gateway([]) as running:
        yield running.open_session()
