"""Bedrock's Converse and ConverseStream, by boto3 and Strands as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError, EventStreamError
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.models import BedrockModel
from strands.types.exceptions import ContextWindowOverflowException, MaxTokensReachedException, ModelThrottledException

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.call.core import GatewayLimits
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.bedrock import ARN, CLAUDE, STAND_INS, bedrock
from support.fault_proxy import FaultProxy
from support.gateway import KEEPS_ALIVE, MODEL, WEATHER, Control, Gated, call_text, gateway, ids, in_thread, until
from support.speakers.bedrock_converse import gather

HELLO = [{"role": "user", "content": [{"text": "what is two plus two?"}]}]
TOOLS = {
    "tools": [
        {
            "toolSpec": {
                "name": "get_weather",
                "description": "The weather",
                "inputSchema": {"json": WEATHER["function"]["parameters"]},
            }
        }
    ]
}
SCRIPT = [
    ids("<think>\nParis first\n</think>\n\nlet me see\n" + call_text("get_weather", city="Paris")),
    ids("<think>\nnow Rome\n</think>\n\n" + call_text("get_weather", unit="celsius", city="Rome")),
    ids("<think>\ndone\n</think>\n\nit is sunny in Paris, warm in Rome"),
]


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in STAND_INS.items():
        monkeypatch.setenv(name, value)


@contextmanager
def client(session: dict[str, Any], **settings: Any) -> Iterator[Any]:
    made = bedrock(session, **settings)
    try:
        yield made
    finally:
        made.close()


def ask(session: dict[str, Any], *, stream: bool = False, retries: int = 1, **settings: Any) -> dict[str, Any]:
    """What `converse` answers, or what `converse_stream` adds up to."""
    asked = {"modelId": MODEL, "messages": HELLO} | settings
    with client(session, retries={"total_max_attempts": retries}) as made:
        answer: dict[str, Any] = gather(made.converse_stream(**asked)["stream"]) if stream else made.converse(**asked)
    answer.pop("ResponseMetadata", None)
    return answer


def text(answer: dict[str, Any]) -> str:
    return "".join(block.get("text", "") for block in answer["output"]["message"]["content"])


def one_row(running: Gateway, session: dict[str, Any], script: list[list[int]]) -> None:
    """What the policy sampled, all of it, in one row."""
    known = running.trajectories(session["session_id"])
    turns = len(script)
    assert (known.fidelity.turns, known.fidelity.rows, known.fidelity.bridges) == (turns, 1, turns - 1)
    (row,) = known.rows
    trained = [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    assert trained == [token for said in script for token in said]
    assert known.fidelity.trained == known.fidelity.sampled == len(trained)


# boto3


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_with_everything(stream: bool):
    engine = ScriptedEngine(SCRIPT)
    with gateway(engine) as running:
        session = running.open_session()
        answer = ask(
            session,
            stream=stream,
            system=[{"text": "be short"}, {"cachePoint": {"type": "default"}}],
            inferenceConfig={"maxTokens": 99, "temperature": 0.5, "topP": 0.25, "stopSequences": ["END"]},
            toolConfig=TOOLS | {"toolChoice": {"auto": {}}},
            additionalModelRequestFields={"top_k": 7, "seed": 3, "anthropic_version": "x"},
            requestMetadata={"team": "a"},
            performanceConfig={"latency": "optimized"},
            serviceTier={"type": "flex"},
        )
        (request,) = engine.requests
        wanted = {"max_tokens": 99, "temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": 3, "stop": ("END",)}
        assert wanted.items() <= request.sampling.settings().items()
        thought, said, call = answer["output"]["message"]["content"]
        assert thought["reasoningContent"]["reasoningText"]["text"].strip() == "Paris first"
        assert said["text"].strip() == "let me see"
        assert (call["toolUse"]["name"], call["toolUse"]["input"]) == ("get_weather", {"city": "Paris"})
        assert answer["stopReason"] == "tool_use"
        assert answer["usage"]["outputTokens"] == len(SCRIPT[0])
        assert answer["usage"]["inputTokens"] == len(request.prompt)
        assert answer["metrics"]["latencyMs"] >= 0


def test_thinking_can_be_turned_off():
    engine = ScriptedEngine([ids("four"), ids("four")])
    with gateway(engine) as running:
        session = running.open_session()
        ask(session, additionalModelRequestFields={"thinking": {"type": "enabled", "budget_tokens": 1024}})
        ask(session, additionalModelRequestFields={"thinking": {"type": "disabled"}})
        first, second = (list(request.prompt) for request in engine.requests)
        assert second[: len(first)] == first  # Qwen3 is given an empty thought to go on from
        assert len(second) > len(first)


def test_a_schema_for_the_answer():
    engine = ScriptedEngine([ids("{}")])
    with gateway(engine) as running:
        described = {"jsonSchema": {"schema": '{"type": "object"}', "name": "x"}}
        ask(running.open_session(), outputConfig={"textFormat": {"type": "json_schema", "structure": described}})
        assert engine.requests[0].sampling.json_schema == {"type": "object"}


def test_tokens_that_were_there_before_are_read_from_the_cache():
    with gateway([ids("four"), ids("five")]) as running:
        session = running.open_session()
        first = ask(session)
        second = ask(session, messages=[*HELLO, first["output"]["message"], *HELLO])["usage"]
        known = Control(running).turns(session)[1]
        assert second["cacheReadInputTokens"] == known["kept_tokens"] > 0
        assert second["inputTokens"] == known["prompt_length"] - known["kept_tokens"] > 0
        assert second["totalTokens"] == known["prompt_length"] + len(known["sampled_ids"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", [CLAUDE, ARN, "a name/with slashes"])
def test_the_session_says_which_model_is_meant(name: str, stream: bool):
    engine = ScriptedEngine([ids("four")])
    with gateway(engine) as running:
        assert text(ask(running.open_session(model=MODEL), modelId=name, stream=stream)) == "four"
        assert engine.requests[0].model == MODEL
        with pytest.raises(ClientError, match="does not exist") as refused:
            ask(running.open_session(), modelId=name, stream=stream)
        assert refused.value.response["Error"]["Code"] == "ResourceNotFoundException"
        assert name in str(refused.value)


def test_a_model_whose_name_has_a_slash():
    name = "Qwen/Qwen3-8B:latest"
    engine = ScriptedEngine([ids("four")], models=("other", name))
    with gateway(engine) as running:
        assert text(ask(running.open_session(), modelId=name)) == "four"
        assert engine.requests[0].model == name


def test_a_sessions_base_url_will_do():
    with gateway([ids("four")]) as running:
        session = running.open_session()
        assert text(ask(session | {"bedrock_endpoint_url": session["base_url"]})) == "four"


def test_nobody_looks_at_the_signature():
    with gateway([ids("four"), ids("five")]) as running:
        url = f"{running.open_session()['bedrock_endpoint_url']}/model/{MODEL}/converse"
        for headers in ({}, {"Authorization": "AWS4-HMAC-SHA256 nonsense"}):
            assert httpx.post(url, json={"messages": HELLO}, headers=headers).status_code == 200


# Errors


@contextmanager
def raises(name: str, match: str = "") -> Iterator[None]:
    """As boto3 raises it: as a class of the client's own, with the status that the service model has for it."""
    with pytest.raises(ClientError, match=match) as caught:
        yield
    assert type(caught.value).__name__ == name
    assert caught.value.response["Error"]["Code"] == name
    made = bedrock({"bedrock_endpoint_url": "http://127.0.0.1:1"})
    assert hasattr(made.exceptions, name)
    made.close()


