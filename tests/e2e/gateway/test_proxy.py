"""Servers that render by themselves: the gateway passes chats on, and records the ids that they tell."""

from __future__ import annotations

import json

import openai
import pytest

from agentcore_rl_toolkit.gateway.engine import open_engine
from support.fake_vllm import MODEL, FakeVllm
from support.gateway import WEATHER, Control, client, gateway, until

QUESTION = {"role": "user", "content": "abc"}


def rendered(*contents: str) -> list[int]:
    """As the fake server does it."""
    return [10 + ord(c) % 900 for content in contents for c in content]


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_server_rendered_and_sampled_is_recorded(stream: bool) -> None:
    with FakeVllm().serving() as server, gateway(open_engine(f"vllm-chat={server.url}")) as running:
        session = running.open_session(sampling={"max_tokens": 5}, enforced={"seed": 7})
        asked = {"model": MODEL, "messages": [QUESTION], "tools": [WEATHER], "stream": stream}
        answer = client(session).chat.completions.create(**asked)
        if stream:
            chunks = list(answer)
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            calls = [call for c in chunks if c.choices for call in c.choices[0].delta.tool_calls or []]
            assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
                ("c1", "add", '{"a":1}')
            ]
        else:
            text = answer.choices[0].message.content
        (turn,) = Control(running).turns(session)
        assert turn["new_prompt_ids"] == rendered("abc")
        assert len(turn["sampled_ids"]) == len(turn["logprobs"]) == 5
        assert all(value is not None for value in turn["logprobs"])
        spoken = turn["sampled_ids"][1:4] if stream else turn["sampled_ids"]
        assert [int(word) for word in text.split()] == spoken
        (path, body) = server.requests[-1]
        assert path == "/v1/chat/completions"
        assert (body["seed"], body["max_tokens"], body["tools"]) == (7, 5, [WEATHER])
        assert body["return_token_ids"] is True


def test_turns_that_share_a_beginning_keep_it_once_and_others_begin_a_row() -> None:
    with FakeVllm().serving() as server, gateway(open_engine(f"vllm-chat={server.url}")) as running:
        session = running.open_session(sampling={"max_tokens": 3})
        said = client(session)
        long = {"role": "user", "content": "a" * 40}
        said.chat.completions.create(model=MODEL, messages=[long])
        said.chat.completions.create(model=MODEL, messages=[long, {"role": "user", "content": "more"}])
        _, second = Control(running).turns(session)
        assert (second["parent"], second["kept_tokens"]) == (0, 40)  # not the sampled ids: the server left them out
        assert second["new_prompt_ids"] == rendered("more")
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.rows, known.sampled, known.trained, known.renders) == (2, 6, 6, 1)


def test_history_reaches_the_server_as_openai_writes_it() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'}}
    messages = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
    ]
    with FakeVllm().serving() as server, gateway(open_engine(f"vllm-chat={server.url}")) as running:
        session = running.open_session(sampling={"max_tokens": 2})
        choice = {"type": "function", "function": {"name": "get_weather"}}
        client(session).chat.completions.create(
            model=MODEL, messages=messages, tools=[WEATHER], tool_choice=choice, stop=["x"]
        )
        body = server.requests[-1][1]
        assert body["messages"][1]["tool_calls"] == [call]
        assert json.loads(body["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Zürich"}
        assert body["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
        assert (body["tool_choice"], body["stop"]) == (choice, ["x"])


def test_the_servers_refusal_is_the_agents() -> None:
    with FakeVllm(context_length=8).serving() as server, gateway(open_engine(f"vllm-chat={server.url}")) as running:
        session = running.open_session(sampling={"max_tokens": 6})
        with pytest.raises(openai.BadRequestError, match="maximum context length is 8"):
            client(session).chat.completions.create(model=MODEL, messages=[QUESTION])
        assert Control(running).turns(session) == []


def test_a_client_that_leaves_before_the_server_said_anything_leaves_no_turn() -> None:
    with FakeVllm().serving() as server, gateway(open_engine(f"vllm-chat={server.url}")) as running:
        server.going.clear()
        session = running.open_session(sampling={"max_tokens": 3})
        with pytest.raises(openai.APITimeoutError):
            client(session, timeout=1.0).chat.completions.create(model=MODEL, messages=[QUESTION])
        until(lambda: running.core.in_flight == 0)
        assert Control(running).turns(session) == []
