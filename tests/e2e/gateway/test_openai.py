"""The real OpenAI SDK against a gateway: everything it can ask for, and what it raises when it may not."""

from __future__ import annotations

import asyncio
import json
import math
from array import array
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine, logprob_of
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.call.chat import ChatCall
from agentcore_rl_toolkit.gateway.call.choice import Choice
from agentcore_rl_toolkit.gateway.call.core import GatewayLimits
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.gateway import (
    KEEPS_ALIVE,
    MODEL,
    WEATHER,
    Control,
    Gated,
    call_text,
    client,
    gateway,
    ids,
    in_thread,
    tokenizer,
)
from support.tokenizers import make_tokenizer

HELLO = [{"role": "user", "content": "what is two plus two?"}]
TWO_CALLS = "let me see\n" + call_text("get_weather", city="Paris") + "\n" + call_text("get_weather", city="Rome")


def chat(session: dict[str, Any], **more: Any) -> Any:
    return client(session).chat.completions.create(**{"model": MODEL, "messages": HELLO} | more)


def collected(stream: Any) -> tuple[str, str, list[dict[str, Any]], list[str]]:
    """Content, reasoning, tool calls (merged as clients do) and finish reasons of a stream of one choice."""
    content, reasoning, calls, reasons = "", "", {}, []
    for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or []:
                known = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                known["id"] += call.id or ""
                known["name"] += call.function.name or ""
                known["arguments"] += call.function.arguments or ""
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    return content, reasoning, [calls[place] for place in sorted(calls)], reasons


# Answers


def test_a_chat_completion():
    engine = ScriptedEngine([ids("<think>\nhm\n</think>\n\nthe answer is four")])
    with gateway(engine) as running:
        session = running.open_session()
        answer = chat(session)
        choice = answer.choices[0]
        assert choice.message.content == "the answer is four"
        assert choice.message.reasoning_content == "hm"
        assert (choice.finish_reason, choice.message.role, answer.model) == ("stop", "assistant", MODEL)
        sampled = len(ids("<think>\nhm\n</think>\n\nthe answer is four"))
        prompt = len(engine.requests[0].prompt)
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, sampled)
        assert answer.usage.total_tokens == prompt + sampled
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.rows, known.trained) == (1, sampled)


def test_a_streamed_chat_completion():
    with gateway([ids("<think>\nhm\n</think>\n\nthe answer is four")]) as running:
        session = running.open_session()
        stream = chat(session, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        content, reasoning, calls, reasons = collected(chunks)
        assert (content, reasoning, calls, reasons) == ("the answer is four", "hm", [], ["stop"])
        assert len(chunks) > 5
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == len(ids("<think>\nhm\n</think>\n\nthe answer is four"))
        assert len({chunk.id for chunk in chunks}) == 1
        assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_stream_without_usage_has_none():
    with gateway([ids("four")]) as running:
        assert all(chunk.choices for chunk in chat(running.open_session(), stream=True))


def test_completions_and_how_they_go_on():
    engine = ScriptedEngine([ids("the answer is"), ids(" four")])
    with gateway(engine) as running:
        session = running.open_session()
        first = client(session).completions.create(model=MODEL, prompt="what is two plus two? ")
        assert first.choices[0].text == "the answer is"
        assert first.choices[0].finish_reason == "stop"
        stream = client(session).completions.create(
            model=MODEL, prompt="what is two plus two? the answer is", stream=True
        )
        chunks = list(stream)
        assert "".join(chunk.choices[0].text for chunk in chunks) == " four"
        assert chunks[-1].choices[0].finish_reason == "stop"
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.rows, known.bridges, known.trained) == (2, 1, known.sampled)