@pytest.mark.parametrize("stream", [False, True])
def test_exceptions_as_aws_raises_them(stream: bool):
    failing = [
        ScriptedLine([], fails=EngineError("too bad", status=status)) for status in (502, 503, 429, 500, 504, 400)
    ]
    with gateway(failing) as running:
        session = running.open_session()
        for name in (
            "ModelErrorException",
            "ServiceUnavailableException",
            "ThrottlingException",
            "InternalServerException",
            "ModelTimeoutException",
            "ValidationException",
        ):
            with raises(name, "too bad"):
                ask(session, stream=stream)
        with raises("ValidationException", "guardrail"):
            guardrail = {"guardrailIdentifier": "g", "guardrailVersion": "1"}
            ask(session, stream=stream, guardrailConfig=guardrail)
        with raises("ValidationException", "topP is 2.0: expected `float` <= 1"):
            ask(session, stream=stream, inferenceConfig={"topP": 2.0})
        with raises("AccessDeniedException", "the key in the URL"):
            url = session["bedrock_endpoint_url"].rpartition(".")[0] + ".wrong"
            ask({"bedrock_endpoint_url": url}, stream=stream)
        with raises("ResourceNotFoundException", "does not exist"):
            ask({"bedrock_endpoint_url": f"{running.url}/sessions/nobody.key"}, stream=stream)
        Control(running)("POST", f"/sessions/{session['session_id']}/close")
        with raises("ResourceNotFoundException", "is closed"):
            ask(session, stream=stream)


def test_too_many_calls():
    full = GatewayLimits(max_in_flight=0)
    with gateway([ids("four")], limits=full) as running, raises("ThrottlingException", "in flight"):
        ask(running.open_session())


