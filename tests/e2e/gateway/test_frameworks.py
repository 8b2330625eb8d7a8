"""Real agents, unchanged: Strands and LangGraph, and clients that change the history they echo."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.gateway import MODEL, WEATHER, Control, call_text, client, gateway, ids

SCRIPT = [
    ids("<think>\nParis first\n</think>\n\nlet me see\n" + call_text("get_weather", city="Paris")),
    ids("<think>\nnow Rome\n</think>\n\n" + call_text("get_weather", unit="celsius", city="Rome")),
    ids("<think>\ndone\n</think>\n\nit is sunny in Paris, warm in Rome"),
]


def one_row(running: Gateway, session: dict[str, Any], turns: int = 3) -> None:
    """What the policy sampled, all of it, in one row."""
    known = running.trajectories(session["session_id"])
    assert (known.fidelity.turns, known.fidelity.rows, known.fidelity.bridges) == (turns, 1, turns - 1)
    assert known.fidelity.trained == known.fidelity.sampled == sum(len(said) for said in SCRIPT[:turns])
    (row,) = known.rows
    trained = [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    assert trained == [token for said in SCRIPT[:turns] for token in said]
    assert row.weight == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_strands_agent(stream: bool):
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

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
        model = OpenAIModel(
            client_args={"base_url": session["base_url"], "api_key": "EMPTY"},
            model_id=MODEL,
            params={"max_tokens": 200},
            stream=stream,
        )
        agent = Agent(model=model, tools=[get_weather], callback_handler=None, system_prompt="be short")
        result = agent("what is the weather in Paris and in Rome?")
        assert str(result).strip() == "it is sunny in Paris, warm in Rome"
        assert asked == ["Paris", "Rome"]
        assert [request.sampling.max_tokens for request in engine.requests] == [200] * 3
        one_row(running, session)


@pytest.mark.filterwarnings("ignore:create_react_agent")
def test_a_langgraph_agent():
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    asked: list[str] = []

    @tool
    def get_weather(city: str, unit: str = "celsius") -> str:
        """The weather in a city."""
        asked.append(city)
        return "sunny" if city == "Paris" else "warm"

    with gateway(SCRIPT) as running:
        session = running.open_session()
        model = ChatOpenAI(model=MODEL, base_url=session["base_url"], api_key="EMPTY", temperature=0.5)
        agent = create_react_agent(model, [get_weather])
        result = agent.invoke({"messages": [{"role": "user", "content": "what is the weather in Paris and Rome?"}]})
        assert result["messages"][-1].content == "it is sunny in Paris, warm in Rome"
        assert asked == ["Paris", "Rome"]
        one_row(running, session)


def test_a_langgraph_agent_that_streams():
    from langchain_openai import ChatOpenAI

    with gateway(SCRIPT[2:]) as running:
        session = running.open_session()
        model = ChatOpenAI(model=MODEL, base_url=session["base_url"], api_key="EMPTY", streaming=True)
        pieces = [piece.content for piece in model.stream("what is the weather in Paris and Rome?")]
        assert "".join(str(piece) for piece in pieces) == "it is sunny in Paris, warm in Rome"
        assert len([piece for piece in pieces if piece]) > 3


# What clients do to the history they echo


def _assistants(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message for message in messages if message["role"] == "assistant"]


def _each_call(messages: list[dict[str, Any]], change: Callable[[dict[str, Any]], None]) -> None:
    for message in _assistants(messages):
        for call in message.get("tool_calls") or []:
            change(call)


def nothing(messages: list[dict[str, Any]]) -> None:
    pass


def arguments_reserialized(messages: list[dict[str, Any]]) -> None:
    def change(call: dict[str, Any]) -> None:
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))

    _each_call(messages, change)


def arguments_indented(messages: list[dict[str, Any]]) -> None:
    def change(call: dict[str, Any]) -> None:
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=2)

    _each_call(messages, change)


def arguments_reordered(messages: list[dict[str, Any]]) -> None:
    def change(call: dict[str, Any]) -> None:
        known = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps({name: known[name] for name in reversed(known)})

    _each_call(messages, change)


def arguments_as_objects(messages: list[dict[str, Any]]) -> None:
    def change(call: dict[str, Any]) -> None:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])

    _each_call(messages, change)


def other_ids(messages: list[dict[str, Any]]) -> None:
    number = 0
    for message in messages:
        for call in message.get("tool_calls") or []:
            number += 1
            call["id"] = f"toolu_{number}"
        if message["role"] == "tool":
            message["tool_call_id"] = f"toolu_{number}"


def whitespace(messages: list[dict[str, Any]]) -> None:
    for message in _assistants(messages):
        if message.get("content"):
            message["content"] = "  " + message["content"].replace(" ", "  ") + "\n\n"


def no_reasoning(messages: list[dict[str, Any]]) -> None:
    for message in _assistants(messages):
        message.pop("reasoning_content", None)


def reasoning_in_the_text(messages: list[dict[str, Any]]) -> None:
    for message in _assistants(messages):
        thought = message.pop("reasoning_content", None)
        if thought and not message.get("tool_calls"):
            message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}"


def null_content(messages: list[dict[str, Any]]) -> None:
    for message in _assistants(messages):
        if message.get("tool_calls"):
            message["content"] = None


def empty_content(messages: list[dict[str, Any]]) -> None:
    for message in _assistants(messages):
        if message.get("tool_calls"):
            message["content"] = ""


def split_parts(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        text = message.get("content")
        if isinstance(text, str) and len(text) > 2:
            message["content"] = [{"type": "text", "text": text[:2]}, {"type": "text", "text": text[2:]}]


def dropped_fields(messages: list[dict[str, Any]]) -> None:
    for message in _assistants(messages):
        for name in list(message):
            if name not in ("role", "content", "tool_calls"):
                del message[name]


MUTATIONS = [
    nothing,
    arguments_reserialized,
    arguments_indented,
    arguments_reordered,
    arguments_as_objects,
    other_ids,
    whitespace,
    no_reasoning,
    reasoning_in_the_text,
    null_content,
    empty_content,
    split_parts,
    dropped_fields,
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_client_that_changes_what_it_echoes(mutate: Callable[[list[dict[str, Any]]], None], stream: bool):
    with gateway(SCRIPT) as running:
        session = running.open_session()
        history: list[dict[str, Any]] = [{"role": "user", "content": "what is the weather in Paris and Rome?"}]
        for _ in SCRIPT:
            sent = copy.deepcopy(history)
            mutate(sent)
            message = said(session, sent, stream)
            history.append(message)
            history += [
                {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
                for call in message.get("tool_calls", [])
            ]
        assert history[-1]["content"] == "it is sunny in Paris, warm in Rome"
        one_row(running, session)


def said(session: dict[str, Any], messages: list[dict[str, Any]], stream: bool = False) -> dict[str, Any]:
    """One call; gives the assistant's message."""
    asker = client(session)
    if not stream:
        answer = asker.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
        whole: dict[str, Any] = answer.choices[0].message.model_dump(exclude_none=True)
        return whole
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for chunk in asker.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER], stream=True):
        delta = chunk.choices[0].delta
        message["content"] += delta.content or ""
        for call in delta.tool_calls or []:
            function = {"name": call.function.name, "arguments": call.function.arguments}
            message.setdefault("tool_calls", []).append({"id": call.id, "type": "function", "function": function})
    return message


