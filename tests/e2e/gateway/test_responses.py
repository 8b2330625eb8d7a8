"""The real OpenAI SDK's `responses` against a gateway, and the OpenAI Agents SDK over both of OpenAI's APIs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine, logprob_of
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.gateway import KEEPS_ALIVE, MODEL, WEATHER, Control, Gated, call_text, client, gateway, ids

FLAT = {"type": "function", **WEATHER["function"]}
SCRIPT = [
    ids("<think>\nParis first\n</think>\n\nlet me see\n" + call_text("get_weather", city="Paris")),
    ids("<think>\nnow Rome\n</think>\n\n" + call_text("get_weather", unit="celsius", city="Rome")),
    ids("<think>\ndone\n</think>\n\nit is sunny in Paris, warm in Rome"),
]
QUESTION = "what is the weather in Paris and in Rome?"


def respond(session: dict[str, Any], given: Any = "what is two plus two?", **more: Any) -> Any:
    return client(session).responses.create(**{"model": MODEL, "input": given} | more)


def one_row(running: Gateway, session: dict[str, Any], said: Any = SCRIPT) -> None:
    """What the policy sampled, all of it, in one row."""
    known = running.trajectories(session["session_id"])
    turns = len(said)
    assert (known.fidelity.turns, known.fidelity.rows, known.fidelity.bridges) == (turns, 1, turns - 1)
    assert known.fidelity.trained == known.fidelity.sampled
    (row,) = known.rows
    trained = [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    assert trained == [token for line in said for token in line]


def result(call: Any, output: str = "sunny") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


def calls_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


# Answers


def test_a_response():
    engine = ScriptedEngine([ids("<think>\nhm\n</think>\n\nthe answer is four")])
    with gateway(engine) as running:
        session = running.open_session()
        response = respond(
            session, temperature=0.5, max_output_tokens=100, metadata={"a": "b"}, instructions="be short"
        )
        assert response.output_text == "the answer is four"
        thought, message = response.output
        assert (thought.type, thought.content[0].text, message.type) == ("reasoning", "hm", "message")
        assert (response.status, response.model, response.metadata) == ("completed", MODEL, {"a": "b"})
        usage, sampled = response.usage, len(ids("<think>\nhm\n</think>\n\nthe answer is four"))
        assert (usage.input_tokens, usage.output_tokens) == (len(engine.requests[0].prompt), sampled)
        assert 0 < usage.output_tokens_details.reasoning_tokens < sampled
        assert (engine.requests[0].sampling.temperature, engine.requests[0].sampling.max_tokens) == (0.5, 100)
        response.model_dump_json(warnings="error")


def test_a_streamed_response_arrives_as_it_is_sampled():
    engine = Gated(ScriptedEngine([ids("<think>\nhm\n</think>\n\nthe answer is four")]))
    with gateway(engine) as running:
        stream = iter(respond(running.open_session(), stream=True, store=False))
        engine.let(12)
        said = []
        while not said or said[-1].type != "response.output_text.delta":
            said.append(next(stream))
        assert engine.ended.acquire(blocking=False) is False  # the rest is not even sampled
        engine.let(100)
        said += list(stream)
    kinds = [event.type for event in said]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.completed") == 1
    assert [event.sequence_number for event in said] == list(range(len(said)))
    assert "".join(event.delta for event in said if event.type == "response.output_text.delta") == "the answer is four"
    assert "".join(event.delta for event in said if event.type == "response.reasoning_text.delta") == "hm"
    assert said[-1].response.output_text == "the answer is four"


class Weather(BaseModel):
    city: str
    degrees: int


def test_structured_output():
    said = Weather(city="Paris", degrees=21)
    engine = ScriptedEngine([ids(said.model_dump_json())] * 2)
    with gateway(engine) as running:
        session = running.open_session()
        parsed = client(session).responses.parse(model=MODEL, input="the weather?", text_format=Weather)
        assert parsed.output_parsed == said
        with client(session).responses.stream(model=MODEL, input="and now?", text_format=Weather) as stream:
            assert stream.get_final_response().output_parsed == said
        schemas = [request.sampling.json_schema for request in engine.requests]
        assert [set(schema["properties"]) for schema in schemas] == [{"city", "degrees"}] * 2


def test_the_async_client():
    async def run(session: dict[str, Any]) -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=session["base_url"], api_key="EMPTY", max_retries=0) as asker:
            whole = await asker.responses.create(model=MODEL, input="hi")
            async with asker.responses.stream(model=MODEL, input="hi", previous_response_id=whole.id) as stream:
                final = await stream.get_final_response()
        return whole.output_text, final.output_text

    with gateway([ids("four"), ids("it is four")]) as running:
        session = running.open_session()
        assert asyncio.run(run(session)) == ("four", "it is four")
        one_row(running, session, [ids("four"), ids("it is four")])


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(stream: bool):
    with gateway([ids("the answer is four")]) as running:
        wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
        response = respond(running.open_session(), stream=stream, **wanted)
        if stream:
            *_, last = response
            response = last.response
        known = response.output[0].content[0].logprobs
        assert [entry.logprob for entry in known] == pytest.approx([logprob_of(i) for i in ids("the answer is four")])
        assert "".join(entry.token for entry in known) == "the answer is four<|im_end|>"


def test_tool_choice():
    engine = ScriptedEngine([ids('{"city": "Paris"}}\n</tool_call>')])
    with gateway(engine) as running:
        choice = {"type": "function", "name": "get_weather"}
        (call,) = calls_of(respond(running.open_session(), tools=[FLAT], tool_choice=choice))
        assert json.loads(call.arguments) == {"city": "Paris"}


# Histories


def talk(session: dict[str, Any], echo: Any, stream: bool = False) -> str:
    """Three turns with tools; `echo` makes of a response the items that go into the history."""
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        response = respond(session, history, tools=[FLAT], stream=stream)
        if stream:
            *_, last = response
            response = last.response
        calls = calls_of(response)
        history += echo(response, [result(call) for call in calls])
        if not calls:
            return str(response.output_text)


def everything(response: Any, results: list[Any]) -> list[Any]:
    return [*(item.to_dict() for item in response.output), *results]


def no_reasoning(response: Any, results: list[Any]) -> list[Any]:
    return [item for item in everything(response, results) if item["type"] != "reasoning"]


def no_ids(response: Any, results: list[Any]) -> list[Any]:
    return [{k: v for k, v in item.items() if k not in ("id", "status")} for item in everything(response, results)]


def call_by_call(response: Any, results: list[Any]) -> list[Any]:
    """As a loop over the output leaves it that handles each call where it finds it."""
    answers = {item["call_id"]: item for item in results}
    items: list[Any] = []
    for item in response.output:
        items += [item.to_dict(), *([answers[item.call_id]] if item.type == "function_call" else [])]
    return items


def references(response: Any, results: list[Any]) -> list[Any]:
    return [*({"type": "item_reference", "id": item.id} for item in response.output), *results]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [everything, no_reasoning, no_ids, call_by_call, references])
def test_a_client_that_sends_the_history(echo: Any, stream: bool):
    with gateway(SCRIPT) as running:
        session = running.open_session()
        assert talk(session, echo, stream) == "it is sunny in Paris, warm in Rome"
        one_row(running, session)


def test_parallel_calls_answered_one_by_one():
    both = call_text("get_weather", city="Paris") + "\n" + call_text("get_weather", city="Rome")
    said = [ids(both), ids("sunny")]
    with gateway(said) as running:
        session = running.open_session()
        assert talk(session, call_by_call) == "sunny"
        one_row(running, session, said)


def test_two_turns_with_nobody_in_between():
    said = [ids("let me see"), SCRIPT[1], ids("warm")]
    with gateway(said) as running:
        session = running.open_session()
        history: list[Any] = [{"role": "user", "content": QUESTION}]
        for _ in said:
            response = respond(session, history, tools=[FLAT])
            history += everything(response, [result(call) for call in calls_of(response)])
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.rows, known.renders, known.bridges) == (2, 1, 1)
        assert known.trained == known.sampled


# By id


def test_a_call_goes_on_from_a_response():
    with gateway(SCRIPT) as running:
        session = running.open_session()
        response = respond(session, QUESTION, tools=[FLAT], instructions="be short")
        while calls := calls_of(response):
            results = [result(call) for call in calls]
            response = respond(
                session, results, tools=[FLAT], instructions="be short", previous_response_id=response.id
            )
        assert response.output_text == "it is sunny in Paris, warm in Rome"
        one_row(running, session)


def test_one_response_may_be_gone_on_from_twice():
    with gateway([ids("four"), ids("yes"), ids("no")]) as running:
        session = running.open_session()
        first = respond(session)
        for question in ("sure?", "really?"):
            respond(session, question, previous_response_id=first.id)
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.rows, known.bridges, known.trained) == (2, 2, known.sampled)


def test_instructions_are_of_one_call():
    engine = ScriptedEngine([ids("four"), ids("five"), ids("six")])
    with gateway(engine) as running:
        session = running.open_session()
        first = respond(session, "two plus two?", instructions="be short")
        second = respond(session, "and one more?", previous_response_id=first.id)
        respond(session, "and one more?", previous_response_id=second.id, instructions="be long")
        prompts = [running.core.renderer.tokenizer.decode(request.prompt) for request in engine.requests]
        assert ["be short" in prompt for prompt in prompts] == [True, False, False]
        assert ["be long" in prompt for prompt in prompts] == [False, False, True]
        assert all("two plus two?" in prompt for prompt in prompts)
        assert prompts[2].count("and one more?") == 2


def test_a_system_message_of_the_input_is_part_of_the_conversation():
    engine = ScriptedEngine([ids("four"), ids("five"), ids("six"), ids("seven")])
    with gateway(engine) as running:
        session = running.open_session()
        question = {"role": "user", "content": "two plus two?"}
        first = respond(session, [{"role": "system", "content": "be short"}, question])
        history = [question, *everything(first, []), {"role": "user", "content": "and one more?"}]
        second = respond(session, history, instructions="be short")  # the same prompt, and not the same conversation
        for response in (first, second):
            respond(session, "and now?", previous_response_id=response.id)
        prompts = [running.core.renderer.tokenizer.decode(request.prompt) for request in engine.requests]
        assert ["be short" in prompt for prompt in prompts] == [True, True, True, False]


def test_responses_that_are_not_known():
    with gateway([ids("four"), ids("five"), ids("six")]) as running:
        session, other = running.open_session(), running.open_session()
        stored, unstored = respond(other), respond(session, store=False)
        for name in (stored.id, unstored.id, "resp_1"):
            with pytest.raises(openai.BadRequestError, match="not found") as raised:
                respond(session, previous_response_id=name)
            assert (raised.value.code, raised.value.param) == ("previous_response_not_found", "previous_response_id")
            assert raised.value.type == "invalid_request_error"
        assert running.trajectories(session["session_id"]).fidelity.turns == 1
        assert respond(other, previous_response_id=stored.id).output_text == "six"


def test_a_response_that_failed_is_not_there():
    failing = ScriptedLine(ids("fo", end=False), fails=EngineError("the engine died", sampled_any=True))
    with gateway([failing, ids("four")]) as running:
        session = running.open_session()
        name = ""
        with pytest.raises(openai.APIError, match="the engine died"):  # noqa: PT012
            for event in respond(session, stream=True):
                name = event.response.id if event.type == "response.created" else name
        with pytest.raises(openai.BadRequestError, match="not found"):
            respond(session, previous_response_id=name)


@pytest.mark.parametrize("mixed", [False, True])
def test_by_id_after_a_restart(tmp_path: Path, mixed: bool):
    """The log has what a conversation by id needs, also where part of it went over another wire."""
    with gateway(SCRIPT[:2], log=tmp_path) as first:
        session = first.open_session()
        asker = client(session)
        response = respond(session, QUESTION, tools=[FLAT], instructions="be short", store=not mixed)
        history = [{"role": "user", "content": QUESTION}, *everything(response, [result(calls_of(response)[0])])]
        if mixed:
            response = respond(session, history, tools=[FLAT], instructions="be short")
        else:
            before = {"previous_response_id": response.id, "instructions": "be short"}
            response = asker.responses.create(model=MODEL, input=history[-1:], tools=[FLAT], **before)
        assert len(first.core.sessions.get(session["session_id"]).conversations) == 2 - mixed
    with gateway(SCRIPT[2:], log=tmp_path) as second:
        moved = session | {"base_url": session["base_url"].replace(first.url, second.url)}
        before = {"previous_response_id": response.id, "instructions": "be short"}
        response = respond(moved, [result(calls_of(response)[0])], tools=[FLAT], **before)
        assert response.output_text == "it is sunny in Paris, warm in Rome"
        one_row(second, session)


def size(session: Any) -> int:
    return sum(len(kept.messages) for kept in session.conversations.values())


@pytest.mark.parametrize("history", ["exact", "template"])
@pytest.mark.parametrize("by_id", [False, True])
def test_what_is_kept_is_linear_in_what_was_said(by_id: bool, history: Any):
    """Whether the client sends ids or everything, and whether or not prompts go on from turns."""
    turns = 12
    said = [ids(f"<think>\nhm\n</think>\n\nanswer {n}") for n in range(turns)]
    with gateway(ScriptedEngine(said, context_length=None), history=history) as running:
        session = running.open_session()
        items: list[Any] = []
        before: dict[str, Any] = {}
        for n in range(turns):
            question = {"role": "user", "content": f"question {n}"}
            response = respond(session, [question] if by_id else [*items, question], instructions="x", **before)
            items += [question, *everything(response, [])]
            before = {"previous_response_id": response.id} if by_id else {}
        known = running.core.sessions.get(session["session_id"])
        assert (len(known.conversations), size(known)) == (turns, turns)
        conversation = known.conversations[response.id.removeprefix("resp_")].conversation()
        assert [message["content"] for message in conversation] == [
            f"{kind} {n}" for n in range(turns) for kind in ("question", "answer")
        ]


# Refusals and failures


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"tools": [{"name": "search"}]}, "tools.0..type is missing"),
        ({"background": True}, "background is not supported"),
        ({"conversation": "conv_1"}, "conversation is not supported"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt is not supported"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "long " * 5000}, "maximum context length"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused_is_a_bad_request(body: dict[str, Any], why: str, stream: bool):
    with gateway([]) as running, pytest.raises(openai.BadRequestError, match=why):
        respond(running.open_session(), **{"stream": stream} | body)


def test_another_model_is_not_there():
    with gateway([]) as running, pytest.raises(openai.NotFoundError, match="does not exist"):
        respond(running.open_session(), model="other")


def test_an_engine_that_dies_in_the_middle_of_a_stream():
    said = ids("the answer is four", end=False)
    with gateway([ScriptedLine(said, fails=EngineError("the engine died", sampled_any=True))]) as running:
        session = running.open_session()
        text = ""
        with pytest.raises(openai.APIError, match="the engine died") as raised:  # noqa: PT012
            for event in respond(session, stream=True):
                text += event.delta if event.type == "response.output_text.delta" else ""
        assert text == "the answer is four"
        assert raised.value.code == "engine_error"
        (turn,) = Control(running).turns(session)
        assert turn["masked"] == "engine_error"


def test_an_error_after_a_sign_of_life_is_an_event():
    engine = Gated(ScriptedEngine([ScriptedLine([], fails=EngineError("too bad"))]))
    with gateway(engine, limits=KEEPS_ALIVE) as running:
        stream = respond(running.open_session(), stream=True)
        engine.let(2)
        with pytest.raises(openai.APIError, match="too bad"):
            list(stream)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_sent_again_gets_what_was_recorded(stream: bool):
    with gateway(SCRIPT[:1]) as running:
        session = running.open_session()
        body = {"input": QUESTION, "tools": [FLAT], "stream": stream}

        def ask() -> str:
            url, again = f"{session['base_url']}/responses", {"Idempotency-Key": "a"}
            return httpx.post(url, json=body, headers=again, timeout=30).text

        once, twice = ask(), ask()
        one, other = (json.loads(text.rpartition("\ndata: ")[2]) for text in (once, twice))
        if stream:
            one, other = one["response"], other["response"]
        assert one == other
        one_row(running, session, SCRIPT[:1])


# The OpenAI Agents SDK


@pytest.fixture
def quiet() -> Iterator[None]:
    import agents

    agents.set_tracing_disabled(True)
    yield
    agents.set_tracing_disabled(False)


def agent(session: dict[str, Any], api: str, **more: Any) -> tuple[Any, openai.AsyncOpenAI, list[str]]:
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, function_tool

    asked: list[str] = []

    @function_tool
    def get_weather(city: str, unit: str = "celsius") -> str:
        """The weather in a city."""
        asked.append(city)
        return "sunny" if city == "Paris" else "warm"

    asker = openai.AsyncOpenAI(base_url=session["base_url"], api_key="EMPTY", max_retries=0)
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    model = kind(model=MODEL, openai_client=asker)
    return Agent(name="a", instructions="be short", model=model, tools=[get_weather], **more), asker, asked


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["responses", "chat"])
def test_an_agents_sdk_agent(api: str, stream: bool):
    from agents import Runner

    async def run(session: dict[str, Any]) -> tuple[str, list[str]]:
        made, asker, asked = agent(session, api)
        async with asker:
            if stream:
                result = Runner.run_streamed(made, QUESTION)
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(made, QUESTION)
        return result.final_output, asked

    with gateway(SCRIPT) as running:
        session = running.open_session()
        assert asyncio.run(run(session)) == ("it is sunny in Paris, warm in Rome", ["Paris", "Rome"])
        one_row(running, session)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("by_id", [False, True])
def test_an_agents_sdk_agent_that_is_talked_to_twice(by_id: bool):
    from agents import Runner

    said = [*SCRIPT, ids("you are welcome")]

    async def run(session: dict[str, Any]) -> str:
        made, asker, _ = agent(session, "responses")
        async with asker:
            first = await Runner.run(made, QUESTION, auto_previous_response_id=by_id)
            if by_id:
                second = await Runner.run(made, "thanks", previous_response_id=first.last_response_id)
            else:
                second = await Runner.run(made, [*first.to_input_list(), {"role": "user", "content": "thanks"}])
        return str(second.final_output)

    with gateway(said) as running:
        session = running.open_session()
        assert asyncio.run(run(session)) == "you are welcome"
        one_row(running, session, said)


@pytest.mark.usefixtures("quiet")
def test_an_agents_sdk_agent_with_an_output_type():
    from agents import Runner

    said = Weather(city="Rome", degrees=25)

    async def run(session: dict[str, Any]) -> Any:
        made, asker, _ = agent(session, "responses", output_type=Weather)
        async with asker:
            return (await Runner.run(made, QUESTION)).final_output

    with gateway([SCRIPT[0], ids(said.model_dump_json())]) as running:
        assert asyncio.run(run(running.open_session())) == said