def test_bodies_of_other_models_say_where_to_go():
    with gateway([]) as running, client(running.open_session()) as made:
        for invoke in (made.invoke_model, made.invoke_model_with_response_stream):
            with raises("ValidationException", r"inputText belongs to another model family.*call Converse"):
                invoke(modelId=CLAUDE, body=b'{"inputText": "hi"}')


def test_tokens_are_counted_without_being_sampled():
    engine = ScriptedEngine([ids("four")])
    with gateway(engine) as running, client(running.open_session(model=MODEL)) as made:
        body = b'{"messages": [{"role": "user", "content": "what is two plus two?"}]}'
        counts = [
            made.count_tokens(modelId=CLAUDE, input=given)["inputTokens"]
            for given in ({"converse": {"messages": HELLO}}, {"invokeModel": {"body": body}})
        ]
        assert not engine.requests
        made.converse(modelId=CLAUDE, messages=HELLO)
        assert counts == [len(engine.requests[0].prompt)] * 2
        with raises("ValidationException", "not valid JSON"):
            made.count_tokens(modelId=CLAUDE, input={"invokeModel": {"body": b""}})


@pytest.mark.parametrize("stream", [False, True])
def test_a_context_that_overflows(stream: bool):
    with gateway([ids("four")]) as running:
        session = running.open_session(context_limit=10)
        with raises("ValidationException", "This model's maximum context length is 10 tokens"):
            ask(session, stream=stream)


@pytest.mark.parametrize(
    ("status", "code"),
    [(502, "modelStreamErrorException"), (503, "serviceUnavailableException"), (429, "throttlingException")],
)
def test_an_error_in_a_stream(status: int, code: str):
    error = EngineError("too bad", status=status, sampled_any=True)
    with (
        gateway([ScriptedLine(ids("four", end=False), fails=error)]) as running,
        client(running.open_session()) as made,
    ):
        with closing(made.converse_stream(modelId=MODEL, messages=HELLO)["stream"]) as events:
            known = iter(events)
            assert next(known) == {"messageStart": {"role": "assistant"}}
            assert "contentBlockDelta" in next(known)
            with pytest.raises(EventStreamError) as caught:
                list(known)
        assert caught.value.response["Error"] == {"Code": code, "Message": "too bad"}


# Signs of life


def test_signs_of_life_are_nothing_to_boto3():
    engine = Gated(ScriptedEngine([ids("four")]))
    with gateway(engine, limits=KEEPS_ALIVE) as running, client(running.open_session()) as made:
        events = made.converse_stream(modelId=MODEL, messages=HELLO)["stream"]  # returns with the first sign
        engine.wait(engine.asked)
        engine.let(100)
        assert text(gather(events)) == "four"


def test_signs_of_life_are_sent():
    engine = Gated(ScriptedEngine([ids("four")]))
    with gateway(engine, limits=KEEPS_ALIVE) as running:
        url = f"{running.open_session()['bedrock_endpoint_url']}/model/{MODEL}/converse-stream"
        with httpx.stream("POST", url, json={"messages": HELLO}) as response:
            assert response.headers["content-type"] == "application/vnd.amazon.eventstream"
            pieces, seen = response.iter_raw(), b""
            while seen.count(b"keepAlive") < 3:
                seen += next(pieces)
            assert b"messageStart" not in seen
            engine.let(100)
            assert b"messageStop" in b"".join(pieces)


def test_an_error_after_a_sign_of_life():
    engine = Gated(ScriptedEngine([ScriptedLine([], fails=EngineError("too bad"))]))
    with (
        gateway(engine, limits=KEEPS_ALIVE) as running,
        client(running.open_session()) as made,
        closing(made.converse_stream(modelId=MODEL, messages=HELLO)["stream"]) as events,
    ):
        engine.let(2)  # the stream is there, so a sign was sent
        with pytest.raises(EventStreamError, match="too bad"):
            list(events)


# Requests that are sent again