@pytest.mark.parametrize(
    ("sampled", "stop", "said", "goes_on", "rows"),
    [
        (ids(" look\nObservation:", end=False), "\nObservation:", " look", "\nObservation: 0\nThought:", 1),
        (ids(" look\nObservation: 7 or", end=False), "\nObservation:", " look", "\nObservation: 0\nThought:", 2),
        (ids(" look\nObservation:", end=False), "\nObservation:", " look", "; and then", 2),
        (ids(" the answer is", end=False), "swer", " the an", " again", 2),  # within a token
        (ids(" é\nObservation:", end=False), "\nObservation:", " é", " again", 2),
        (ids(" look"), None, " look", "\nQ: 0\nA:", 2),
        (ids(" look"), None, " look", "<|im_end|>\nQ: 0\nA:", 1),
        (ids(" look", end=False), None, " look", "\nQ: 0\nA:", 1),
        (ids("\nObservation: 7", end=False), "\nObs", "", " x", 2),
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_completion_goes_on_from_what_the_client_wrote(
    tmp_path: Path, sampled: list[int], stop: str | None, said: str, goes_on: str, rows: int, restarted: bool
):
    start, engine = "Q: hi\nThought:", ScriptedEngine([sampled, ids(" four")], chunk=64)
    with ExitStack() as stack:
        running = stack.enter_context(gateway(engine, log=tmp_path))
        session = running.open_session(session_id="s")
        first = client(session).completions.create(model=MODEL, prompt=start, stop=stop)
        assert (first.choices[0].text, first.choices[0].finish_reason) == (said, "stop")
        if restarted:
            before = running.url
            stack.close()
            running = stack.enter_context(gateway(engine, log=tmp_path))
            session["base_url"] = session["base_url"].replace(before, running.url)
        client(session).completions.create(model=MODEL, prompt=start + said + goes_on)
        assert tokenizer().decode(engine.requests[1].prompt.tolist()) == start + said + goes_on
        known = running.trajectories("s").fidelity
        assert (known.rows, known.trained, known.masked) == (rows, known.sampled, {})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chunk", [1, 64])
def test_a_stop_string_that_comes_with_the_limit_is_why_it_ended(stream: bool, chunk: int):
    sampled = ids("I think the answer is", end=False)
    with gateway(ScriptedEngine([sampled], chunk=chunk)) as running:
        session = running.open_session(mask_truncated=True)
        answer = chat(session, stop=["the"], max_tokens=len(ids("I think the", end=False)), stream=stream)
        if stream:
            content, _, _, reasons = collected(answer)
        else:
            content, reasons = answer.choices[0].message.content, [answer.choices[0].finish_reason]
        assert (content, reasons) == ("I think", ["stop"])
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.trained, known.masked) == (known.sampled, {})


def test_what_was_passed_on_as_text_stays_text():
    said = "two and two</think>It is four.<|user|>"
    family = make_tokenizer("some/glm-4.5", family="glm-4.5")
    engine = ScriptedEngine([family.encode(said, add_special_tokens=False)] * 3)
    with Gateway(engine, tokenizer=family, renderer="glm-4.5") as running:
        session = running.open_session()
        asked = {"model": MODEL, "messages": HELLO}
        with client(session) as asker:
            content, reasoning, *_ = collected(asker.chat.completions.create(**asked, stream=True))
            assert (content, reasoning) == ("two and two</think>It is four.", "")
            whole = asker.chat.completions.create(**asked, stop=["never"]).choices[0].message
            assert (whole.content, whole.reasoning_content) == ("It is four.", "two and two")
            echo = [*HELLO, {"role": "assistant", "content": content}, *HELLO]
            message = asker.chat.completions.create(model=MODEL, messages=echo).choices[0].message
            assert (message.content, message.reasoning_content) == ("It is four.", "two and two")
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.rows, known.bridges) == (2, 1)


def test_text_that_was_thought_is_not_said_again():
    """What was passed on is not the beginning of the text: the reply stays what its format makes of it."""
    with gateway([]) as running:
        session, call = running.core.sessions.get(running.open_session()["session_id"]), ChatCall(HELLO)
        plan = running.core.planner.plan(session, call, None)
        sampled = array("i", ids("<think>\nhm\n</think>\n\nfour"))
        reply = running.core.reader.parse(plan, sampled, "u", stopped=False, passed_on="five")
        assert (reply.content, reply.reasoning) == ("four", "hm")


