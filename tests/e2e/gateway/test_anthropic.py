"""The real Anthropic SDK against a gateway, and Strands' model over it: answers, streams, counts, errors."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from pydantic import BaseModel

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.call.core import GatewayLimits
from support.gateway import KEEPS_ALIVE, MODEL, WEATHER, Control, Gated, call_text, client, gateway, ids, in_thread

HELLO = [{"role": "user", "content": "what is two plus two?"}]
FUNCTION = WEATHER["function"]
TOOL = {"name": "get_weather", "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
SCRIPT = [
    ids("<think>\nParis first\n</think>\n\nlet me see\n" + call_text("get_weather", city="Paris")),
    ids("<think>\nnow Rome\n</think>\n\n" + call_text("get_weather", unit="celsius", city="Rome")),
    ids("<think>\ndone\n</think>\n\nit is sunny in Paris, warm in Rome"),
]

_clients: list[anthropic.Anthropic] = []


@pytest.fixture(autouse=True)
def closed_clients() -> Iterator[None]:
    yield
    while _clients:
        _clients.pop().close()


def asker(session: dict[str, Any], **settings: Any) -> anthropic.Anthropic:
    known = {"base_url": session["anthropic_base_url"], "api_key": "EMPTY", "max_retries": 0, "timeout": 30}
    _clients.append(anthropic.Anthropic(**known | settings))
    return _clients[-1]


def ask(session: dict[str, Any], **more: Any) -> Any:
    return asker(session).messages.create(**{"model": MODEL, "max_tokens": 200, "messages": HELLO} | more)


def streamed(session: dict[str, Any], **more: Any) -> Any:
    """The final message of the SDK's streaming helper."""
    with asker(session).messages.stream(**{"model": MODEL, "max_tokens": 200, "messages": HELLO} | more) as stream:
        return stream.get_final_message()


