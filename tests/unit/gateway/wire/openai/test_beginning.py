"""Requests that begin with the bytes of the last one: read as if they were read whole, whatever a client writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import openai as openai_sdk
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_128

from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.call.chat import ChatCall, Grown
from agentcore_rl_toolkit.gateway.wire.base import Asked
from agentcore_rl_toolkit.gateway.wire.json_body import read_json
from agentcore_rl_toolkit.gateway.wire.openai import chat_completions as openai
from agentcore_rl_toolkit.gateway.wire.openai.beginning import read_grown

USER: dict[str, Any] = {"role": "user", "content": 'Büro 7? [see "messages": [\'a\']], "model": 3'}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"messages":[1],"model":[2]}'}}
REPLY: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "3], }"}]}
TALK = [USER, REPLY, RESULT, {"role": "assistant", "content": "3"}, {"role": "user", "content": "and?\u2028 ]}"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"properties": {"messages": {"enum": []}}}}}]


class Client:
    """What a session keeps between an agent's requests."""

    def __init__(self, turns: int = 1) -> None:
        self.session: Any = SimpleNamespace(beginning=None, tree=SimpleNamespace(turns=[None] * turns))

    def send(self, raw: bytes) -> ChatCall:
        exchange, running = read_grown(raw, openai.CHAT, self.ask, self.session)
        assert running.digest() == xxh3_128(raw).digest()
        return cast(ChatCall, exchange.call)

    def ask(self, body: dict[str, Any]) -> Asked:
        return Asked(body, self.session, lambda ids: "")


def outcome(read: Callable[[], ChatCall]) -> Any:
    """All that a call says, the last of it first, or why it is refused."""
    try:
        call = read()
    except GatewayFault as fault:
        return fault.status, fault.message, fault.param
    messages = [list(call.messages[place:]) for place in range(len(call.messages), -1, -1)]
    return messages, call.tools, call.sampling, call.model, call.template, call.n


def whole(raw: bytes) -> ChatCall:
    return openai.read_chat(read_json(raw))


def compact(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def spaced(body: Any) -> bytes:
    return json.dumps(body).encode()


def from_sdk(body: dict[str, Any]) -> bytes:
    client = openai_sdk.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)
    sent: list[bytes] = []
    client._client.event_hooks["request"].append(lambda request: sent.append(request.read()))
    with pytest.raises(openai_sdk.APIConnectionError):
        client.chat.completions.create(**body)
    return sent[0]


@pytest.mark.parametrize("write", [compact, spaced, from_sdk])
@pytest.mark.parametrize("order", ["first", "last", "between"])
def test_only_what_is_new_is_parsed(write: Callable[[Any], bytes], order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"model": "m", "tools": TOOLS} if order != "first" else {}
    after = {"model": "m", "tools": TOOLS} if order == "first" else {"max_tokens": 5} if order == "between" else {}
    client = Client()
    parsed: list[int] = []
    monkeypatch.setattr(
        "agentcore_rl_toolkit.gateway.wire.openai.beginning.read_json",
        lambda raw: parsed.append(len(raw)) or read_json(raw),
    )
    calls, sizes = [], []
    for count in (1, 3, 5, 7, 9, 11):
        messages = [{"role": "user", "content": "x" * 5000}, *(TALK[1:] * 3)][:count]
        raw = write({**before, "messages": messages, **after})
        calls.append(client.send(raw))
        sizes.append(len(raw))
        assert outcome(lambda call=calls[-1]: call) == outcome(lambda raw=raw: whole(raw))  # type: ignore[misc]
    assert [bool(call.follows) for call in calls] == [False, True, True, True, True, True]
    assert [call.follows for call in calls[1:]] == [call.request for call in calls[:-1]]
    assert len({call.request for call in calls}) == 6
    # The first is read whole; of the others what is new, and then everything, by the comparison.
    assert (parsed[0], parsed[2::2]) == (sizes[0], sizes[1:])
    assert max(parsed[1::2]) < 3000