def test_a_call_stays_a_call_whatever_was_passed_on():
    with gateway([]) as running:
        session, call = running.core.sessions.get(running.open_session()["session_id"]), ChatCall(HELLO, [WEATHER])
        plan = running.core.planner.plan(session, call, None)
        sampled = array("i", ids(call_text("get_weather", city="Paris")))
        reply = running.core.reader.parse(plan, sampled, "u", stopped=False, passed_on="<tool_call>")
        assert ([call.name for call in reply.tool_calls], reply.content) == (["get_weather"], "")


def test_an_engine_in_this_process_writes_json_and_ends_at_stop_strings():
    with Gateway("transformers=tiny", tokenizer="tiny") as running:
        session = running.open_session()
        with client(session) as asker:
            asked = {"model": "tiny", "messages": HELLO, "max_tokens": 60, "temperature": 0}
            form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}}
            told = asker.chat.completions.create(**asked, response_format=form).choices[0].message.content
            assert json.loads(told) in (True, False)
            whole = asker.chat.completions.create(**asked)
            word = whole.choices[0].message.content.split()[1]
            cut = asker.chat.completions.create(**asked, stop=[word])
            assert cut.choices[0].finish_reason == "stop"
            assert cut.usage.completion_tokens < whole.usage.completion_tokens


def test_an_engine_that_is_away_says_when_to_come_back():
    for status, seconds in ((503, "1"), (502, None)):
        with gateway(
            ScriptedEngine(lambda _, status=status: ScriptedLine([], fails=EngineError("away", status=status)))
        ) as running:
            with pytest.raises(openai.InternalServerError) as refused:
                chat(running.open_session())
            assert (refused.value.status_code, refused.value.response.headers.get("Retry-After")) == (status, seconds)


def test_completions_of_token_ids():
    engine = ScriptedEngine([ids("four"), ids("five")])
    with gateway(engine) as running:
        session = running.open_session()
        client(session).completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=3)
        assert engine.requests[0].prompt.tolist() == [5, 6, 7]
        assert engine.requests[0].sampling.max_tokens == 3
        with pytest.raises(openai.BadRequestError, match="beyond the tokenizer"):
            client(session).completions.create(model=MODEL, prompt=[5, 10**6])


def test_the_async_client_streams_and_does_not():
    async def run(session: dict[str, Any]) -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=session["base_url"], api_key="EMPTY", max_retries=0) as asker:
            whole = await asker.chat.completions.create(model=MODEL, messages=HELLO)
            text = ""
            async for chunk in await asker.chat.completions.create(model=MODEL, messages=HELLO, stream=True):
                text += chunk.choices[0].delta.content or ""
        return whole.choices[0].message.content, text

    with gateway([ids("four"), ids("it is four")]) as running:
        assert asyncio.run(run(running.open_session())) == ("four", "it is four")


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_tool_calls(stream: bool):
    with gateway([ids(TWO_CALLS), ids("sunny and warm")]) as running:
        session = running.open_session()
        answer = chat(session, tools=[WEATHER], stream=stream)
        if stream:
            content, _, calls, reasons = collected(answer)
        else:
            message = answer.choices[0].message
            content, reasons = message.content, [answer.choices[0].finish_reason]
            calls = [call.function.model_dump() | {"id": call.id} for call in message.tool_calls]
        assert content == "let me see"
        assert reasons == ["tool_calls"]
        assert [json.loads(call["arguments"]) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
        assert {call["name"] for call in calls} == {"get_weather"}
        assert len({call["id"] for call in calls}) == 2
        history = [
            *HELLO,
            {
                "role": "assistant",
                "content": content,
                "tool_calls": [
                    {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                    for c in calls
                ],
            },
            *[{"role": "tool", "tool_call_id": call["id"], "content": "warm"} for call in calls],
        ]
        assert chat(session, messages=history, tools=[WEATHER]).choices[0].message.content == "sunny and warm"
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.rows, known.bridges, known.trained) == (1, 1, known.sampled)


def test_tool_choice_none_makes_calls_text():
    with gateway([ids(call_text("get_weather", city="Paris"))]) as running:
        message = chat(running.open_session(), tools=[WEATHER], tool_choice="none").choices[0].message
        assert message.tool_calls is None
        assert "get_weather" in message.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("required", 'get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'),
        ({"type": "function", "function": {"name": "get_weather"}}, '{"city": "Paris"}}\n</tool_call>'),
    ],
)
def test_tool_choice_begins_the_call_for_the_model(choice: Any, said: str, stream: bool):
    engine = ScriptedEngine([ids(said)])
    with gateway(engine) as running:
        session = running.open_session()
        answer = chat(session, tools=[WEATHER], tool_choice=choice, stream=stream)
        if stream:
            _, _, calls, reasons = collected(answer)
            arguments, reason = calls[0]["arguments"], reasons[0]
        else:
            arguments = answer.choices[0].message.tool_calls[0].function.arguments
            reason = answer.choices[0].finish_reason
        assert json.loads(arguments) == {"city": "Paris"}
        assert reason == "tool_calls"
        known = running.trajectories(session["session_id"])
        assert known.fidelity.trained == len(ids(said))  # what was put into its mouth is not trained


