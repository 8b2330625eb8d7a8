"""Which reply a client means when it echoes one, by real SDKs and by requests recorded from real agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockProvider

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.bedrock import CLAUDE, bedrock
from support.gateway import MODEL, WEATHER, call_text, client, gateway, ids, text_of

Message = dict[str, Any]
USER = {"role": "user", "content": "the weather in Paris and Rome?"}
PARIS = call_text("get_weather", city="Paris")


def ask(session: dict[str, Any], messages: list[Message], **more: Any) -> list[Message]:
    """One call; the assistant's messages, as the SDK has them."""
    answer = client(session).chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER], **more)
    return [choice.message.model_dump(exclude_none=True) for choice in answer.choices]


def result(message: Message, text: str = "sunny") -> Message:
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": text}


def seen(engine: ScriptedEngine) -> str:
    """What the model was shown last."""
    return text_of(engine.requests[-1].prompt)


def rows(running: Gateway, session: dict[str, Any]) -> int:
    known = running.trajectories(session["session_id"]).fidelity
    assert known.trained == known.sampled
    return known.rows


# Best of n


def best_of(*choices: str) -> ScriptedEngine:
    """Says these to the first call, and `go on` to all others."""
    said = list(choices)

    def script(request: Any) -> list[int]:
        return ids(said[request.choice]) if text_of(request.prompt).count("assistant\n") == 1 else ids("go on")

    return ScriptedEngine(script)


def no_ids(message: Message) -> Message:
    calls = [call | {"id": "call_x"} for call in message.get("tool_calls", [])]
    return message | ({"tool_calls": calls} if calls else {})


def no_reasoning(message: Message) -> Message:
    return {name: value for name, value in message.items() if not name.startswith("reasoning")}


@pytest.mark.parametrize(
    ("choices", "change"),
    [
        (("a b\nc", "a  b c", "ab c"), lambda message: message),
        (("one\n" + PARIS, "two\n" + PARIS, PARIS), lambda message: message),
        ([f"<think>\n{n}\n</think>\n\n{PARIS}" for n in "abc"], no_reasoning),
        ([f"<think>\n{n}\n</think>\n\n{PARIS}" for n in "abc"], no_ids),
        ([f"<think>\n{n}\n</think>\n\nsunny" for n in "abc"], lambda message: message),
    ],
    ids=["whitespace", "text beside a call", "call ids", "reasoning", "reasoning of the same text"],
)
@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_the_model_sees_the_choice_that_the_client_went_on_with(
    choices: Any, change: Callable[[Message], Message], chosen: int
):
    engine = best_of(*choices)
    with gateway(engine) as running:
        session = running.open_session()
        messages = ask(session, [USER], n=3)
        message = change(messages[chosen])
        after = result(message) if "tool_calls" in message else {"role": "user", "content": "and now?"}
        ask(session, [USER, message, after])
        assert f"assistant\n{choices[chosen]}<|im_end|>" in seen(engine)
        assert rows(running, session) == 3


def test_replies_that_are_the_same_belong_to_the_choices_before_them():
    engine = best_of("a b", "a  b")
    with gateway(engine) as running:
        session = running.open_session()
        branches = [[USER, message, {"role": "user", "content": "and?"}] for message in ask(session, [USER], n=2)]
        for branch in branches:
            branch += [*ask(session, branch), {"role": "user", "content": "more?"}]
        for branch, said in zip(branches, ("a b", "a  b"), strict=True):
            ask(session, branch)
            assert f"assistant\n{said}<|im_end|>" in seen(engine)
        assert rows(running, session) == 2


# Edits


@pytest.mark.parametrize(
    ("text", "expected"), [("let me see", 1), (" let  me see\n", 1), ("", 1), (None, 1), ("[REDACTED]", 2)]
)
@pytest.mark.parametrize("late", [False, True], ids=["at once", "a turn later"])
def test_text_beside_a_tool_call_may_be_left_out_but_not_changed(text: str | None, expected: int, late: bool):
    said = "let me see\n" + PARIS
    engine = ScriptedEngine([ids(said), ids(said), ids(said), ids("fine")])
    with gateway(engine) as running:
        session = running.open_session()
        history = [USER]
        for _ in range(3):
            (message,) = ask(session, history)
            history += [message, result(message)]
            if not late:
                history[1]["content"] = text
        history[1]["content"] = text
        ask(session, history)
        assert rows(running, session) == expected
        assert ("[REDACTED]" in seen(engine)) == (text == "[REDACTED]")


# What clients append

CALLING = "\nCalling tools:\n[{'id': '%s', 'type': 'function', 'function': {'name': '%s', 'arguments': %s}}]"


def parts(text: str) -> list[Message]:
    return [{"type": "text", "text": text}]