def test_messages_that_nobody_looks_at_are_not_read() -> None:
    read: list[int] = []

    def all_of_them() -> list[dict[str, Any]]:
        read.append(1)
        return TALK

    grown = Grown(3, TALK[3:], all_of_them)
    assert (len(grown), grown[3:], grown[4:], grown[3], grown[4], grown[3:4], grown[7:], grown[3:2]) == (
        5, TALK[3:], TALK[4:], TALK[3], TALK[4], TALK[3:4], [], []
    )  # fmt: skip
    assert not read
    assert (grown[2:], grown[:1], grown[0], grown[-1], list(grown), grown[3::2]) == (
        TALK[2:], TALK[:1], USER, TALK[4], TALK, TALK[3::2]
    )  # fmt: skip
    assert read == [1]


def test_a_first_request_is_not_prepared_for_a_second() -> None:
    client = Client(turns=0)
    client.send(compact({"model": "m", "messages": TALK[:1]}))
    assert client.session.beginning is None


def test_other_settings_after_the_messages_are_no_hindrance() -> None:
    client = Client()
    client.send(compact({"messages": TALK[:1], "model": "m", "seed": 1}))
    call = client.send(compact({"messages": TALK[:3], "max_tokens": 2, "seed": 2, "tools": TOOLS}))
    assert (call.follows != b"", call.sampling.seed, call.tools) == (True, 2, TOOLS)
    assert list(call.messages) == list(whole(compact({"messages": TALK[:3]})).messages)


def test_another_conversation_in_between_is_read_whole() -> None:
    client = Client()
    talks = {name: [{"role": "user", "content": name}] for name in "ab"}
    follows = ""
    for name in "aabbbaaa":
        talks[name] += TALK[1:]
        raw = compact({"messages": talks[name], "model": "m"})
        call = client.send(raw)
        assert list(call.messages) == list(whole(raw).messages)
        follows += "-+"[bool(call.follows)]
    assert follows == "-+--+--+"


def test_a_name_of_any_length_costs_nothing() -> None:
    """It is no pattern to be compiled, and kept, for anybody who asks."""
    client = Client()
    client.send(compact({"messages": TALK, "n" * 65: 1}))
    assert client.session.beginning is None
    client.send(compact({"messages": TALK, "n" * 64: 1}))
    assert client.session.beginning is not None


def test_an_edit_that_changes_no_length_is_noticed() -> None:
    client = Client()
    client.send(compact({"messages": [{"role": "user", "content": "a"}, *TALK], "model": "m"}))
    assert not client.send(
        compact({"messages": [{"role": "user", "content": "b"}, *TALK, *TALK], "model": "m"})
    ).follows


def test_a_client_that_hides_the_end_of_its_messages_is_read_whole() -> None:
    for hidden, follows in ((7, True), (8, False)):
        client = Client()
        client.send(compact({"messages": [USER], "model": "m"}))
        more = [{"role": "user", "content": "b", "x": [], "model": ""}] * hidden
        call = client.send(raw := compact({"messages": [USER, *more], "model": "m"}))
        assert (bool(call.follows), outcome(lambda call=call: call)) == (follows, outcome(lambda raw=raw: whole(raw)))  # type: ignore[misc]