def test_several_choices_are_several_turns():
    answers = {0: "four", 1: "five", 2: "six"}
    with gateway(ScriptedEngine(lambda request: ids(answers[request.choice]))) as running:
        session = running.open_session()
        answer = chat(session, n=3)
        assert [choice.message.content for choice in answer.choices] == ["four", "five", "six"]
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage.completion_tokens == sum(len(ids(text)) for text in answers.values())
        known = running.trajectories(session["session_id"])
        assert (known.fidelity.rows, known.fidelity.trained) == (3, known.fidelity.sampled)
        assert sum(row.weight for row in known.rows) == pytest.approx(1)
        turns = Control(running).turns(session)
        assert [len(turn["new_prompt_ids"]) > 0 for turn in turns] == [True, False, False]  # the prompt is kept once


def test_several_choices_stream_side_by_side():
    answers = {0: "the answer is four", 1: "it is five"}
    with gateway(ScriptedEngine(lambda request: ids(answers[request.choice]))) as running:
        texts = {0: "", 1: ""}
        for chunk in chat(running.open_session(), n=2, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert texts == answers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", [" is", ["never", " is"]])
def test_stop_strings_cut_the_reply_but_not_the_record(stop: Any, stream: bool):
    engine = ScriptedEngine([ids("the answer is four, the weather is warm")])
    with gateway(engine) as running:
        session = running.open_session()
        answer = chat(session, stop=stop, stream=stream)
        text = collected(answer)[0] if stream else answer.choices[0].message.content
        assert text == "the answer"
        turn = Control(running).turns(session)[0]
        assert turn["finish"] == "stop"
        assert turn["sampled_ids"] == ids("the answer is four, the weather is warm")[: len(turn["sampled_ids"])]
        assert len(turn["sampled_ids"]) < len(ids("the answer is four, the weather is warm"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "stop", "thought", "text"),
    [
        ("\n\nUser: hi", "\n\nUser", "", ""),
        ("<think>abc</think>def", "c</think>", "ab", ""),
        ("<think>abc</think>def ghi", "f g", "abc", "de"),
        ("one. " + call_text("get_weather", city="Paris"), "<tool_call>", "", "one."),
    ],
)
def test_a_stop_string_cuts_wherever_it_is(said: str, stop: str, thought: str, text: str, stream: bool):
    with gateway([ids(said)]) as running:
        answer = chat(running.open_session(), stop=stop, stream=stream, tools=[WEATHER])
        if stream:
            deltas = [chunk.choices[0].delta for chunk in answer if chunk.choices]
            assert "".join(delta.content or "" for delta in deltas) == text
            assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == thought
            assert not any(delta.tool_calls for delta in deltas)
        else:
            message = answer.choices[0].message
            assert (message.content, getattr(message, "reasoning_content", "")) == (text, thought)
            assert not message.tool_calls


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(stream: bool):
    with gateway([ids("the answer is four")]) as running:
        answer = chat(running.open_session(), logprobs=True, top_logprobs=2, stream=stream)
        if stream:
            content = [
                entry
                for chunk in answer
                for choice in chunk.choices
                if choice.logprobs
                for entry in choice.logprobs.content
            ]
        else:
            content = answer.choices[0].logprobs.content
        assert [entry.logprob for entry in content] == pytest.approx(
            [logprob_of(token) for token in ids("the answer is four")]
        )
        assert "".join(entry.token for entry in content) == "the answer is four<|im_end|>"
        assert [top.token for top in content[0].top_logprobs] == [content[0].token]
        assert bytes(content[0].bytes).decode() == content[0].token


def test_logprobs_of_completions():
    with gateway([ids("the answer is four")]) as running:
        answer = client(running.open_session()).completions.create(model=MODEL, prompt="what?", logprobs=1)
        known = answer.choices[0].logprobs
        assert "".join(known.tokens) == "the answer is four<|im_end|>"
        assert known.token_logprobs == pytest.approx([logprob_of(token) for token in ids("the answer is four")])
        assert known.text_offset[1] == len(known.tokens[0])


def test_no_logprobs_to_the_client_but_always_in_the_record():
    with gateway([ids("four")]) as running:
        session = running.open_session()
        assert chat(session, logprobs=False).choices[0].logprobs is None
        assert Control(running).turns(session)[0]["logprobs"] == pytest.approx([logprob_of(i) for i in ids("four")])


def test_sampling_settings_reach_the_engine():
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}}
    engine = ScriptedEngine(lambda request: ids("{}"))
    with gateway(engine) as running:
        session = running.open_session()
        chat(
            session,
            temperature=0.5,
            top_p=0.9,
            seed=7,
            max_completion_tokens=20,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            logit_bias={"5": -100},
            stop=["x"],
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
            extra_body={"top_k": 3, "min_p": 0.05, "min_tokens": 1, "ignore_eos": True, "stop_token_ids": [9]},
        )
        chat(session, response_format={"type": "json_object"}, max_tokens=5)
        chat(session, response_format={"type": "text"})
    asked = engine.requests[0].sampling
    assert (asked.temperature, asked.top_p, asked.seed, asked.max_tokens, asked.top_k) == (0.5, 0.9, 7, 20, 3)
    assert (asked.presence_penalty, asked.frequency_penalty, asked.min_p, asked.min_tokens) == (0.1, 0.2, 0.05, 1)
    assert (asked.logit_bias, asked.stop, asked.ignore_eos, asked.json_schema) == (((5, -100.0),), ("x",), True, schema)
    assert 9 in asked.stop_token_ids
    assert ids("")[0] in asked.stop_token_ids  # the end of a turn ends it, whatever the client says
    assert engine.requests[1].sampling.json_schema == {"type": "object"}
    assert engine.requests[1].sampling.max_tokens == 5
    assert engine.requests[2].sampling.json_schema is None