def test_a_smolagents_code_agent_is_one_row():
    """It ends its code itself, with the stop string, and appends the call that it made of it."""
    code = [f"Thought: look\n<code>\nprint({n})\n</code>" for n in range(3)]
    engine = ScriptedEngine([ScriptedLine(ids(text, end=False)) for text in code])
    with gateway(engine) as running:
        session = running.open_session()
        history: list[Message] = [{"role": "user", "content": parts("New task:\ncount")}]
        for n in range(3):
            message = client(session).chat.completions.create(
                model=MODEL, messages=history, stop=["Observation:", "Calling tools:", "</code>"]
            )
            text = message.choices[0].message.content + "</code>"
            assert text == code[n].replace("\n</code>", "</code>")
            text += CALLING % (f"call_{n}", "python_interpreter", repr(f"print({n})"))
            history += [
                {"role": "assistant", "content": parts(text)},
                {"role": "user", "content": parts(f"Observation:\nExecution logs:\n{n}")},
            ]
        assert rows(running, session) == 1
        calling = f"{code[0]}<|im_end|>\n<|im_start|>assistant\nCalling tools:\n[{{'id': 'call_0'"
        assert calling in seen(engine)
        assert seen(engine).count("Calling tools") == 2


def test_a_smolagents_tool_calling_agent_is_one_row():
    """It sends calls back as text that names their ids."""
    said = [PARIS, "now Rome\n" + call_text("get_weather", city="Rome"), "fine"]
    engine = ScriptedEngine([ids(text) for text in said])
    with gateway(engine) as running:
        session = running.open_session()
        history: list[Message] = [{"role": "user", "content": parts("New task:\nthe weather?")}]
        for _ in range(2):
            (message,) = ask(session, history)
            call = message["tool_calls"][0]
            text = CALLING % (call["id"], "get_weather", json.loads(call["function"]["arguments"]))
            history += [
                {"role": "assistant", "content": parts((message.get("content", "") + text).strip())},
                {"role": "user", "content": parts("Observation:\nwarm")},
            ]
        ask(session, history)
        assert rows(running, session) == 1
        assert f"{said[1]}<|im_end|>\n<|im_start|>assistant\nCalling tools:" in seen(engine)


def test_what_was_appended_before_is_not_appended_again():
    engine = best_of("one")
    with gateway(engine) as running:
        session = running.open_session()
        (message,) = ask(session, [USER])
        history = [USER, message | {"content": "one\nCalling tools: x"}, {"role": "user", "content": "and?"}]
        choices = ask(session, history, n=2)
        ask(session, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, USER])  # another agent
        ask(session, [*history, choices[0], {"role": "user", "content": "more?"}])
        assert seen(engine).count("Calling tools: x") == 1
        assert rows(running, session) == 3


@pytest.mark.parametrize("text", ["the answer is fourteen", "the answer", "is it four?", "the answer is four.\nSure."])
def test_another_reply_is_not_an_extended_one(text: str):
    with gateway([ids("the answer is four"), ids("fine")]) as running:
        session = running.open_session()
        ask(session, [USER])
        ask(session, [USER, {"role": "assistant", "content": text}, {"role": "user", "content": "sure?"}])
        assert rows(running, session) == 2


# Streams


def test_each_of_several_tool_calls_comes_in_a_chunk_of_its_own():
    """LlamaIndex reads the first call of each chunk."""
    with gateway([ids(PARIS + "\n" + call_text("get_weather", city="Rome"))]) as running:
        chunks = client(running.open_session()).chat.completions.create(
            model=MODEL, messages=[USER], tools=[WEATHER], stream=True
        )
        calls = [chunk.choices[0].delta.tool_calls for chunk in chunks if chunk.choices[0].delta.tool_calls]
        assert [[call.index for call in some] for some in calls] == [[0], [1]]
        assert [json.loads(some[0].function.arguments)["city"] for some in calls] == ["Paris", "Rome"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_pydantic_ai_agent_on_bedrock_is_one_row(stream: bool):
    """Reasoning without a signature goes back as text."""
    script = [f"<think>\n{n}\n</think>\n\n{call_text('get_weather', city=f'city {n}')}" for n in range(3)]
    engine = ScriptedEngine([ids(text) for text in [*script, "<think>\nso\n</think>\n\nwarm"]])
    with gateway(engine) as running:
        session = running.open_session(model=MODEL)
        asker = bedrock(session)
        agent = Agent(BedrockConverseModel(CLAUDE, provider=BedrockProvider(bedrock_client=asker)))

        @agent.tool_plain
        def get_weather(city: str) -> str:
            return f"{city}: warm"

        async def run() -> str:
            if not stream:
                return str((await agent.run("the weather?")).output)
            async with agent.run_stream("the weather?") as streamed:
                return str(await streamed.get_output())

        try:
            assert asyncio.run(run()) == "warm"
        finally:
            asker.close()
        assert rows(running, session) == 1
        assert running.trajectories(session["session_id"]).fidelity.bridges == 3