# Histories that are really changed


def conversation(running: Gateway) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    session = running.open_session()
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "you are an agent that knows the weather in all cities"},
        {"role": "user", "content": "what is the weather in Paris and Rome?"},
    ]
    for _ in range(2):
        message = said(session, history)
        history += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}]
    return session, history


def test_compaction_opens_a_second_row():
    with gateway([*SCRIPT[:2], ids("sunny")]) as running:
        session, history = conversation(running)
        said(session, [history[0], {"role": "user", "content": "so far: Paris is sunny. and Rome?"}])
        known = running.trajectories(session["session_id"])
        assert (known.fidelity.rows, known.fidelity.renders) == (2, 1)
        assert known.fidelity.trained == known.fidelity.sampled
        assert sum(row.weight for row in known.rows) == pytest.approx(1)
        assert [turn["parent"] for turn in Control(running).turns(session)] == [None, 0, 0]
        turn = Control(running).turns(session)[2]
        assert 0 < turn["kept_tokens"] < turn["prompt_length"]  # the system message is shared


def test_a_sub_agent_has_a_row_of_its_own_and_its_parent_goes_on():
    with gateway([*SCRIPT[:2], ids("the answer is four"), SCRIPT[2]]) as running:
        session, history = conversation(running)
        said(session, [{"role": "system", "content": "a calculator"}, {"role": "user", "content": "two plus two?"}])
        said(session, history)
        known = running.trajectories(session["session_id"])
        assert (known.fidelity.rows, known.fidelity.bridges) == (2, 2)
        assert known.fidelity.trained == known.fidelity.sampled
        assert sorted(len(row.spans) for row in known.rows) == [1, 3]


def test_a_branch_shares_what_came_before():
    with gateway([*SCRIPT[:2], SCRIPT[2], ids("it is warm")]) as running:
        session, history = conversation(running)
        said(session, history)
        history[-1] = history[-1] | {"content": "warm"}  # another outcome of the last tool
        said(session, history)
        known = running.trajectories(session["session_id"])
        assert (known.fidelity.rows, known.fidelity.trained) == (2, known.fidelity.sampled)
        assert [turn["parent"] for turn in Control(running).turns(session)] == [None, 0, 1, 1]
        first, second = known.rows
        assert sum(first.loss_mask) + sum(second.loss_mask) == known.fidelity.sampled
        assert [span.trained for span in second.spans] == [False, False, True]


def test_a_changed_reply_is_a_changed_history():
    with gateway([ids("the answer is four"), ids("fine")]) as running:
        session = running.open_session()
        user = {"role": "user", "content": "what is two plus two?"}
        message = said(session, [user])
        said(session, [user, message | {"content": "the answer is five"}, {"role": "user", "content": "sure?"}])
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.rows, known.renders, known.trained) == (2, 1, known.sampled)