def test_models():
    with gateway(ScriptedEngine([ids("four")], models=("a", "b", "org/c d"), context_length=512)) as running:
        session = running.open_session()
        for name in ("b", "org/c d"):
            assert client(session).models.retrieve(name).model_dump()["max_model_len"] == 512
            assert client(session).models.retrieve(name).id == name
        with pytest.raises(openai.NotFoundError, match="'e' does not exist"):
            client(session).models.retrieve("e")
        assert [model.id for model in client(session).models.list()] == ["a", "b", "org/c d"]
        assert next(iter(client(session).models.list())).max_model_len == 512
        assert running.trajectories(session["session_id"]).fidelity.turns == 0
        narrow = running.open_session(model="b", context_limit=100)
        models = list(client(narrow).models.list())
        assert [(model.id, model.max_model_len) for model in models] == [("b", 100)]
        assert client(narrow).models.retrieve("b").id == "b"
        with pytest.raises(openai.NotFoundError, match="use b"):
            client(narrow).models.retrieve("a")
        chat(narrow, model="whatever-the-agent-says")
        assert running.core.engine.requests[0].model == "b"


# Errors, as the SDK's exceptions


def test_context_overflow_says_by_how_much():
    engine = ScriptedEngine([ids("four")], context_length=64)
    with gateway(engine) as running:
        session = running.open_session()
        with pytest.raises(openai.BadRequestError) as raised:
            chat(session, messages=[{"role": "user", "content": "what is two plus two? " * 20}])
        assert raised.value.code == "context_length_exceeded"
        assert raised.value.param == "messages"
        prompt = int(str(raised.value).partition("resulted in ")[2].split()[0])
        assert f"{prompt - 63} too many" in str(raised.value)
        assert engine.requests == []
        assert running.trajectories(session["session_id"]).fidelity.turns == 0


