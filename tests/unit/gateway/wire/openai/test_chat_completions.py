"""OpenAI's wire: whatever JSON comes in is a call or a refusal; what goes out is what clients read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcore_rl_toolkit.engine.base import Sampling
from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.call.chat import Reply, ToolCall
from agentcore_rl_toolkit.gateway.record.session import read_settings
from agentcore_rl_toolkit.gateway.record.turn import Tokens
from agentcore_rl_toolkit.gateway.wire.json_body import read_json
from agentcore_rl_toolkit.gateway.wire.openai import chat_completions as openai
from agentcore_rl_toolkit.gateway.wire.openai import completions
from agentcore_rl_toolkit.gateway.wire.openai.sampling import read_sampling
from support.wire import NOTHING, answer, asked, read_chat, read_chat_messages, streamed

HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1e308, float("inf")])
)
texts = st.one_of(st.text(max_size=5), st.sampled_from(["auto", "none", "required", "user", "tool", "\0", "5"]))
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
keys = st.one_of(
    st.text(max_size=3),
    st.sampled_from(
        [
            "role",
            "content",
            "type",
            "text",
            "function",
            "name",
            "arguments",
            "json_schema",
            "schema",
            "id",
            "mode",
            "tools",
        ]
    ),
)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)

FIELDS = [
    "messages",
    "tools",
    "tool_choice",
    "n",
    "model",
    "logprobs",
    "top_logprobs",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "ignore_eos",
    "response_format",
    "chat_template_kwargs",
    "prompt",
    "echo",
    "suffix",
]


def read_text(body: dict[str, Any]) -> Any:
    return completions.TEXT.read(asked(body)).call


def refused_or(read: Any, *args: Any) -> Any:
    """What `read` gives, or the refusal, which has to be one to show to an agent."""
    try:
        return read(*args)
    except GatewayFault as fault:
        refused = fault
    assert refused.status == 400
    assert refused.param is not None or refused.code == "invalid_json"
    assert len(refused.message) < 500
    json.loads(openai.error(refused))
    return None


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(FIELDS), anything)
def test_any_value_of_any_field_is_read_or_refused(name: str, value: Any):
    refused_or(read_chat, {"messages": HELLO, "tools": [TOOL], name: value})
    refused_or(read_text, {"prompt": "x", name: value})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.dictionaries(keys, anything, max_size=4) | anything, max_size=3))
def test_any_messages_are_read_or_refused(messages: list[Any]):
    read = refused_or(read_chat_messages, messages)
    for message in read or []:
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["session_id", "sampling", "enforced", "context_limit", "metadata", "ttl_seconds", "model", "x"]),
    anything,
)
def test_any_settings_are_read_or_refused(name: str, value: Any):
    refused_or(read_settings, {name: value})


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40) | anything.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_an_object_or_refused(body: bytes):
    read = refused_or(read_json, body)
    assert read is None or isinstance(read, dict)
    if read is not None:
        json.dumps(read, ensure_ascii=False).encode()  # no lone surrogate is left


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"a": NaN}', b'{"a": 1e999}', b"\xff", b'{"a": 1}x', b"{" * 99999]
)
def test_broken_bodies(body: bytes):
    with pytest.raises(GatewayFault) as refused:
        read_json(body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


@pytest.mark.parametrize(("depth", "fine"), [(99, True), (100, False), (900, False), (50_000, False)])
def test_nesting_has_a_limit(depth: int, fine: bool):
    body = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    if fine:
        assert read_json(body)
    else:
        with pytest.raises(GatewayFault, match=r"JSON|deep"):
            read_json(body)


def test_lone_surrogates_become_replacement_characters():
    assert read_json(b'{"a\\ud800": ["\\udc00x", "\\ud83d\\ude00"]}') == {"a\ufffd": ["\ufffdx", "\U0001f600"]}


# Requests


def test_messages_in_canonical_form():
    read = read_chat_messages(
        [
            {"role": "developer", "content": "be short", "name": "x"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning": "hm",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "name": "f", "content": "3"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": None, "refusal": "never"},
        ]
    )
    assert read == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "ab"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c", "name": "f"},
        {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "never"},
    ]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "function", "content": "x"}, "role is 'function'"),
        ({"content": "x"}, "role is missing"),
        ({"role": "user", "content": 5}, "content is 5"),
        ({"role": "assistant", "tool_calls": {}, "content": [{"type": "x"}]}, "tool_calls is {}"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "function.name is missing"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}, "arguments"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "send tool_calls"),
        ("x", "is 'x': expected `object`"),
    ],
)
def test_messages_that_are_refused(message: Any, why: str):
    with pytest.raises(GatewayFault, match=why) as refused:
        read_chat_messages([*HELLO, message])
    assert refused.value.param.startswith("messages[1]")


def test_what_would_be_ignored_is_refused():
    with pytest.raises(GatewayFault, match="send tools"):
        read_chat({"messages": HELLO, "functions": [{"name": "f"}], "function_call": "auto"})
    assert read_chat({"messages": HELLO, "functions": []}).tools == []
    with pytest.raises(GatewayFault, match="best_of is not supported"):
        read_text({"prompt": "x", "n": 2, "best_of": 3})
    assert read_text({"prompt": "x", "n": 2, "best_of": 2}).n == 2
    for several in (["a", "b"], [[1, 2], [3]]):
        with pytest.raises(GatewayFault, match="several prompts; send one"):
            read_text({"prompt": several})
    with pytest.raises(GatewayFault, match="neither a text nor a list"):
        read_text({"prompt": [1, "a"]})


def test_parts_of_characters_have_no_bytes():
    read = openai.chat_logprobs(["é", "\ufffd"], [-1.0, -2.0], [[("é", -1.0), ("\ufffd", -3.0), ("\ufffd", -4.0)], []])[
        "content"
    ]
    assert [entry["bytes"] for entry in read] == [[195, 169], None]
    assert [(entry["bytes"], entry["logprob"]) for entry in read[0]["top_logprobs"]] == [
        ([195, 169], -1.0),
        (None, -3.0),
        (None, -4.0),
    ]
    (texts,) = completions.text_logprobs(["é"], [-1.0], [[("\ufffd", -3.0), ("\ufffd", -4.0)]])["top_logprobs"]
    assert texts == {"\ufffd": -3.0}


def test_a_request_without_a_user_turn_is_refused():
    with pytest.raises(GatewayFault, match="no user turn"):
        read_chat_messages([{"role": "system", "content": "x"}, {"role": "assistant", "content": "y"}])
    with pytest.raises(GatewayFault, match="messages is "):
        read_chat_messages([])


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "add"}}, "=add"),
        (allowed("auto", "add"), "auto"),
        (allowed("required", "add"), "required"),
    ],
)
def test_tool_choice(choice: Any, read: str):
    assert read_chat({"messages": HELLO, "tools": [TOOL], "tool_choice": choice}).tool_choice == read


def test_one_of_several_tools_can_be_required():
    tools = [TOOL, {"type": "function", "function": {"name": "sub"}}]
    asked = {"messages": HELLO, "tools": tools}
    assert read_chat(asked | {"tool_choice": allowed("required", "sub")}).tool_choice == "=sub"
    with pytest.raises(GatewayFault, match="send just these in tools"):
        read_chat(asked | {"tool_choice": allowed("auto", "sub")})


@pytest.mark.parametrize("choice", ["required", {"function": {"name": "add"}}])
def test_a_choice_without_tools(choice: Any):
    with pytest.raises(GatewayFault, match="no tools"):
        read_chat({"messages": HELLO, "tool_choice": choice})


@pytest.mark.parametrize("choice", ["sub", {}, {"function": {"name": "sub"}}, {"function": {"name": ["add"]}}, 5])
def test_a_choice_of_no_tool(choice: Any):
    with pytest.raises(GatewayFault, match="names none"):
        read_chat({"messages": HELLO, "tools": [TOOL], "tool_choice": choice})


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"type": "custom", "custom": {"name": "add"}}, "'custom'; expected function"),
        ({"type": ["function"]}, "expected function or allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}, "needs a mode"),
        ({"type": "allowed_tools"}, "needs a mode"),
        (allowed("auto", "sub"), "names none"),
    ],
)
def test_a_choice_of_another_kind(choice: Any, why: str):
    with pytest.raises(GatewayFault, match=why):
        read_chat({"messages": HELLO, "tools": [TOOL], "tool_choice": choice})


def test_sampling():
    read = read_sampling(
        {
            "temperature": 0,
            "top_k": -1,
            "max_tokens": 5,
            "max_completion_tokens": 7.0,
            "stop": ["a", ""],
            "logit_bias": {"5": 1},
            "response_format": {"type": "json_object"},
        }
    )
    assert read == Sampling(
        temperature=0, top_k=-1, max_tokens=7, stop=("a",), logit_bias=((5, 1.0),), json_schema={"type": "object"}
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", True),
        ("top_p", 1.1),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("seed", "1"),
        ("stop", 5),
        ("stop", ["x"] * 17),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": 10**400}),
        ("ignore_eos", 1),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
    ],
)
def test_sampling_that_is_refused(name: str, value: Any):
    with pytest.raises(GatewayFault) as refused:
        read_sampling({name: value})
    assert refused.value.param.startswith(name)


def test_an_agent_brings_no_chat_template():
    with pytest.raises(GatewayFault, match="chat_template_kwargs"):
        read_chat({"messages": HELLO, "chat_template_kwargs": {"chat_template": "{{ x }}"}})
    assert read_chat({"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}}).template


@pytest.mark.parametrize("prompt", [None, "", [], [[]], ["a", "b"], [1.5], [True], [-1], {}, [[1], [2]]])
def test_prompts_that_are_refused(prompt: Any):
    with pytest.raises(GatewayFault) as refused:
        read_text({"prompt": prompt})
    assert refused.value.param.startswith("prompt")


# Answers


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(event.removeprefix("data: ")) for event in data.decode().split("\n\n") if event]


def test_chunks():
    call = ToolCall("c", "f", '{"a": 1}')
    exchange = openai.ChatExchange(asked({"messages": HELLO, "stream": True}))
    data = streamed(exchange, answer(Reply("four", "hm", [call, call])))
    done = b"data: [DONE]\n\n"
    assert data.endswith(done)
    data = data.removesuffix(done)
    first, piece, *calls, last = (event["choices"][0] for event in events(data))
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert piece["delta"] == {"reasoning_content": "hm", "content": "four"}
    each = [call for event in calls for call in event["delta"]["tool_calls"]]
    assert [(c["index"], c["id"], c["function"]["arguments"]) for c in each] == [
        (0, "c", '{"a": 1}'), (1, "c", '{"a": 1}')
    ]  # fmt: skip
    assert len(calls) == 2  # some clients read the first call of a chunk only
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")
    assert {event["id"] for event in events(data)} == {"chatcmpl-u"}


def test_chunks_of_plain_completions():
    exchange = completions.TextExchange(asked({"prompt": "a", "logprobs": 1, "stream": True}))
    exchange.begin(answer(Reply("four")))
    said = [exchange.piece(1, "", "four", Tokens((7, 8), (-0.5, -1.0), ())) for _ in range(2)]
    first, second = (events(data)[0] for data in said)
    (choice,) = first["choices"]
    assert (first["object"], choice["text"], choice["index"]) == ("text_completion", "four", 1)
    assert choice["logprobs"]["text_offset"] == [0, 3]
    assert second["choices"][0]["logprobs"]["text_offset"] == [6, 9]  # they count from the beginning of the text


@given(st.text())
def test_an_event_is_one_line_to_everybody(text: str):
    exchange = openai.ChatExchange(asked({"messages": HELLO, "stream": True}))
    exchange.begin(answer(Reply()))
    exchange.piece(0, "", "", NOTHING)
    data = exchange.piece(0, "", text, NOTHING)
    assert len(data.decode("utf-8", "surrogatepass").rstrip("\n").splitlines()) == bool(text)
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events(data)) == text
    failed = exchange.fail(GatewayFault(text, status=400, code="x"))
    assert len(failed.decode("utf-8", "surrogatepass").rstrip("\n").splitlines()) == 1


def test_missing_logprobs_are_null_not_zero():
    known = openai.chat_logprobs(["a", "b"], [-0.5, float("nan")], [[("a", -0.5), ("c", float("-inf"))], []])
    assert [entry["logprob"] for entry in known["content"]] == [-0.5, None]
    assert [top["logprob"] for top in known["content"][0]["top_logprobs"]] == [-0.5, None]
    assert completions.text_logprobs(["ab", "c"], [-0.5, float("nan")], [[], []]) == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-0.5, None],
        "top_logprobs": [{}, {}],
        "text_offset": [0, 2],
    }


def test_a_message_with_calls_has_no_empty_text():
    call = ToolCall("c", "f", "{}")
    assert openai.reply_message(Reply(tool_calls=[call]))["content"] is None
    assert openai.reply_message(Reply(content="x", tool_calls=[call]))["content"] == "x"
    assert openai.reply_message(Reply())["content"] == ""
    for finish, reason in [("stop", "tool_calls"), ("length", "length")]:
        (outcome,) = answer(Reply(tool_calls=[call]), finish=finish).outcomes
        assert openai.finish_reason(outcome) == reason


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (410, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_errors(status: int, kind: str):
    error = json.loads(
        openai.error(GatewayFault("what happened", status=status, code="code", param="p", hint="do this"))
    )["error"]
    assert error == {"message": "what happened (do this)", "type": kind, "param": "p", "code": "code"}