def one_row(running: Any, session: dict[str, Any], turns: int = 3) -> None:
    """What the policy sampled, all of it, in one row."""
    known = running.trajectories(session["session_id"])
    assert (known.fidelity.turns, known.fidelity.rows, known.fidelity.bridges) == (turns, 1, turns - 1)
    assert known.fidelity.trained == known.fidelity.sampled == sum(len(said) for said in SCRIPT[:turns])
    (row,) = known.rows
    trained = [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    assert trained == [token for said in SCRIPT[:turns] for token in said]


# Answers


@pytest.mark.parametrize("how", [ask, streamed])
def test_a_message(how: Any):
    said = "<think>\nhm\n</think>\n\nthe answer is four"
    engine = ScriptedEngine([ids(said)])
    with gateway(engine) as running:
        session = running.open_session()
        message = how(session, system="be short")
        thought, text = message.content
        assert (thought.type, thought.thinking, bool(thought.signature)) == ("thinking", "hm", True)
        assert (text.type, text.text) == ("text", "the answer is four")
        assert (message.role, message.type, message.model) == ("assistant", "message", MODEL)
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        assert message.usage.input_tokens == len(engine.requests[0].prompt)
        assert message.usage.output_tokens == len(ids(said))
        assert running.trajectories(session["session_id"]).fidelity.trained == len(ids(said))


def test_the_stream_helper_tells_pieces_as_they_are_sampled():
    said = "the weather in Paris is sunny and warm"
    engine = Gated(ScriptedEngine([ids(said)]))
    with gateway(engine) as running:
        engine.let(3)
        settings: dict[str, Any] = {"model": MODEL, "max_tokens": 50, "messages": HELLO}
        with asker(running.open_session()).messages.stream(**settings) as stream:
            pieces = stream.text_stream
            text = next(pieces)  # the engine holds the rest back until we have seen this
            assert said.startswith(text)
            assert len(text) < len(said)
            engine.let(len(ids(said)))
            assert text + "".join(pieces) == said
            assert stream.get_final_text() == said


def test_the_raw_events_of_a_stream():
    with gateway([SCRIPT[0]]) as running:
        events = list(ask(running.open_session(), tools=[TOOL], stream=True))
        kinds = [event.type for event in events]
        assert kinds[0] == "message_start"
        assert kinds[-2:] == ["message_delta", "message_stop"]
        starts = [event for event in events if event.type == "content_block_start"]
        assert [(event.index, event.content_block.type) for event in starts] == [
            (0, "thinking"), (1, "text"), (2, "tool_use")
        ]  # fmt: skip
        open_block = None
        for event in events[1:-2]:
            if event.type == "content_block_start":
                assert open_block is None
                open_block = event.index
            else:
                assert event.index == open_block
                open_block = None if event.type == "content_block_stop" else open_block
        assert open_block is None
        assert events[0].message.usage.input_tokens == len(running.core.engine.requests[0].prompt)
        assert events[-2].delta.stop_reason == "tool_use"
        assert events[-2].usage.output_tokens == len(SCRIPT[0])


def test_the_async_client():
    async def run(session: dict[str, Any]) -> tuple[str, str, int]:
        settings: dict[str, Any] = {"model": MODEL, "max_tokens": 50, "messages": HELLO}
        async with anthropic.AsyncAnthropic(
            base_url=session["anthropic_base_url"], api_key="EMPTY", max_retries=0
        ) as speaking:
            whole = await speaking.messages.create(**settings)
            async with speaking.messages.stream(**settings) as stream:
                text = "".join([piece async for piece in stream.text_stream])
            known = await speaking.messages.count_tokens(model=MODEL, messages=HELLO)
        return whole.content[0].text, text, known.input_tokens

    with gateway([ids("four"), ids("it is four")]) as running:
        whole, text, known = asyncio.run(run(running.open_session()))
        assert (whole, text, known) == ("four", "it is four", len(running.core.engine.requests[0].prompt))


@pytest.mark.parametrize("how", [ask, streamed])
def test_tools_and_their_results_over_three_turns(how: Any):
    with gateway(SCRIPT) as running:
        session = running.open_session()
        history: list[Any] = [{"role": "user", "content": "what is the weather in Paris and Rome?"}]
        asked = []
        for _ in SCRIPT:
            message = how(session, messages=history, tools=[TOOL])
            history.append({"role": "assistant", "content": message.content})
            calls = [block for block in message.content if block.type == "tool_use"]
            asked += [call.input["city"] for call in calls]
            assert message.stop_reason == ("tool_use" if calls else "end_turn")
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls]
            history.append({"role": "user", "content": results})
        assert asked == ["Paris", "Rome"]
        one_row(running, session)
        last = Control(running).turns(session)[-1]
        assert message.usage.cache_read_input_tokens == last["kept_tokens"] > 0
        assert message.usage.input_tokens + last["kept_tokens"] == last["prompt_length"]


def dropped_thinking(content: list[Any]) -> list[Any]:
    return [block for block in content if block["type"] != "thinking"]


def redacted_thinking(content: list[Any]) -> list[Any]:
    return [{"type": "redacted_thinking", "data": "x"} if b["type"] == "thinking" else b for b in content]


def other_ids(content: list[Any]) -> list[Any]:
    return [block | {"id": "toolu_1"} if block["type"] == "tool_use" else block for block in content]


def cached(content: list[Any]) -> list[Any]:
    return [*content[:-1], content[-1] | {"cache_control": {"type": "ephemeral"}}]


def reordered(content: list[Any]) -> list[Any]:
    return [b | {"input": dict(reversed(b["input"].items()))} if b["type"] == "tool_use" else b for b in content]


@pytest.mark.parametrize("change", [dropped_thinking, redacted_thinking, other_ids, cached, reordered])
def test_a_client_that_changes_what_it_echoes(change: Any):
    with gateway(SCRIPT) as running:
        session = running.open_session()
        history: list[Any] = [{"role": "user", "content": "what is the weather in Paris and Rome?"}]
        for _ in SCRIPT:
            message = ask(session, messages=history, tools=[TOOL])
            content = change([block.to_dict() for block in message.content])
            calls = [block["id"] for block in content if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call, "content": "sunny"} for call in calls]
            history += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
        one_row(running, session)