def test_the_limit_leaves_room_for_what_it_leaves_room_for():
    engine = ScriptedEngine([ids("the answer is four, " * 20, end=False)], context_length=64)
    with gateway(engine) as running:
        answer = chat(running.open_session(), max_tokens=1000)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.total_tokens == 64


def test_errors_are_the_sdks_classes():
    with gateway([ids("four")]) as running:
        session = running.open_session()
        with pytest.raises(openai.NotFoundError, match="use one of: scripted") as unknown:
            chat(session, model="gpt-9")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.AuthenticationError) as wrong:
            client(session, base_url=session["base_url"].replace("/v1", "x/v1")).chat.completions.create(
                model=MODEL, messages=HELLO
            )
        assert wrong.value.code == "invalid_key"
        with pytest.raises(openai.BadRequestError) as bad:
            chat(session, temperature=-1)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client(session).embeddings.create(model=MODEL, input="x")
        assert running.trajectories(session["session_id"]).fidelity.turns == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (502, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
def test_an_engines_error_keeps_its_status_and_is_no_turn(status: int, kind: type[openai.APIStatusError], stream: bool):
    error = EngineError("the engine says no", status=status, retry_after=7)
    with gateway([ScriptedLine([], fails=error)]) as running:
        session = running.open_session()
        with pytest.raises(kind, match="the engine says no") as raised:
            list(chat(session, stream=stream))
        assert raised.value.status_code == status
        assert raised.value.response.headers["Retry-After"] == "7"
        assert running.trajectories(session["session_id"]).fidelity.turns == 0


def test_an_engine_that_dies_in_the_middle_of_a_stream():
    said = ids("the answer is four", end=False)
    with gateway([ScriptedLine(said, fails=EngineError("the engine died", sampled_any=True)), ids("four")]) as running:
        session = running.open_session()
        text = ""
        with pytest.raises(openai.APIError, match="the engine died"):  # noqa: PT012
            for chunk in chat(session, stream=True):
                text += chunk.choices[0].delta.content or ""
        assert text == "the answer is four"
        (turn,) = Control(running).turns(session)
        assert (turn["finish"], turn["masked"], turn["sampled_ids"]) == ("error", "engine_error", said)
        assert running.trajectories(session["session_id"]).fidelity.trained == 0
        assert chat(session).choices[0].message.content == "four"  # nothing else is harmed
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.rows, known.trained, known.masked) == (1, len(ids("four")), {"engine_error": len(said)})


def test_an_engine_that_dies_while_nobody_streams():
    said = ids("the answer", end=False)
    with gateway([ScriptedLine(said, fails=EngineError("the engine died", sampled_any=True))]) as running:
        session = running.open_session()
        with pytest.raises(openai.InternalServerError, match="the engine died"):
            chat(session)
        assert running.trajectories(session["session_id"]).fidelity.masked == {"engine_error": len(said)}


# Back-pressure