FIRST = b'{"messages":[{"role":"user","content":"a"}'
B, C = (b'{"role":"user","content":"%s"}' % name for name in (b"b", b"c"))
NESTED = b'"messages":[{"role":"user","content":"a"}],"n":1}'
ODD = [
    (FIRST + b"]}", FIRST + b",]}"),
    (FIRST + b"]}", FIRST + b',{"role":"user","content":"b"},]}'),
    (FIRST + b"]}", FIRST + b',{"role":"user","content":"b"}],"messages":[{"role":"user","content":"c"}]}'),
    (FIRST + b"]}", FIRST + b',{"role":"user","content":"b"}],"messages":[]}'),
    (FIRST + b"]}", FIRST + b',{"role":"user","content":"b"}],"stop":["x"]}'),
    (FIRST + b"]}", FIRST + b',{"role":"user","content":"b"}'),
    (FIRST + b"]}", FIRST + b',{"role":"nobody","content":"b"}]}'),
    (FIRST + b"]}", FIRST + b',{"role":"user","content":"\xff"}]}'),
    (FIRST + b"]}", FIRST + b',{"role":"user","content":"\\ud800"}]}'),
    (FIRST + b"]}", FIRST + b"," + b"[" * 98 + b"]" * 98 + b"]}"),
    (FIRST + b"]}", FIRST + b"]}"),
    (FIRST + b"]}", FIRST + b',{"role":"assistant","content":"b"}]}'),
    (b'{"metadata":' + FIRST + b'],"n":1},' + NESTED,
     b'{"metadata":' + FIRST + b',1],"n":1},' + NESTED),
    (b'{"metadata":' + FIRST + b'],"n":1},' + NESTED,
     b'{"metadata":' + FIRST + b',{"role":"user","content":"a"}],"n":1},' + NESTED),
    (FIRST + b'],"n":1}', FIRST + b"," + B + b'],"n":1,"messages":[' + C + b'],"n":1}'),
    (FIRST + b'],"n":1}', FIRST + b"," + B + b'],"n":1,"messages":[' + B + b'],"n":1}'),
    (b'{"\\"messages":[' + B + b'],"messages":[' + B + b'],"n":1}',
     b'{"\\"messages":[' + B + b"," + B + b'],"messages":[' + B + b'],"n":1}'),
    (FIRST + b'],"' + b"n" * 65 + b'":1}', FIRST + b"," + B + b'],"' + b"n" * 65 + b'":1}'),
    (FIRST + b'],"n":[],"n":1}', FIRST + b'],"n":[,2],"n":1}'),
    (FIRST + b'],"n":[0],"n":1}', FIRST + b'],"n":[0,{"role":"user","content":"b"}],"n":1}'),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), ODD)
def test_odd_bodies_say_what_they_say_when_read_whole(first: bytes, second: bytes) -> None:
    client = Client()
    client.send(first)
    for raw in (second, second, first):
        assert outcome(lambda raw=raw: client.send(raw)) == outcome(lambda raw=raw: whole(raw))  # type: ignore[misc]


texts = st.text(st.sampled_from('ab"\\]}[{,:é\u2028 '), max_size=6) | st.sampled_from(
    ['],"model":', '"messages":[', '],"messages":[', "\ud800"]
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.just(0.5) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["messages", "model", "x"]), inner),
    max_leaves=6,
)
some_messages = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": texts}),
        st.fixed_dictionaries(
            {
                "role": st.just("assistant"),
                "content": st.none() | texts,
                "tool_calls": st.just([CALL]),
                "x": values,
            }
        ),
        values,
    ),
    min_size=1,
    max_size=3,
)
steps = st.tuples(
    some_messages,
    st.sampled_from(["grow", "grow", "grow", "edit", "drop"]),
    st.dictionaries(st.sampled_from(["model", "x", "metadata"]), values, max_size=2),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": ")]),
)


@given(st.lists(steps, min_size=2, max_size=5))
@example(
    [([USER], "grow", {}, True, (",", ":")), ([{"role": "user", "content": "\ud800"}], "grow", {}, True, (",", ":"))]
)
def test_whatever_is_sent_is_read_as_if_it_were_read_whole(sent: list[Any]) -> None:
    client = Client()
    messages: list[Any] = [USER]
    for new, how, rest, ahead, separators in sent:
        if how == "grow":
            messages = messages + new
        elif how == "edit":
            messages = [new[0], *messages[1:]]
        else:
            messages = messages[:-1] or [USER]
        body = {**rest, "messages": messages} if ahead else {"messages": messages, **rest}
        raw = json.dumps(body, separators=separators).encode()
        assert outcome(lambda raw=raw: client.send(raw)) == outcome(lambda raw=raw: whole(raw))  # type: ignore[misc]