@pytest.mark.parametrize("how", [ask, streamed])
def test_a_call_whose_arguments_are_no_object_is_passed_on_and_known_again(how: Any):
    odd = '<tool_call>\n{"name": "get_weather", "arguments": ["Paris"]}\n</tool_call>'
    with gateway([ids(odd), ids("sunny")]) as running:
        session = running.open_session()
        message = how(session, tools=[TOOL])
        (call,) = message.content
        assert (call.name, call.input, message.stop_reason) == (
            "get_weather", {"__arguments__": '["Paris"]'}, "tool_use"
        )  # fmt: skip
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "no such argument", "is_error": True}
        history = [*HELLO, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        assert how(session, messages=history, tools=[TOOL]).content[0].text == "sunny"
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.rows, known.bridges, known.trained) == (1, 1, known.sampled)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"type": "any"}, 'get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'),
        ({"type": "tool", "name": "get_weather"}, '{"city": "Paris"}}\n</tool_call>'),
    ],
)
def test_tool_choice_begins_the_call_for_the_model(choice: Any, said: str):
    with gateway([ids(said)]) as running:
        (call,) = ask(running.open_session(), tools=[TOOL], tool_choice=choice).content
        assert (call.name, call.input) == ("get_weather", {"city": "Paris"})


def test_tool_choice_none_makes_calls_text():
    with gateway([ids(call_text("get_weather", city="Paris"))]) as running:
        (text,) = ask(running.open_session(), tools=[TOOL], tool_choice={"type": "none"}).content
        assert "get_weather" in text.text


@pytest.mark.parametrize("how", [ask, streamed])
def test_why_it_ended(how: Any):
    with gateway([ids("one two three"), ScriptedLine(ids("first END second", end=False)), ids("")]) as running:
        session = running.open_session()
        cut = how(session, max_tokens=2)
        assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
        stopped = how(session, stop_sequences=["STOP", "END"])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "END")
        assert stopped.content[0].text.strip() == "first"
        silent = how(session)
        assert (silent.stop_reason, silent.content[0].text) == ("end_turn", "")


@pytest.mark.parametrize(
    ("thinking", "ends"),
    [
        ({"type": "disabled"}, "<think>\n\n</think>\n\n"),
        ({"type": "enabled", "budget_tokens": 1024}, "assistant\n"),
        ({"type": "adaptive"}, "assistant\n"),
    ],
)
def test_thinking_is_the_templates_to_switch(thinking: Any, ends: str):
    with gateway([ids("four")], renderer="qwen3") as running:
        ask(running.open_session(), thinking=thinking)
        (request,) = running.core.engine.requests
        assert running.core.renderer.tokenizer.decode(request.prompt.tolist()).endswith(ends)


def test_settings_reach_the_engine():
    class Weather(BaseModel):
        city: str

    engine = ScriptedEngine(lambda request: ids('{"city": "Paris"}'))
    with gateway(engine) as running:
        session = running.open_session()
        ask(
            session,
            stop_sequences=["x"],
            metadata={"user_id": "u"},
            service_tier="auto",
            extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 7},
        )
        settings: dict[str, Any] = {"model": MODEL, "max_tokens": 50, "messages": HELLO}
        parsed = asker(session).messages.parse(output_format=Weather, **settings)
        assert parsed.parsed_output == Weather(city="Paris")
    first, second = (request.sampling for request in engine.requests)
    assert (first.temperature, first.top_p, first.top_k, first.max_tokens, first.seed) == (0.5, 0.9, 3, 200, 7)
    assert first.stop == ("x",)
    assert second.json_schema["properties"]["city"]["type"] == "string"


def test_the_same_request_again_gets_the_recorded_answer():
    with gateway([ids("<think>\nhm\n</think>\n\nfour"), ids("five")]) as running:
        session = running.open_session()
        first = streamed(session)
        again = {"x-stainless-retry-count": "1"}
        assert streamed(session, extra_headers=again).to_dict() == first.to_dict()
        assert running.trajectories(session["session_id"]).fidelity.turns == 1


# Counting


def count(session: dict[str, Any], **more: Any) -> int:
    counted = asker(session).messages.count_tokens(**{"model": MODEL, "messages": HELLO} | more)
    return int(counted.input_tokens)