@pytest.mark.parametrize("mode", ["legacy", "standard"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["cut after", "error", "cut before"])
def test_a_retry_gets_the_recorded_turn(fault: str, stream: bool, mode: str):
    """`cut after`: the answer is lost on its way; `error`: a proxy in between fails; `cut before`: it never arrives."""
    engine = ScriptedEngine([SCRIPT[0], ids("five")])
    with gateway(engine) as running, FaultProxy(running.url, rate=1.0, faults=(fault,)).serving() as proxy:
        session = running.open_session()
        url = session["bedrock_endpoint_url"].replace(running.url, proxy.url)

        def call() -> dict[str, Any]:
            asked = {"modelId": MODEL, "messages": HELLO, "toolConfig": TOOLS}
            settings = {"retries": {"total_max_attempts": 5, "mode": mode}}
            with client({"bedrock_endpoint_url": url}, **settings) as made:
                if stream:
                    return gather(made.converse_stream(**asked)["stream"])
                answer: dict[str, Any] = made.converse(**asked)
                return answer

        asking = in_thread(call)
        until(lambda: proxy.counts[fault] >= 1)
        proxy.rate = 0.0
        answer = asking()
        assert answer["output"]["message"]["content"][2]["toolUse"]["input"] == {"city": "Paris"}
        assert len(engine.requests) == 1
        one_row(running, session, SCRIPT[:1])


def test_a_retry_that_says_so_behind_its_deadline():
    """After an answer with a date boto3 puts a `ttl` before the attempt."""
    engine = ScriptedEngine([ids("four"), ids("five")])
    with gateway(engine) as running:
        url = f"{running.open_session()['bedrock_endpoint_url']}/model/{MODEL}/converse"

        def said(attempt: str) -> str:
            return text(httpx.post(url, json={"messages": HELLO}, headers={"amz-sdk-request": attempt}).json())

        assert said("attempt=1; max=3") == "four"
        assert said("ttl=20260101T000000Z; attempt=2; max=3") == "four"
        assert said("ttl=20260101T000000Z; attempt=1; max=3") == "five"


# Strands


def weather() -> tuple[Any, list[str]]:
    asked: list[str] = []

    @tool
    def get_weather(city: str, unit: str = "celsius") -> str:
        """The weather in a city.

        Args:
            city: where
            unit: of the temperature
        """
        asked.append(city)
        return "sunny" if city == "Paris" else "warm"

    return get_weather, asked


@contextmanager
def strands(session: dict[str, Any], stream: bool, *tools: Any, **settings: Any) -> Iterator[Agent]:
    model = BedrockModel(
        endpoint_url=session["bedrock_endpoint_url"], streaming=stream, **{"model_id": CLAUDE} | settings
    )
    try:
        yield Agent(
            model=model,
            tools=list(tools),
            callback_handler=None,
            system_prompt="be short",
            conversation_manager=NullConversationManager(),
            retry_strategy=None,
        )
    finally:
        model.client.close()


@pytest.mark.parametrize("model_id", [CLAUDE, ARN, MODEL])
@pytest.mark.parametrize("stream", [True, False])
def test_a_strands_agent(stream: bool, model_id: str):
    """Claude's names make it drop reasoning without a signature; others echo it."""
    get_weather, asked = weather()
    engine = ScriptedEngine(SCRIPT)
    with gateway(engine) as running:
        session = running.open_session(model=MODEL)
        with strands(session, stream, get_weather, model_id=model_id, max_tokens=200) as agent:
            result = agent("what is the weather in Paris and in Rome?")
        assert str(result).strip() == "it is sunny in Paris, warm in Rome"
        assert asked == ["Paris", "Rome"]
        assert result.stop_reason == "end_turn"
        assert [request.sampling.max_tokens for request in engine.requests] == [200] * 3
        usage = result.metrics.accumulated_usage
        assert usage["outputTokens"] == sum(map(len, SCRIPT))
        one_row(running, session, SCRIPT)


@pytest.mark.parametrize("stream", [True, False])
def test_arguments_that_are_no_object(stream: bool):
    get_weather, asked = weather()
    script = [ids('<tool_call>\n{"name": "get_weather", "arguments": "Paris"}\n</tool_call>'), ids("so be it")]
    with gateway(script) as running:
        session = running.open_session(model=MODEL)
        with strands(session, stream, get_weather) as agent:
            assert str(agent("what is the weather in Paris?")).strip() == "so be it"
        assert asked == []
        one_row(running, session, script)


@pytest.mark.parametrize("stream", [True, False])
def test_strands_raises_what_it_raises_in_production(stream: bool):
    cases: list[tuple[Any, dict[str, Any], type[Exception]]] = [
        (ids("four"), {"context_limit": 10}, ContextWindowOverflowException),
        (ScriptedLine([], fails=EngineError("too bad", status=429)), {}, ModelThrottledException),
        (ScriptedLine(ids("four", end=False), finish="length"), {}, MaxTokensReachedException),
        (ScriptedLine([], fails=EngineError("too bad", status=502)), {}, ClientError),
    ]
    for line, settings, error in cases:
        with gateway([line] * 9) as running:
            session = running.open_session(model=MODEL, **settings)
            with strands(session, stream) as agent, pytest.raises(error):
                agent("what is two plus two?")