def test_too_many_calls_are_told_to_come_back():
    engine = Gated(ScriptedEngine([ids("four"), ids("five")]))
    with gateway(engine, limits=GatewayLimits(max_in_flight=1)) as running:
        session = running.open_session()
        first = in_thread(lambda: chat(session))
        engine.wait(engine.asked)
        with pytest.raises(openai.RateLimitError) as raised:
            chat(session, messages=[{"role": "user", "content": "another"}])
        assert raised.value.response.headers["Retry-After"] == "1"
        engine.let()
        assert first().choices[0].message.content == "four"
        engine.let()
        assert chat(session).choices[0].message.content == "five"


def test_the_sdk_waits_and_comes_back():
    engine = ScriptedEngine([ScriptedLine([], fails=EngineError("busy", status=429, retry_after=0.01)), ids("four")])
    with gateway(engine) as running:
        session = running.open_session()
        patient = client(session, max_retries=1)
        assert patient.chat.completions.create(model=MODEL, messages=HELLO).choices[0].message.content == "four"
        assert len(engine.requests) == 2


# Streams as they are sampled


def test_pieces_arrive_as_they_are_sampled():
    said = "the weather in Paris is sunny and warm"
    engine = Gated(ScriptedEngine([ids(said)]))
    with gateway(engine) as running:
        engine.let(3)
        stream = iter(chat(running.open_session(), stream=True))
        text = ""
        while not text:  # the engine holds the rest back until we have seen this
            text += next(stream).choices[0].delta.content or ""
        assert said.startswith(text)
        assert len(text) < len(said)
        engine.let(len(ids(said)))
        assert text + collected(stream)[0] == said


def test_a_silent_engine_does_not_look_like_a_dead_one():
    engine = Gated(ScriptedEngine([ids("four")]))
    with gateway(engine, limits=KEEPS_ALIVE) as running:
        session = running.open_session()
        asker = client(session)
        with asker.chat.completions.with_streaming_response.create(
            model=MODEL, messages=HELLO, stream=True
        ) as response:
            lines = response.iter_lines()
            seen = [next(lines) for _ in range(4)]
            assert seen == [": keep-alive", "", ": keep-alive", ""]
            engine.let(len(ids("four")))
            rest = list(lines)
        assert [line for line in rest if line.startswith("data:")][-1] == "data: [DONE]"


def test_keep_alive_comments_are_nothing_to_the_sdk():
    engine = Gated(
        ScriptedEngine([ScriptedLine(ids("four", end=False), fails=EngineError("too bad", sampled_any=True))])
    )
    with gateway(engine, limits=KEEPS_ALIVE) as running:
        stream = chat(running.open_session(), stream=True)  # returns with the first comment
        engine.let(len(ids("four")))
        with pytest.raises(openai.APIError, match="too bad"):
            list(stream)


def test_an_error_after_a_keep_alive_is_an_event():
    engine = Gated(ScriptedEngine([ScriptedLine([], fails=EngineError("too bad"))]))
    with gateway(engine, limits=KEEPS_ALIVE) as running:
        stream = chat(running.open_session(), stream=True)
        engine.let(2)
        with pytest.raises(openai.APIError, match="too bad"):
            list(stream)


@pytest.mark.parametrize("pace", [math.inf, 0.0])
def test_in_a_crowd_pieces_are_fewer_and_nothing_is_missing(monkeypatch: pytest.MonkeyPatch, pace: float):
    said = "the answer is four, the weather in Paris is sunny and warm"
    monkeypatch.setattr(Choice, "crowd", 0)
    monkeypatch.setattr(Choice, "pace", pace)
    engine = Gated(ScriptedEngine([ids(said)]))
    with gateway(engine) as running:
        session = running.open_session()
        chunks = in_thread(lambda: list(chat(session, stream=True)))
        for _ in ids(said)[1:]:  # one after the other, each when the gateway is done with the last
            engine.let()
            engine.wait(engine.taken)
        engine.let()
        deltas = [chunk.choices[0].delta.content for chunk in chunks() if chunk.choices]
    pieces = [piece for piece in deltas if piece]
    assert "".join(pieces) == said
    if pace:
        assert len(pieces) == 2  # the first at once, the rest with the end
    else:
        assert len(pieces) > 5