def test_counting_counts_what_the_call_then_has():
    engine = ScriptedEngine(SCRIPT)
    with gateway(engine) as running:
        session = running.open_session()
        history: list[Any] = [{"role": "user", "content": "what is the weather in Paris and Rome?"}]
        for turn in range(len(SCRIPT)):
            settings = {"messages": history, "tools": [TOOL], "system": "be short"}
            counted = count(session, **settings)
            assert len(engine.requests) == turn  # nothing was sampled
            assert running.trajectories(session["session_id"]).fidelity.turns == turn
            message = ask(session, **settings)
            assert counted == len(engine.requests[turn].prompt)
            content = [block for block in message.content if block.type != "thinking"]  # only the record has it
            calls = [block.id for block in content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call, "content": "sunny"} for call in calls]
            history += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
        one_row(running, session)


def test_counting_knows_no_limit():
    with gateway(ScriptedEngine([], context_length=64)) as running:
        long = [{"role": "user", "content": "what is two plus two? " * 20}]
        for session in (running.open_session(), running.open_session(context_limit=8)):
            assert count(session, messages=long) > 64
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
                ask(session, messages=long)


def test_a_large_prompt_is_counted_off_the_loop(monkeypatch: pytest.MonkeyPatch):
    threads = []
    with gateway(ScriptedEngine([], context_length=None)) as running:
        known = running.core.planner.count

        def watched(*args: Any) -> int:
            threads.append(threading.current_thread().name)
            return known(*args)

        monkeypatch.setattr(running.core.planner, "count", watched)
        session = running.open_session()
        assert count(session, messages=[{"role": "user", "content": "large " * 50_000}]) > 50_000
        assert count(session) < 50
    assert threads[0] != "gateway"
    assert threads[1] == "gateway"


def test_a_forced_call_and_the_end_of_a_reply_count():
    with gateway([]) as running:
        session = running.open_session()
        plain = count(session, tools=[TOOL])
        assert count(session, tools=[TOOL], tool_choice={"type": "any"}) > plain
        assert count(session, messages=[*HELLO, {"role": "assistant", "content": "four"}]) > count(session)


def test_counting_is_refused_in_the_same_shape():
    with gateway([]) as running:
        session = running.open_session()
        with pytest.raises(anthropic.NotFoundError) as unknown:
            count(session, model="claude-9")
        assert (unknown.value.type, unknown.value.error_code) == ("not_found_error", "model_not_found")
        with pytest.raises(anthropic.BadRequestError, match="type is missing"):
            count(session, messages=[{"role": "user", "content": [{}]}])
        response = httpx.get(f"{session['anthropic_base_url']}/v1/messages/count_tokens")
        assert (response.status_code, response.headers["Allow"]) == (405, "POST")
        assert response.json()["type"] == "error"


# Errors, as the SDK's exceptions


def test_errors_are_the_sdks_classes():
    with gateway([ids("four")], limits=GatewayLimits(max_body_bytes=5000)) as running:
        session = running.open_session()
        with pytest.raises(anthropic.NotFoundError, match="use one of: scripted") as unknown:
            ask(session, model="claude-9")
        assert (unknown.value.type, unknown.value.error_code) == ("not_found_error", "model_not_found")
        assert unknown.value.request_id == unknown.value.body["request_id"]
        with pytest.raises(anthropic.AuthenticationError) as wrong:
            asker({"anthropic_base_url": session["anthropic_base_url"] + "x"}).messages.create(
                model=MODEL, max_tokens=5, messages=HELLO
            )
        assert wrong.value.type == "authentication_error"
        with pytest.raises(anthropic.BadRequestError, match="temperature is -1") as bad:
            ask(session, extra_body={"temperature": -1})
        assert bad.value.type == "invalid_request_error"
        with pytest.raises(anthropic.BadRequestError, match="prefill"):
            ask(session, messages=[*HELLO, {"role": "assistant", "content": "The"}])
        with pytest.raises(anthropic.RequestTooLargeError) as large:
            ask(session, messages=[{"role": "user", "content": "x" * 6000}])
        assert large.value.type == "request_too_large"
        with pytest.raises(anthropic.NotFoundError):
            asker(session).messages.batches.list()
        response = httpx.post(f"{session['anthropic_base_url']}/v1/messages", json={"messages": HELLO})
        assert response.json()["error"]["message"].startswith("max_tokens is missing")
        response = httpx.post(f"{session['anthropic_base_url']}/v1/messages", content=b"{")
        assert (response.status_code, response.json()["type"]) == (400, "error")
        assert running.trajectories(session["session_id"]).fidelity.turns == 0


