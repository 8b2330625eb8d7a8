"""Anthropic's wire: whatever JSON comes in is a call or a refusal; what goes out is what the SDK reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agentcore_rl_toolkit.engine.base import Sampling
from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.call.chat import Reply, ToolCall, parse_arguments
from agentcore_rl_toolkit.gateway.call.fingerprint import hash_message
from agentcore_rl_toolkit.gateway.wire.anthropic import messages as anthropic
from agentcore_rl_toolkit.gateway.wire.anthropic.messages_request import CountTokensRequest, read_prompt
from agentcore_rl_toolkit.gateway.wire.fields import parse
from agentcore_rl_toolkit.gateway.wire.json_body import read_json
from support.wire import NOTHING, answer, asked, read_chat, streamed

HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"name": "add", "description": "Adds", "input_schema": {"type": "object"}}
BODY = {"model": "m", "max_tokens": 5, "messages": HELLO}

KINDS = [
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "image",
    "custom",
    "any",
    "tool",
    "enabled",
]
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([*KINDS, "user", "assistant", "system", "json_schema", "\0", "add", 10**400]),
)
keys = st.sampled_from(
    ["role", "content", "type", "text", "thinking", "name", "input", "tool_use_id", "id", "format", "schema",
     "input_schema", "description", "__arguments__"]
)  # fmt: skip
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)
FIELDS = [
    "messages", "system", "tools", "tool_choice", "thinking", "max_tokens", "stop_sequences", "temperature", "top_p",
    "top_k", "model", "stream", "output_config", "metadata", "container", "mcp_servers", "seed", "logit_bias",
]  # fmt: skip


def read_call(body: dict[str, Any]) -> Any:
    return anthropic.MESSAGES.read(asked(body)).call


def read_counted(body: dict[str, Any]) -> Any:
    return read_prompt(parse(body, CountTokensRequest))


def read_messages(messages: Any) -> list[dict[str, Any]]:
    return list(read_counted({"messages": messages}).messages)


def refused_or(read: Any, *args: Any) -> Any:
    """What `read` gives, or the refusal, which has to be one to show to an agent."""
    try:
        return read(*args)
    except GatewayFault as fault:
        refused = fault
    assert refused.status == 400
    assert refused.param is not None
    assert len(refused.message) < 500
    said = json.loads(anthropic.refuse(refused).body)
    assert (said["type"], said["error"]["type"]) == ("error", "invalid_request_error")
    return None


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(FIELDS), anything)
def test_any_value_of_any_field_is_read_or_refused(name: str, value: Any):
    refused_or(anthropic.MESSAGES.read, asked(BODY | {"tools": [TOOL], name: value}))
    refused_or(read_counted, {"messages": HELLO, name: value})


blocks = st.fixed_dictionaries({"type": st.sampled_from(KINDS)}, optional={
    "text": anything, "thinking": anything, "name": anything, "input": anything, "id": anything,
    "tool_use_id": anything, "content": anything,
})  # fmt: skip
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": st.lists(blocks | anything, max_size=3) | anything}
)


@settings(max_examples=500, deadline=None)
@given(st.lists(messages | anything, max_size=3))
def test_any_messages_are_read_or_refused(given_messages: list[Any]):
    for message in refused_or(read_messages, given_messages) or []:
        assert message["role"] in ("user", "assistant", "tool")
        assert isinstance(message["content"], str)
        assert message["content"] or message["role"] != "system"


# Requests


def test_messages_are_those_of_openai():
    """The same conversation in both forms is the same to whoever renders it."""
    read = read_counted(
        {
            "system": [{"type": "text", "text": "be ", "cache_control": {"type": "ephemeral"}}, _text("short")],
            "messages": [
                {"role": "user", "content": [_text("a"), _text("b")]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "h", "signature": "s"},
                        {"type": "redacted_thinking", "data": "xyz"},
                        {"type": "thinking", "thinking": "m", "signature": "s"},
                        _text("let me "),
                        _text("see"),
                        {"type": "tool_use", "id": "c", "name": "f", "input": {"b": 1, "a": 2}},
                        {"type": "tool_use", "id": "d", "name": "g", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        _text("and "),
                        {"type": "tool_result", "tool_use_id": "c", "content": [_text("3"), _text("4")]},
                        {"type": "tool_result", "tool_use_id": "d", "is_error": True},
                        _text("now?"),
                    ],
                },
                {"role": "assistant", "content": "fine"},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "e", "content": "5"}]},
            ],
            "tools": [TOOL | {"cache_control": {"type": "ephemeral"}}, {"type": "custom", "name": "bare"}],
        }
    )
    same = read_chat(
        {
            "messages": [
                {"role": "system", "content": "be short"},
                {"role": "user", "content": "ab"},
                {
                    "role": "assistant",
                    "content": "let me see",
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}},
                        {"id": "d", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                    ],
                    "reasoning_content": "hm",
                },
                {"role": "tool", "tool_call_id": "c", "content": "34"},
                {"role": "tool", "tool_call_id": "d", "content": None},
                {"role": "user", "content": "and now?"},
                {"role": "assistant", "content": "fine"},
                {"role": "tool", "tool_call_id": "e", "content": "5"},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "add", "description": "Adds", "parameters": {"type": "object"}},
                },
                {"type": "function", "function": {"name": "bare", "parameters": {}}},
            ],
        }
    )
    assert read == same
    assert json.dumps(read.messages) == json.dumps(same.messages)  # in the same order, too
    assert json.dumps(read.tools) == json.dumps(same.tools)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize("system", [None, "", [], [_text("")]])
def test_an_empty_system_prompt_is_none(system: Any):
    assert read_counted({"messages": HELLO, "system": system}).messages == HELLO


def test_an_empty_message_is_one():
    assert read_messages([{"role": "user", "content": []}]) == [{"role": "user", "content": ""}]
    read = read_messages([*HELLO, {"role": "assistant", "content": []}])
    assert read[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "user", "content": [{"type": "tool_use", "name": "f", "input": {}}]}, "block of type 'tool_use'"),
        ({"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "f"}]}, "of type 'tool_result'"),
        ({"role": "user", "content": [{"type": "tool_reference", "tool_name": "f"}]}, "block of type 'tool_reference'"),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c",
                                       "content": [{"type": "tool_reference"}]}]}, "without a tool_name"),
        ({"role": "user", "content": [{"type": "tool_result", "content": "x"}]}, "without a tool_use_id"),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": 5}]}, "content is 5"),
        ({"role": "tool", "content": "x"}, "role is 'tool': expected one of user, assistant, system"),
        ({"content": "x"}, "role is missing"),
        ({"role": "user"}, "content is missing"),
        ({"role": "user", "content": ["x"]}, "content.0. is 'x'"),
        ({"role": "user", "content": [{"type": "text"}]}, "text block without its text"),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": 5}]}, "thinking is 5"),
        ({"role": "assistant", "content": [{"type": "tool_use", "input": {}}]}, "tool_use without a name"),
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": "{}"}]}, "input is '{}'"),
        ("x", "is 'x': expected `object`"),
    ],
)  # fmt: skip
def test_messages_that_are_refused(message: Any, why: str):
    with pytest.raises(GatewayFault, match=why) as refused:
        read_messages([*HELLO, message])
    assert refused.value.param.startswith("messages[1]")


@pytest.mark.parametrize("given_messages", [None, [], {}, "hi"])
def test_no_messages(given_messages: Any):
    with pytest.raises(GatewayFault, match="messages is "):
        read_messages(given_messages)


def test_a_request_without_a_user_turn_is_refused():
    with pytest.raises(GatewayFault, match="no user turn"):
        read_messages([{"role": "assistant", "content": "y"}])


def test_a_reply_that_is_begun_is_refused_but_counted():
    begun = [*HELLO, {"role": "assistant", "content": "The answer is ("}]
    with pytest.raises(GatewayFault, match="prefill"):
        read_call(BODY | {"messages": begun})
    assert len(read_counted({"messages": begun}).messages) == 2


def test_max_tokens_is_required():
    with pytest.raises(GatewayFault, match="max_tokens is missing") as refused:
        read_call({"messages": HELLO})
    assert refused.value.param == "max_tokens"
    with pytest.raises(GatewayFault, match="max_tokens is 0"):
        read_call(BODY | {"max_tokens": 0})
    assert read_counted({"messages": HELLO}).sampling.max_tokens is None


def test_sampling():
    schema = {"type": "object", "properties": {}}
    call = read_call(
        BODY
        | {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 3,
            "stop_sequences": ["a", "b"],
            "stop": "not this",
            "response_format": {"type": "json_object"},
            "max_completion_tokens": 7,
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema}},
            "seed": 7,
            "metadata": {"user_id": "x"},
            "service_tier": "auto",
        }
    )
    assert call.sampling == Sampling(
        temperature=0.5, top_p=0.9, top_k=3, max_tokens=5, stop=("a", "b"), json_schema=schema, seed=7
    )
    assert (call.model, call.n, call.logprobs) == ("m", 1, False)
    assert read_call(BODY | {"output_config": {"effort": "low"}}).sampling == Sampling(max_tokens=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("top_p", 1.1),
        ("max_tokens", "many"),
        ("stop_sequences", "x"),
        ("stop_sequences", ["x"] * 17),
        ("stop_sequences", [5]),
        ("stream", "yes"),
        ("model", 5),
        ("output_config", "json"),
        ("output_config", {"format": {"type": "json_schema"}}),
        ("output_config", {"format": {"type": "xml", "schema": {}}}),
        ("thinking", {"type": "deep"}),
        ("thinking", True),
        ("tools", {}),
        ("tools[0]", ["add"]),
        ("tools[0]", [{"type": 5, "name": "web_search"}]),
        ("tools[0]", [{"input_schema": {}}]),
        ("tools[0]", [{"name": "add", "input_schema": "x"}]),
        ("tool_choice", "auto"),
        ("tool_choice", {"type": "required"}),
        ("tool_choice", {"type": "any"}),
        ("tool_choice", {"type": "tool", "name": "add"}),
        ("system", 5),
    ],
)
def test_what_is_refused(name: str, value: Any):
    with pytest.raises(GatewayFault) as refused:
        anthropic.MESSAGES.read(asked(BODY | {name.partition("[")[0]: value}))
    assert refused.value.param.startswith(name)


def test_what_anthropic_would_run_is_left_out_and_named():
    search = {"type": "web_search_20250305", "name": "web_search"}
    call = read_call(BODY | {"tools": [search, TOOL], "container": "c", "mcp_servers": [{"url": "u"}]})
    assert [tool["function"]["name"] for tool in call.tools] == ["add"]
    assert call.omitted == ("container", "mcp_servers", "web_search_20250305")
    for choice in ({"type": "any"}, {"type": "tool", "name": "web_search"}):
        assert read_call(BODY | {"tools": [search], "tool_choice": choice}).tool_choice == "auto"
    with pytest.raises(GatewayFault, match="names none of the tools"):
        read_call(BODY | {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "web_search"}})


def test_a_placeholder_stands_for_what_a_text_model_cannot_read():
    image = {"type": "image", "source": {"type": "base64", "data": "xyz"}}
    pdf = {"type": "document", "source": {"type": "base64", "data": "xyz"}}
    note = {"type": "document", "source": {"type": "text", "data": "a note", "media_type": "text/plain"}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [_text("seen: "), image]}
    linked = {"type": "image", "source": {"type": "file", "file_id": "f"}}
    read = read_messages([{"role": "user", "content": [result, image, _text(" and "), pdf, linked, note]}])
    seen = "[image omitted: this model reads text only]"
    assert read == [
        {
            "role": "tool",
            "content": f"seen: {seen}",
            "omitted": {"image": 1},
            "media": [(6, seen, "xyz")],
            "tool_call_id": "c",
        },
        {
            "role": "user",
            "content": f"{seen} and [document omitted: this model reads text only]{seen}a note",
            "omitted": {"image": 2, "document": 1},
            "media": [(0, seen, "xyz"), (94, seen, None)],
        },
    ]
    searched = {"role": "assistant", "content": [{"type": "server_tool_use", "name": "f"}, _text("found")]}
    assert read_messages([*HELLO, searched])[1]["omitted"] == {"server_tool_use": 1}


def test_system_messages_stand_where_they_were_sent():
    later = {"role": "system", "content": [_text("be "), _text("brief")]}
    call = read_call(BODY | {"system": "be kind", "messages": [*HELLO, later]})
    assert [(message["role"], message["content"]) for message in call.messages] == [
        ("system", "be kind"), ("user", HELLO[0]["content"]), ("system", "be brief"),
    ]  # fmt: skip


def test_a_deferred_tool_is_loaded_by_a_reference():
    late = {"name": "late", "description": "Later", "input_schema": {"type": "object"}, "defer_loading": True}
    body = BODY | {"tools": [TOOL, late]}
    before = read_call(body)
    assert ([tool["function"]["name"] for tool in before.tools], before.loaded) == (["add"], [])
    with pytest.raises(GatewayFault, match="names none of the tools"):
        read_call(body | {"tool_choice": {"type": "tool", "name": "late"}})
    found = [{"type": "tool_reference", "tool_name": name} for name in ("late", "late", "unknown")]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": found}]}
    after = read_call(body | {"messages": [*HELLO, result], "tool_choice": {"type": "tool", "name": "late"}})
    assert after.tools == before.tools
    assert [tool["function"]["name"] for tool in after.loaded] == ["late"]
    assert after.tool_choice == "=late"
    once, twice, unknown = after.messages[-1]["content"].splitlines()
    assert json.loads(once) == json.loads(twice) == after.loaded[0]
    assert unknown == "unknown"


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        (None, "auto"),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "add"}, "=add"),
    ],
)
def test_tool_choice(choice: Any, read: str):
    assert read_call(BODY | {"tools": [TOOL], "tool_choice": choice}).tool_choice == read


def test_a_choice_of_no_tool():
    with pytest.raises(GatewayFault, match="names none"):
        read_call(BODY | {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}})


@pytest.mark.parametrize(
    ("thinking", "template"),
    [
        (None, {}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "enabled", "budget_tokens": 2048}, {"enable_thinking": True}),
        ({"type": "adaptive", "display": "summarized"}, {"enable_thinking": True}),
        ({"type": "between_tools"}, {"enable_thinking": True}),
    ],
)
def test_thinking(thinking: Any, template: dict[str, Any]):
    assert read_call(BODY | {"thinking": thinking}).template == template


# Answers


CALLS = [ToolCall("c", "f", '{"a": 1}'), ToolCall("d", "g", "[1, 2]")]
REPLIES = {
    "text": Reply("four"),
    "thought": Reply("four", "hm"),
    "only a thought": Reply("", "hm"),
    "nothing": Reply(),
    "calls": Reply("", "", CALLS),
    "all": Reply("let me see\u2028", "h\x85m", CALLS),
}


def events(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Events as the standard has them, each with its name and data on one line."""
    found = []
    for event in data.decode("utf-8", "surrogatepass").split("\n\n")[:-1]:
        name, said = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(said.removeprefix("data: "))))
    assert all(name == said["type"] for name, said in found)
    return found


EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def heard(data: bytes) -> Message:
    """What the SDK puts together; each event has to be one it knows."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for _, said in events(data):
        event = EVENT.validate_python(said)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    return Message.model_validate(snapshot.to_dict())


def exchange(**more: Any) -> anthropic.MessagesExchange:
    return anthropic.MessagesExchange(asked(BODY | {"stream": True} | more))


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("name", REPLIES)
def test_a_stream_says_what_a_whole_answer_says(name: str, finish: str):
    answered = answer(REPLIES[name], finish=finish)
    whole = Message.model_validate_json(exchange().whole(answered))
    same = heard(streamed(exchange(), answered))
    assert same.to_dict(exclude_none=True) == whole.to_dict(exclude_none=True)


def test_a_whole_answer():
    said = json.loads(exchange().whole(answer(REPLIES["all"])))
    assert said == {
        "id": "msg_u",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "h\x85m", "signature": "u"},
            {"type": "text", "text": "let me see\u2028"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "d", "name": "g", "input": {"__arguments__": "[1, 2]"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 2,
        },
    }


def test_events_in_order():
    pieces = [("h", ""), ("m", "let "), ("", "me see")]
    said = events(streamed(exchange(), answer(REPLIES["all"], prompt=7), *pieces))
    assert [(name, event.get("index")) for name, event in said] == [
        ("message_start", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("content_block_start", 2),
        ("content_block_delta", 2),
        ("content_block_stop", 2),
        ("content_block_start", 3),
        ("content_block_delta", 3),
        ("content_block_stop", 3),
        ("message_delta", None),
        ("message_stop", None),
    ]
    started = said[0][1]["message"]
    assert (started["content"], started["stop_reason"], started["usage"]["input_tokens"]) == ([], None, 7)
    starts = [event["content_block"] for name, event in said if name == "content_block_start"]
    assert starts[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert starts[1] == {"type": "text", "text": ""}
    assert starts[2] == {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    kinds = [event["delta"]["type"] for name, event in said if name == "content_block_delta"]
    assert kinds == ["thinking_delta"] * 2 + ["signature_delta"] + ["text_delta"] * 2 + ["input_json_delta"] * 2
    assert said[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert said[-2][1]["usage"]["output_tokens"] == 2


def test_a_thought_after_the_text_is_a_block_of_its_own():
    message = heard(streamed(exchange(), answer(Reply("ab", "xy")), ("x", "a"), ("y", "b")))
    assert [block.type for block in message.content] == ["thinking", "text"] * 2


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(), st.text()), max_size=4), st.text())
def test_any_text_comes_through(pieces: list[tuple[str, str]], argument: str):
    thought, text = ("".join(part) for part in zip(*pieces, strict=True)) if pieces else ("", "")
    call = ToolCall("c", "f", json.dumps({"a": argument}))
    data = streamed(exchange(), answer(Reply(text, thought, [call])), *pieces, ("", ""))
    assert data.decode("utf-8", "surrogatepass").splitlines() == data.decode("utf-8", "surrogatepass").split("\n")[:-1]
    message = heard(data)
    assert "".join(block.text for block in message.content if block.type == "text") == text
    assert "".join(block.thinking for block in message.content if block.type == "thinking") == thought
    assert message.content[-1].input == {"a": argument}


@pytest.mark.parametrize(
    ("reply", "finish", "reason", "stop"),
    [
        (Reply("x"), "stop", "end_turn", None),
        (Reply("x"), "length", "max_tokens", None),
        (Reply("x", stop="END"), "stop", "stop_sequence", "END"),
        (Reply("x", tool_calls=CALLS), "stop", "tool_use", None),
        (Reply("x", tool_calls=CALLS), "length", "max_tokens", None),
        (Reply("x", tool_calls=CALLS, stop="END"), "stop", "tool_use", None),
    ],
)
def test_stop_reasons(reply: Reply, finish: str, reason: str, stop: str | None):
    (outcome,) = answer(reply, finish=finish).outcomes
    assert anthropic.stop_fields(outcome) == {"stop_reason": reason, "stop_sequence": stop}


def test_what_a_turn_before_had_is_read_from_the_cache():
    answered = answer(Reply("x"), prompt=4)
    answered.outcomes[0].turn.keep = 3
    assert anthropic.usage(answered.outcomes[0]) == {
        "input_tokens": answered.outcomes[0].turn.prompt_length - 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": 2,
    }
    used = heard(streamed(exchange(), answered)).usage
    assert used.cache_read_input_tokens == 3


deep = '{"a":' * 200 + "1" + "}" * 200


@pytest.mark.parametrize(
    ("arguments", "given_input"),
    [
        ("{}", {}),
        ('{"a": NaN}', {"a": None}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        ("", {"__arguments__": ""}),
        ("null", {"__arguments__": "null"}),
        ("[1, 2]", {"__arguments__": "[1, 2]"}),
        ('"Paris"', {"__arguments__": '"Paris"'}),
        ("Paris", {"__arguments__": "Paris"}),
        ('{"a": "\\ud800"}', {"__arguments__": '{"a": "\\ud800"}'}),
        (deep, {"__arguments__": deep}),
    ],
)
def test_any_arguments_come_to_the_client_and_back(arguments: str, given_input: dict[str, Any]):
    """As an object where they are one, else as text; and the echo has the print of what was recorded."""
    reply = Reply("", "", [ToolCall("c", "f", arguments)])
    whole = Message.model_validate_json(exchange().whole(answer(reply)))
    for message in (whole, heard(streamed(exchange(), answer(reply)))):
        assert json.dumps(message.content[0].input) == json.dumps(given_input)
        body = {"messages": [*HELLO, {"role": "assistant", "content": [b.to_dict() for b in message.content]}]}
        (_, echo) = read_messages(read_json(json.dumps(body).encode())["messages"])
        assert hash_message(echo) == hash_message(reply.message())
        if "__arguments__" in given_input:  # then they are what OpenAI's wire reads, to the letter
            assert echo["tool_calls"][0]["function"]["arguments"] == parse_arguments(arguments)


def test_an_argument_that_only_looks_like_ours():
    given_input = {"__arguments__": "x", "b": 1}
    block = {"type": "tool_use", "id": "c", "name": "f", "input": given_input}
    (_, read) = read_messages([*HELLO, {"role": "assistant", "content": [block]}])
    assert read["tool_calls"][0]["function"]["arguments"] == given_input


def test_a_sign_of_life_is_a_ping():
    assert events(exchange().keep_alive()) == [("ping", {"type": "ping"})]


# Errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (410, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors(status: int, kind: str):
    fault = GatewayFault("what happened", status=status, code="the_code", param="p", hint="do this")
    refused = anthropic.refuse(fault)
    said = json.loads(refused.body)
    assert refused.status == status
    assert said.pop("request_id") == refused.headers["request-id"]
    shape = {"type": kind, "message": "what happened (do this)", "details": {"error_code": "the_code"}}
    assert said == {"type": "error", "error": shape}
    assert json.loads(anthropic.refuse(fault).body)["request_id"] != refused.headers["request-id"]
    ((name, event),) = events(exchange().fail(fault))
    assert (name, event["error"]) == ("error", shape)
    assert event["request_id"].startswith("req_")


def test_the_refusal_of_a_long_prompt_has_the_words_agents_look_for():
    said = json.loads(anthropic.refuse(GatewayFault("64 at most", status=400, code="context_length_exceeded")).body)
    assert said["error"]["message"] == "prompt is too long: 64 at most"


@given(st.text())
def test_an_error_is_one_line_to_everybody(message: str):
    data = exchange().fail(GatewayFault(message, status=400, code="x")).decode("utf-8", "surrogatepass")
    assert len(data.rstrip("\n").splitlines()) == 2


def test_the_first_piece_may_be_empty():
    begun = exchange()
    begun.begin(answer(Reply()))
    assert [name for name, _ in events(begun.piece(0, "", "", NOTHING))] == ["message_start"]
    assert begun.piece(0, "", "", NOTHING) == b""
