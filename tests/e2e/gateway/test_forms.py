"""A schema is for the final text, and a call that has to be made comes after the thought: tools and thoughts stay."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel

from agentcore_rl_toolkit.engine.reply_form import Form
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.gateway import MODEL, WEATHER, call_text, client, gateway, ids, text_of
from support.tokenizers import make_tokenizer

HELLO = [{"role": "user", "content": "the weather in Paris?"}]
SCHEMA = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
PARIS = call_text("get_weather", city="Paris")
THOUGHT = "<think>\nhm\n</think>\n\n"
NAMED = {"type": "function", "function": {"name": "get_weather"}}
BEGIN = '<tool_call>\n{"name": "'


def ask(session: dict[str, Any], **more: Any) -> Any:
    return client(session).chat.completions.create(model=MODEL, messages=HELLO, **more).choices[0].message


class Weather(BaseModel):
    """What an agent has to answer."""

    sunny: bool


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_agent_with_an_output_type_calls_its_tools_first(stream: bool):
    set_tracing_disabled(True)
    ran: list[str] = []

    @function_tool
    def get_weather(city: str) -> str:
        """The weather"""
        ran.append(city)
        return "sunny"

    async def run(url: str) -> Any:
        async with AsyncOpenAI(base_url=url, api_key="EMPTY") as asker:
            model = OpenAIResponsesModel(MODEL, asker)
            agent = Agent("weather", model=model, tools=[get_weather], output_type=Weather)
            if not stream:
                return (await Runner.run(agent, "the weather in Paris?")).final_output
            streamed = Runner.run_streamed(agent, "the weather in Paris?")
            async for _ in streamed.stream_events():
                pass
            return streamed.final_output

    engine = ScriptedEngine([ids(THOUGHT + PARIS), ids('<think>\nso\n</think>\n\n{"sunny": true}')], forms=True)
    with gateway(engine) as running:
        session = running.open_session()
        assert asyncio.run(run(session["base_url"])) == Weather(sunny=True)
        assert ran == ["Paris"]
        for request in engine.requests:
            form = request.sampling.form
            assert form is not None
            assert (form.thought, form.call, request.sampling.json_schema) == ("optional", "<tool_call>", None)
            assert form.schema is not None
            assert form.schema["properties"]["sunny"]["type"] == "boolean"
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.rows, known.trained) == (1, known.sampled)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("choice", "begin"), [("required", BEGIN), (NAMED, BEGIN + 'get_weather", "arguments": ')])
def test_a_call_that_has_to_be_made_comes_after_the_thought(choice: Any, begin: str, stream: bool):
    engine = ScriptedEngine([ids(THOUGHT + PARIS)], forms=True)
    with gateway(engine) as running:
        session = running.open_session()
        asked = {
            "model": MODEL,
            "messages": HELLO,
            "tools": [WEATHER],
            "tool_choice": choice,
            "response_format": FORMAT,
        }
        if stream:
            with client(session).chat.completions.stream(**asked) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client(session).chat.completions.create(**asked).choices[0].message
        assert message.reasoning_content.strip() == "hm"
        assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris"}
        (request,) = engine.requests
        form = request.sampling.form
        assert form is not None
        assert (form.thought, form.schema, request.sampling.json_schema) == ("optional", None, None)
        assert (form.call.startswith(begin.rstrip()), begin.startswith(form.call.rstrip())) == (True, True)
        assert text_of(request.prompt).endswith("assistant\n")  # nothing is put into its mouth
        known = running.trajectories(session["session_id"]).fidelity
        assert known.trained == known.sampled == len(ids(THOUGHT + PARIS))


@pytest.mark.parametrize(
    ("asked", "form"),
    [
        ({}, None),
        ({"tools": [WEATHER]}, None),
        ({"response_format": FORMAT}, Form("optional", "", SCHEMA)),
        ({"response_format": FORMAT, "tools": [WEATHER]}, Form("optional", "<tool_call>", SCHEMA)),
        ({"response_format": FORMAT, "tools": [WEATHER], "tool_choice": "none"}, Form("optional", "", SCHEMA)),
        ({"response_format": {"type": "json_object"}, "tools": [WEATHER], "off": True}, Form("", "<tool_call>", {})),
        ({"response_format": FORMAT, "off": True}, None),
    ],
)
def test_what_a_reply_has_to_look_like(asked: dict[str, Any], form: Form | None):
    off = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}} if asked.pop("off", False) else {}
    engine = ScriptedEngine([ids("{}")], forms=True)
    with gateway(engine) as running:
        ask(running.open_session(), **asked, **off)
        (request,) = engine.requests
        wanted = form and Form(form.thought, form.call, form.schema or {"type": "object"})
        assert request.sampling.form == wanted
        schema = SCHEMA if "response_format" in asked and form is None else None
        assert request.sampling.json_schema == schema


def test_a_thought_that_the_prompt_opens_is_ended_first():
    engine = ScriptedEngine([ids("hm\n</think>\n\n{}")], forms=True)
    tokenizer = make_tokenizer(family="qwen3.5")
    with Gateway(engine, tokenizer=tokenizer, renderer="qwen3.5") as running:
        session = running.open_session()
        with client(session) as asker:
            asker.chat.completions.create(
                model=MODEL, messages=HELLO, tools=[WEATHER], tool_choice="required", max_tokens=50
            )
        form = engine.requests[0].sampling.form
        assert form is not None
        assert form.thought == "open"
        assert form.call.startswith("<tool_call>")


def test_what_an_engine_gave_up_goes_on_with_what_is_left_of_the_form():
    parts = [
        ScriptedLine(ids(text, end=False), finish="abort") for text in ("<think>\nh", "m\n</think>\n\n", '{"sunny"')
    ]
    engine = ScriptedEngine([*parts, ids(": true}")], forms=True)
    with gateway(engine) as running:
        message = ask(running.open_session(), tools=[WEATHER], response_format=FORMAT)
        assert json.loads(message.content) == {"sunny": True}
        left = [request.sampling.form for request in engine.requests]
        assert [form and form.thought for form in left] == ["optional", "open", "", None]


def test_an_engine_without_forms_begins_with_the_text():
    engine = ScriptedEngine([ids("{}")])
    with gateway(engine) as running:
        ask(running.open_session(), tools=[WEATHER], response_format=FORMAT)
        assert engine.requests[0].sampling.json_schema == SCHEMA
        assert engine.requests[0].sampling.form is None


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_engine_in_this_process_calls_tools_or_writes_the_text(choice: str):
    with Gateway("transformers=tiny", tokenizer="tiny") as running:
        session = running.open_session(sampling={"max_tokens": 60})
        with client(session) as asker:
            for seed in range(4):
                answer = asker.chat.completions.create(
                    model="tiny", messages=HELLO, tools=[WEATHER], tool_choice=choice, response_format=FORMAT, seed=seed
                )
                message = answer.choices[0].message
                called = message.tool_calls or "<tool_call>" in (message.content or "")
                assert called or (choice == "auto" and json.loads(message.content).keys() == {"sunny"})