@pytest.mark.parametrize("how", [ask, streamed])
@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (502, anthropic.InternalServerError, "api_error"),
        (503, anthropic.InternalServerError, "overloaded_error"),
    ],
)
def test_an_engines_error_keeps_its_status(status: int, error: Any, kind: str, how: Any):
    with gateway([ScriptedLine([], fails=EngineError("the engine says no", status=status, retry_after=7))]) as running:
        session = running.open_session()
        with pytest.raises(error, match="the engine says no") as raised:
            how(session)
        assert (raised.value.status_code, raised.value.type) == (status, kind)
        assert raised.value.response.headers["Retry-After"] == "7"
        assert running.trajectories(session["session_id"]).fidelity.turns == 0


def test_too_many_calls_are_told_to_come_back():
    engine = Gated(ScriptedEngine([ids("four")]))
    with gateway(engine, limits=GatewayLimits(max_in_flight=1)) as running:
        session = running.open_session()
        first = in_thread(lambda: ask(session))
        engine.wait(engine.asked)
        with pytest.raises(anthropic.RateLimitError):
            ask(session, messages=[{"role": "user", "content": "another"}])
        engine.let()
        assert first().content[0].text == "four"


def test_the_sdk_waits_and_comes_back():
    engine = ScriptedEngine([ScriptedLine([], fails=EngineError("busy", status=529, retry_after=0.01)), ids("four")])
    with gateway(engine) as running:
        patient = asker(running.open_session(), max_retries=1)
        message = patient.messages.create(model=MODEL, max_tokens=5, messages=HELLO)
        assert (message.content[0].text, len(engine.requests)) == ("four", 2)


def test_an_engine_that_dies_in_the_middle_of_a_stream():
    said = ids("the answer is four", end=False)
    with gateway([ScriptedLine(said, fails=EngineError("the engine died", sampled_any=True))]) as running:
        session = running.open_session()
        pieces: list[str] = []
        with (
            asker(session).messages.stream(model=MODEL, max_tokens=50, messages=HELLO) as stream,
            pytest.raises(anthropic.APIStatusError, match="the engine died") as raised,
        ):
            pieces.extend(stream.text_stream)
        assert "".join(pieces) == "the answer is four"
        assert raised.value.type == "api_error"
        assert running.trajectories(session["session_id"]).fidelity.masked == {"engine_error": len(said)}


def test_a_silent_engine_does_not_look_like_a_dead_one():
    engine = Gated(ScriptedEngine([ids("four")]))
    with gateway(engine, limits=KEEPS_ALIVE) as running:
        speaking = asker(running.open_session())
        with speaking.messages.with_streaming_response.create(
            model=MODEL, max_tokens=5, messages=HELLO, stream=True
        ) as response:
            lines = response.iter_lines()
            assert [next(lines) for _ in range(3)] == ["event: ping", 'data: {"type":"ping"}', ""]
            engine.let(len(ids("four")))
            assert list(lines)[-2] == 'data: {"type":"message_stop"}'


def test_pings_are_nothing_to_the_sdk():
    engine = Gated(ScriptedEngine([ids("four")]))
    with (
        gateway(engine, limits=KEEPS_ALIVE) as running,
        asker(running.open_session()).messages.stream(model=MODEL, max_tokens=5, messages=HELLO) as stream,
    ):
        engine.let(len(ids("four")))  # the stream began with a ping
        assert stream.get_final_text() == "four"


def test_models():
    with gateway(ScriptedEngine([], models=("a", "b"), context_length=512)) as running:
        session = running.open_session()
        models = list(asker(session).models.list())
        assert [(model.id, model.type, model.max_input_tokens) for model in models] == [
            ("a", "model", 512), ("b", "model", 512)
        ]  # fmt: skip
        assert models[0].created_at.year > 2000
        assert asker(session).models.retrieve("b") == models[1]
        assert [model.id for model in client(session).models.list()] == ["a", "b"]  # OpenAI's is as it was
        with pytest.raises(anthropic.AuthenticationError) as wrong:
            asker({"anthropic_base_url": session["anthropic_base_url"] + "x"}).models.list()
        assert (wrong.value.type, wrong.value.body["type"]) == ("authentication_error", "error")


# Agents


def told(agent: Any, text: str) -> Any:
    """What an agent of Strands makes of a text; its model's client is closed on the loop it was used on."""

    async def run() -> Any:
        try:
            return await agent.invoke_async(text)
        finally:
            await agent.model.client.close()

    return asyncio.run(run())


def test_a_strands_agent():
    from strands import Agent, tool
    from strands.models.anthropic import AnthropicModel

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

    engine = ScriptedEngine(SCRIPT)
    with gateway(engine) as running:
        session = running.open_session()
        model = AnthropicModel(
            client_args={"base_url": session["anthropic_base_url"], "api_key": "EMPTY"}, model_id=MODEL, max_tokens=200
        )
        agent = Agent(model=model, tools=[get_weather], callback_handler=None, system_prompt="be short")
        result = told(agent, "what is the weather in Paris and in Rome?")
        assert str(result).strip() == "it is sunny in Paris, warm in Rome"
        assert asked == ["Paris", "Rome"]
        assert [request.sampling.max_tokens for request in engine.requests] == [200] * 3
        one_row(running, session)


def test_strands_knows_an_overflow_and_a_throttle():
    from strands import Agent
    from strands.models.anthropic import AnthropicModel
    from strands.types.exceptions import ContextWindowOverflowException, ModelThrottledException

    def agent(session: dict[str, Any]) -> Agent:
        args = {"base_url": session["anthropic_base_url"], "api_key": "EMPTY", "max_retries": 0}
        model = AnthropicModel(client_args=args, model_id=MODEL, max_tokens=20)
        return Agent(model=model, callback_handler=None, conversation_manager=None, retry_strategy=None)

    busy = ScriptedLine([], fails=EngineError("busy", status=429))
    with gateway(ScriptedEngine([busy], context_length=64)) as running:
        with pytest.raises(ContextWindowOverflowException):
            told(agent(running.open_session()), "what is two plus two? " * 30)
        with pytest.raises(ModelThrottledException):
            told(agent(running.open_session()), "hi")


AGENT = """
import anthropic

with anthropic.Anthropic() as client:
    message = client.messages.create(
        model="scripted", max_tokens=50, messages=[{"role": "user", "content": "what is two plus two?"}]
    )
print(message.content[0].text)
"""


def test_an_agent_that_builds_its_client_without_arguments():
    with gateway([ids("it is four")]) as running:
        session = running.open_session()
        env = os.environ | {"ANTHROPIC_BASE_URL": session["anthropic_base_url"], "ANTHROPIC_API_KEY": "EMPTY"}
        out = subprocess.run([sys.executable, "-c", AGENT], env=env, capture_output=True, text=True, timeout=60)
        assert out.stdout.strip() == "it is four", out.stderr
        assert running.trajectories(session["session_id"]).fidelity.rows == 1


# Bad input


@pytest.mark.parametrize("path", ["v1/messages", "v1/messages/count_tokens"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"messages": NaN}',
        b'{"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}',
        b'{"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "tools": [{"name": "\\ud800"}], "x": {}}',
        b'{"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "thinking": [[]]}',
        json.dumps({"max_tokens": 5, "messages": HELLO, "system": "\ud800\0"}).encode(),
    ],
)
def test_no_input_is_too_much(path: str, body: bytes):
    with gateway(ScriptedEngine(lambda request: ids("four"))) as running:
        session = running.open_session()
        response = httpx.post(f"{session['anthropic_base_url']}/{path}", content=body)
        assert response.status_code in (200, 400), response.text
        assert response.json()["type"] == "error" if response.status_code == 400 else response.json()
