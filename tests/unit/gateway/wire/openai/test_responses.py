"""OpenAI's Responses: items in are the chat wire's messages; items and events out are what the SDK reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from agentcore_rl_toolkit.engine.base import Sampling
from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.call.chat import Reply, ToolCall
from agentcore_rl_toolkit.gateway.record.conversation import StoredConversation
from agentcore_rl_toolkit.gateway.record.session import Session, SessionSettings
from agentcore_rl_toolkit.gateway.record.turn import Tokens
from agentcore_rl_toolkit.gateway.wire.openai import chat_completions as openai
from agentcore_rl_toolkit.gateway.wire.openai.response_items import read_items
from agentcore_rl_toolkit.gateway.wire.openai.response_output import ResponseOutput
from agentcore_rl_toolkit.gateway.wire.openai.responses import RESPONSES, ResponseExchange
from support.wire import NOTHING, answer, asked, read_chat_messages, streamed

ADD = {"type": "function", "name": "add", "description": "adds", "parameters": {"type": "object"}, "strict": True}
SUB = {"type": "function", "name": "sub"}
ONE, TWO = "0123456789abcdef", "fedcba9876543210"
CALL = ToolCall("call_u_0", "add", '{"a": 1}')

FINISHES = ["stop", "length"]

event_type: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([0, -1, 1, 2**31, 2**64, 10**400, float("inf")]))
WORDS = [
    "auto",
    "none",
    "required",
    "function",
    "allowed_tools",
    "message",
    "function_call",
    "function_call_output",
    "reasoning",
    "item_reference",
    *("namespace", "custom", "custom_tool_call", "custom_tool_call_output"),
    *("tool_search", "tool_search_call", "tool_search_output", "client", "additional_tools"),
    "user",
    "assistant",
    "input_text",
    "json_schema",
    "add",
    "{}",
    "message.output_text.logprobs",
]
KEYS = [
    "type",
    "role",
    "content",
    "text",
    "id",
    "call_id",
    "name",
    "arguments",
    "output",
    "summary",
    "format",
    "schema",
    "mode",
    "tools",
    "parameters",
    *("namespace", "input", "execution", "defer_loading"),
]
texts = st.one_of(st.text(max_size=5), st.sampled_from([*WORDS, f"resp_{ONE}", f"msg_{ONE}_0", f"call_{TWO}_1"]))
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
keys = st.one_of(st.text(max_size=3), st.sampled_from(KEYS))
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)
FIELDS = [
    *("input", "instructions", "tools", "tool_choice", "previous_response_id", "store", "stream", "model", "text"),
    *("max_output_tokens", "temperature", "top_p", "top_logprobs", "include", "reasoning", "metadata", "truncation"),
    *("user", "background", "conversation", "prompt", "parallel_tool_calls", "n", "stop", "seed", "max_tokens"),
    *("chat_template_kwargs", "response_format", "logit_bias"),
]


def session(**kept: StoredConversation) -> Session:
    known = Session(SessionSettings("s"), "k", 0.0)
    known.conversations.update(kept)
    return known


STORED = StoredConversation(None, [{"role": "user", "content": "hi"}], Reply("four", "hm", [CALL]), 0)


def exchange(**body: Any) -> ResponseExchange:
    return ResponseExchange(asked({"input": "hi"} | body, "v1/responses", session(**{ONE: STORED})))


def read(**body: Any) -> Any:
    return exchange(**body).call


def refused(**body: Any) -> GatewayFault:
    with pytest.raises(GatewayFault) as fault:
        exchange(**body)
    assert fault.value.status == 400
    return fault.value


def events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each checked against the SDK's types."""
    read = []
    for event in data.decode("utf-8", "surrogatepass").split("\n\n")[:-1]:
        kind, said = event.split("\n")
        read.append(json.loads(said.removeprefix("data: ")))
        assert kind == f"event: {read[-1]['type']}"
        event_type.validate_python(read[-1])
    assert [event["sequence_number"] for event in read] == list(range(len(read)))
    return read


def whole(reply: Reply, finish: str = "stop", **body: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(exchange(**body).whole(answer(reply, finish=finish)))
    Response.model_validate(data)
    return data


# Whatever comes in


def read_or_refused(read: Any) -> Any:
    """What it gives, or None for a refusal, which has to be one to show to an agent."""
    try:
        return read()
    except GatewayFault as fault:
        why = fault
    refusal = RESPONSES.refuse(why)
    assert refusal.status == why.status == 400
    assert set(json.loads(refusal.body)["error"]) == {"message", "type", "param", "code"}
    assert why.param
    assert len(why.message) < 500
    return None


@settings(max_examples=800, deadline=None)
@given(st.sampled_from(FIELDS), anything)
def test_any_value_of_any_field_is_read_or_refused(name: str, value: Any):
    made = read_or_refused(lambda: exchange(**{"tools": [ADD], name: value}))
    if made is not None:
        assert json.loads(made.whole(answer(Reply("four"))))["status"] == "completed"


@settings(max_examples=600, deadline=None)
@given(st.lists(st.dictionaries(keys, anything, max_size=5) | anything, max_size=4))
def test_any_items_are_read_or_refused(items: list[Any]):
    for message in read_or_refused(lambda: read_items(items, {ONE: STORED})) or ():
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)


# Items and messages


def items_of(uid: str, reply: Reply) -> list[dict[str, Any]]:
    return ResponseOutput.of(uid, reply)


def calls(uid: str, *names: str) -> list[ToolCall]:
    return [ToolCall(f"call_{uid}_{place}", name, '{"b": 1, "a": 2}') for place, name in enumerate(names)]


def result(call: ToolCall, output: Any = "3") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.id, "output": output}


def test_a_conversation_is_what_the_chat_wire_makes_of_it():
    first, second = Reply("let me see", "hm", calls(ONE, "f", "g")), Reply("", "", calls(TWO, "f"))
    chat = [
        {"role": "system", "content": "be short"},
        {"role": "developer", "content": "shorter"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        openai.reply_message(first),
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "3"},
        {"role": "tool", "tool_call_id": first.tool_calls[1].id, "content": "45"},
        openai.reply_message(second),
        {"role": "tool", "tool_call_id": second.tool_calls[0].id, "content": ""},
        openai.reply_message(Reply("done")),
        {"role": "user", "content": "thanks"},
    ]
    parts = [{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "5"}]
    call = read(
        instructions="be short",
        input=[
            {"role": "developer", "content": "shorter"},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            *items_of(ONE, first),
            result(first.tool_calls[0]),
            result(first.tool_calls[1], parts),
            *items_of(TWO, second),
            result(second.tool_calls[0], ""),
            *items_of("0" * 16, Reply("done")),
            {"type": "message", "role": "user", "content": "thanks"},
        ],
        tools=[ADD, SUB],
    )
    assert call.messages == read_chat_messages(chat)
    assert call.tools == [
        {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "sub", "parameters": {}}},
    ]


def test_a_text_is_what_the_user_says():
    assert read(input="hi").messages == [{"role": "user", "content": "hi"}]


def without(items: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in names} for item in items]


def outline(items: list[dict[str, Any]]) -> list[Any]:
    """Roles, with the assistant's texts and the names of its calls."""
    return [
        (m["content"], *(c["function"]["name"] for c in m.get("tool_calls", ())))
        if m["role"] == "assistant"
        else m["role"]
        for m in read_items(items, {})
    ]


TURN = items_of(ONE, Reply("see", "hm", calls(ONE, "f", "g")))
OTHER = items_of(TWO, Reply("", "so", calls(TWO, "h")))
F, G = (result(call) for call in calls(ONE, "f", "g"))


@pytest.mark.parametrize(
    ("items", "read"),
    [
        (TURN, [("see", "f", "g")]),
        (without(TURN, "id"), [("see", "f", "g")]),
        (without(TURN, "id", "call_id"), [("see", "f", "g")]),
        (TURN[1:], [("see", "f", "g")]),
        ([TURN[2], TURN[1], TURN[0], TURN[3]], [("see", "f", "g")]),
        (without([TURN[2], TURN[0], TURN[1], TURN[3]], "id", "call_id"), [("see", "f", "g")]),
        (without([TURN[1], TURN[2], TURN[0], TURN[3]], "id", "call_id"), [("see", "f", "g")]),
        # calls among results, as a loop over a response's output sends them
        ([*TURN[:3], F, TURN[3], G], [("see", "f", "g"), "tool", "tool"]),
        (without([*TURN[:3], F, TURN[3], G], "id"), [("see", "f", "g"), "tool", "tool"]),
        # another turn, though nobody said anything in between
        ([*items_of(ONE, Reply("a")), *items_of(TWO, Reply("b"))], [("a",), ("b",)]),
        ([*items_of(ONE, Reply("a")), *OTHER], [("a",), ("", "h")]),
        ([*items_of(ONE, Reply("")), *OTHER], [("",), ("", "h")]),
        (without([*items_of(ONE, Reply("a")), *items_of(TWO, Reply("b"))], "id"), [("a",), ("b",)]),
        (without([*items_of(ONE, Reply("a")), *items_of(TWO, Reply("b", "hm"))], "id"), [("a",), ("b",)]),
        # results end a turn, whatever the ids say
        ([TURN[2], F, OTHER[-1]], [("", "f"), "tool", ("", "h")]),
        (without([TURN[2], F, OTHER[-1]], "id", "call_id"), [("", "f"), "tool", ("", "h")]),
        # ids that are not ours say nothing
        ([TURN[1] | {"id": "msg_1"}, TURN[2] | {"id": "fc_2", "call_id": "x"}], [("see", "f")]),
        # the user has spoken: a turn that comes again is another one
        (
            [*TURN[1:3], F, {"role": "user", "content": "x"}, *TURN[1:3], F],
            [("see", "f"), "tool", "user", ("see", "f"), "tool"],
        ),
    ],
)
def test_what_is_one_turn(items: list[dict[str, Any]], read: list[Any]):
    assert outline(items) == read


def test_reasoning_comes_back_in_any_form():
    (message,) = read_items(items_of(ONE, Reply("four", "hm")), {})
    assert message == {"role": "assistant", "content": "four", "reasoning_content": "hm"}
    summary = [{"type": "summary_text", "text": "h"}, {"type": "summary_text", "text": "m"}]
    for item in ({"summary": summary}, {"summary": summary, "content": None}, {"summary": summary, "content": []}):
        assert read_items([{"type": "reasoning"} | item], {})[0]["reasoning_content"] == "hm"
    (message,) = read_items([{"type": "reasoning", "summary": [], "encrypted_content": "x"}], {})
    assert "reasoning_content" not in message


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ({"type": "function_call_output", "call_id": "c", "output": {"a": 1}}, "output is "),
        ({"role": "tool", "content": "x"}, "role is 'tool'"),
        ({"role": ["user"], "content": "x"}, "role is"),
        ({"type": "compaction", "id": "x"}, "'compaction', which is not supported"),
        ({"type": "custom_tool_call", "name": "f", "input": {}}, "input is {}"),
        ({"type": "function_call", "arguments": "{}"}, "name is missing"),
        ({"type": "function_call", "name": "f", "arguments": {}}, "expected JSON text"),
        ({"type": "reasoning", "summary": "hm"}, "summary is 'hm'"),
        ({}, "type is None"),
        ("x", "expected `object`"),
    ],
)
def test_items_that_are_refused(item: Any, why: str):
    fault = refused(input=[{"role": "user", "content": "x"}, item])
    assert why in fault.message
    assert fault.param.startswith("input[1]")


def test_a_request_without_a_user_turn_is_refused():
    assert refused(input=[]).param == "input"
    assert refused(input=None, instructions="be short").param == "input"
    assert "no user turn" in refused(input=[{"role": "system", "content": "x"}]).message
    assert "input is 5" in refused(input=5).message


def test_arguments_that_are_not_an_object_stay_as_they_are():
    call = ToolCall("call_u_0", "add", "not json")
    output = whole(Reply(tool_calls=[call]))["output"]
    assert [item["arguments"] for item in output] == ["not json"]
    (message,) = read_items(output, {})
    assert message == read_chat_messages([openai.reply_message(Reply(tool_calls=[call])), {"role": "user"}])[0]


# References to what a session has stored


def test_a_call_continues_a_response():
    call = read(previous_response_id=f"resp_{ONE}", input=[result(CALL)], instructions="be short")
    assert call.messages == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "hi"},
        read_chat_messages([openai.reply_message(STORED.reply), {"role": "user"}])[0],
        {"role": "tool", "content": "3", "tool_call_id": "call_u_0"},
    ]
    assert call.remember == 1
    assert read(previous_response_id=f"resp_{ONE}", input=None).messages[-1]["role"] == "assistant"


@pytest.mark.parametrize("name", [ONE, f"resp_{TWO}", f"msg_{ONE}", "resp_"])
def test_a_response_that_is_not_there(name: str):
    fault = refused(previous_response_id=name)
    assert (fault.code, fault.param) == ("previous_response_not_found", "previous_response_id")


@pytest.mark.parametrize(("store", "kept"), [(None, 0), (True, 0), (False, None)])
def test_what_is_stored(store: Any, kept: int | None):
    assert read(store=store).remember == kept
    assert whole(Reply("x"), store=store)["store"] is (kept is not None)


def test_references_to_items():
    reply = Reply("see", "hm", calls(ONE, "f", "g"))
    kept = {ONE: StoredConversation(None, [], reply, 0)}
    items = items_of(ONE, reply)
    for kind in ({"type": "item_reference"}, {}):
        references = [kind | {"id": item["id"]} for item in items]
        assert read_items(references, kept) == read_items(items, {})
    for name in (f"msg_{ONE}_7", f"msg_{TWO}_0", "msg_1", None, 5):
        with pytest.raises(GatewayFault, match="not an item of a response") as fault:
            read_items([{"type": "item_reference", "id": name}], kept)
        assert "send the item itself" in fault.value.message


# Settings


@pytest.mark.parametrize("tool", [{"name": "x"}, {"type": "custom"}, {"type": "namespace", "tools": []}, 5])
def test_tools_that_are_refused(tool: Any):
    assert refused(tools=[ADD, tool]).param.startswith("tools[1]")


def test_what_openai_would_run_is_left_out_and_named():
    tools = [{"type": "web_search"}, ADD, {"type": "mcp", "server_label": "x"}, {"type": "tool_search"}]
    items = [{"role": "user", "content": "hi"}, {"type": "web_search_call", "id": "x"}]
    call = read(tools=tools, input=items, tool_choice={"type": "web_search"})
    assert [tool["function"]["name"] for tool in call.tools] == ["add"]
    assert call.omitted == ("web_search", "mcp", "tool_search", "web_search_call")
    assert call.tool_choice == "auto"
    assert read(tools=[{"type": "web_search"}], tool_choice="required").tool_choice == "auto"


def test_a_function_needs_a_name():
    assert refused(tools=[{"type": "function"}]).param == "tools[0]"
    assert refused(tools={}).param == "tools"


def named(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "name": name} for name in names]


@pytest.mark.parametrize(
    ("choice", "read_as"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "add"}, "=add"),
        ({"type": "allowed_tools", "mode": "auto", "tools": named("add", "sub")}, "auto"),
        ({"type": "allowed_tools", "mode": "required", "tools": named("sub", "add")}, "required"),
        ({"type": "allowed_tools", "mode": "required", "tools": named("sub")}, "=sub"),
    ],
)
def test_tool_choice(choice: Any, read_as: str):
    assert read(tools=[ADD, SUB], tool_choice=choice).tool_choice == read_as


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"type": "function", "name": "mul"}, "names none"),
        ("mul", "names none"),
        ({"name": "mul"}, "names none"),
        ({"type": "web_search"}, "'web_search'; expected function"),
        ({"type": "allowed_tools", "mode": "auto", "tools": named("add")}, "send just these in tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "send just these in tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": named("mul")}, "names none"),
        ({"type": "allowed_tools", "mode": "never", "tools": named("add")}, "needs a mode"),
        ({"type": "allowed_tools", "mode": "auto"}, "needs a mode"),
    ],
)
def test_tool_choice_that_is_refused(choice: Any, why: str):
    fault = refused(tools=[ADD, SUB], tool_choice=choice)
    assert why in fault.message
    assert fault.param == "tool_choice"


def test_some_tools_of_several_can_not_be_required():
    some = {"type": "allowed_tools", "mode": "required", "tools": named("add", "sub")}
    assert "send just these" in refused(tools=[ADD, SUB, *named("mul")], tool_choice=some).message


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "add"}])
def test_a_choice_without_tools(choice: Any):
    assert "no tools" in refused(tool_choice=choice).message


def test_sampling():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    call = read(
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.9,
        text={"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}, "verbosity": "low"},
        top_logprobs=2,
        stop=["x"],
        seed=3,
        max_tokens=100,
        chat_template_kwargs={"enable_thinking": False},
    )
    assert call.sampling == Sampling(
        max_tokens=7, temperature=0.5, top_p=0.9, seed=3, stop=("x",), top_logprobs=2, json_schema=schema
    )
    assert (call.logprobs, call.template) == (True, {"enable_thinking": False})
    assert read(text={"format": {"type": "json_object"}}).sampling.json_schema == {"type": "object"}
    for text in (None, {}, {"format": {"type": "text"}}, {"verbosity": "high"}):
        assert read(text=text).sampling == Sampling()
    assert read(include=["message.output_text.logprobs"]).logprobs
    assert not read(include=["reasoning.encrypted_content"], top_logprobs=0).logprobs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_output_tokens", 0),
        ("max_output_tokens", "5"),
        ("temperature", -1),
        ("top_p", 2),
        ("top_logprobs", 21),
        ("include", "x"),
        ("text", {"format": {"type": "json_schema"}}),
        ("text", {"format": "json"}),
        ("text", "json"),
        ("n", 2),
        ("store", "yes"),
        ("stream", 1),
        ("instructions", ["x"]),
        ("metadata", "x"),
        ("reasoning", "high"),
        ("background", True),
        ("conversation", {"id": "conv_1"}),
        ("prompt", {"id": "pmpt_1"}),
        ("parallel_tool_calls", "no"),
        ("chat_template_kwargs", {"chat_template": "x"}),
    ],
)
def test_settings_that_are_refused(name: str, value: Any):
    assert refused(**{name: value}).param.startswith(name)


def test_harmless_settings_are_echoed():
    said = {
        "metadata": {"a": "b"},
        "reasoning": {"effort": "high", "summary": "auto"},
        "truncation": "auto",
        "user": "me",
        "parallel_tool_calls": False,
        "instructions": "be short",
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.5,
        "background": False,
        "tool_choice": {"type": "function", "name": "add"},
        "tools": [ADD],
    }
    response = whole(Reply("x"), service_tier="flex", safety_identifier="x", prompt_cache_key="y", **said)
    assert {name: response[name] for name in said} == said
    plain = whole(Reply("x"))
    assert (plain["tool_choice"], plain["parallel_tool_calls"], plain["tools"]) == ("auto", True, [])
    assert (plain["truncation"], plain["metadata"], plain["text"]) == ("disabled", {}, {"format": {"type": "text"}})


# Answers


def test_a_response():
    response = whole(Reply("four", "hm", [CALL]))
    assert (response["id"], response["object"], response["created_at"]) == ("resp_u", "response", 1)
    assert (response["model"], response["status"], response["incomplete_details"]) == ("m", "completed", None)
    assert response["output"] == [
        {
            "id": "rs_u_0",
            "type": "reasoning",
            "status": "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {
            "id": "msg_u_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "four", "annotations": [], "logprobs": []}],
        },
        {
            "id": "fc_u_2",
            "type": "function_call",
            "call_id": "call_u_0",
            "name": "add",
            "arguments": '{"a": 1}',
            "status": "completed",
        },
    ]
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    }


def test_tokens_of_the_prompt_that_were_there_before():
    answered = answer(Reply("x"))
    answered.outcomes[0].turn.keep = 2
    usage = json.loads(exchange().whole(answered))["usage"]
    assert (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (3, 2)


@pytest.mark.parametrize(
    ("thought", "count"), [("<0>", 1), ("<0><1>", 2), ("<1><2>", 3), ("<4>", 5), ("x", 0), ("", 0)]
)
def test_tokens_of_the_reasoning(thought: str, count: int):
    usage = json.loads(exchange().whole(answer(Reply("x", thought), sampled=5)))["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] == count


def test_a_truncated_reply_is_incomplete():
    response = whole(Reply("fo", "hm"), finish="length")
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    response = whole(Reply("fo", tool_calls=[CALL]), finish="length")
    assert [item["status"] for item in response["output"]] == ["completed", "completed"]


@pytest.mark.parametrize("reasoning", ["", "hm"])
def test_an_empty_reply_is_an_empty_message_to_echo(reasoning: str):
    output = whole(Reply("", reasoning))["output"]
    assert output[-1]["content"][0]["text"] == ""
    (message,) = read_items(output, {})
    assert message["content"] == ""
    assert not any(item["type"] == "message" for item in whole(Reply("", reasoning, [CALL]))["output"])


def test_events_in_order():
    made = exchange(stream=True)
    assert made.stream
    data = streamed(made, answer(Reply("four", "hm", [CALL, CALL])), ("h", ""), ("m", "fo"), ("", "ur"))
    said = events(data)
    assert [event["type"].removeprefix("response.") for event in said] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"] * 2,
        "completed",
    ]
    places = [event["output_index"] for event in said if "output_index" in event]
    assert places == [0] * 7 + [1] * 7 + [2] * 4 + [3] * 4
    output = said[-1]["response"]["output"]
    done = [event["item"] for event in said if event["type"] == "response.output_item.done"]
    added = [event["item"] for event in said if event["type"] == "response.output_item.added"]
    assert output == done
    assert [item["status"] for item in added] == ["in_progress"] * 4
    assert [item.get("content", item.get("arguments")) for item in added] == [[], [], "", ""]
    for event in said:
        if "item_id" in event:
            assert event["item_id"] == output[event["output_index"]]["id"]
    assert said[0]["response"]["status"] == said[1]["response"]["status"] == "in_progress"
    assert said[0]["response"]["output"] == []
    assert said[0]["response"]["usage"] is None


def test_all_in_one_piece():
    said = events(streamed(exchange(stream=True), answer(Reply("four", "hm", [CALL]))))
    assert [event["response"]["output"] for event in said[:2]] == [[], []]
    assert len(said[-1]["response"]["output"]) == 3


def test_a_stream_ends_as_it_ended():
    said = events(streamed(exchange(stream=True), answer(Reply("fo"), finish="length"), ("", "fo")))
    assert said[-1]["type"] == "response.incomplete"
    assert said[-1]["response"]["status"] == "incomplete"
    assert said[-2]["item"]["status"] == "incomplete"
    assert not any(event["type"] == "response.completed" for event in said)


def test_reasoning_that_comes_late_is_an_item_of_its_own():
    said = events(streamed(exchange(stream=True), answer(Reply("four", "hm")), ("", "four"), ("hm", "")))
    output = said[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "reasoning", "message"]
    assert len({item["id"] for item in output}) == 3


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4), st.booleans(), st.sampled_from(FINISHES))
def test_a_stream_says_what_a_whole_answer_does(thoughts: list[str], said: list[str], call: bool, finish: str):
    reply = Reply("".join(said), "".join(thoughts), [CALL] if call else [])
    pieces = [("", ""), *((text, "") for text in thoughts), *(("", text) for text in said)]
    data = streamed(exchange(stream=True), answer(reply, finish=finish), *pieces)
    *_, last = events(data)
    once = json.loads(exchange().whole(answer(reply, finish=finish)))
    assert last["response"] == once
    assert last["response"]["status"] == ("incomplete" if finish == "length" else "completed")


@given(st.text())
def test_an_event_is_two_lines_to_everybody(text: str):
    made = exchange(stream=True)
    made.begin(answer(Reply()))
    made.piece(0, "", "x", NOTHING)
    data = made.piece(0, "", text, NOTHING)
    assert len(data.decode("utf-8", "surrogatepass").rstrip("\n").splitlines()) == 2 * bool(text)
    failed = made.fail(GatewayFault(text, status=400, code="x"))
    assert all(len(event.splitlines()) == 2 for event in failed.decode("utf-8", "surrogatepass").split("\n\n")[:-1])


def test_an_error_after_the_beginning():
    made = exchange(stream=True)
    made.begin(answer(Reply()))
    data = made.piece(0, "", "fo", NOTHING) + made.fail(GatewayFault("it broke", status=502, code="engine_error"))
    *_, error, failed = events(data)
    assert (error["type"], error["code"], error["message"]) == ("error", "engine_error", "it broke")
    assert error["error"] == {"message": "it broke", "type": "server_error", "param": None, "code": "engine_error"}
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": "it broke"}
    made = exchange(stream=True)
    made.begin(answer(Reply()))
    assert (
        events(made.fail(GatewayFault("x", status=429, code="overloaded")))[-1]["response"]["error"]["code"]
        == "rate_limit_exceeded"
    )


def test_an_error_before_there_is_a_response():
    (error,) = events(
        exchange(stream=True).fail(
            GatewayFault("too long", status=400, code="context_length_exceeded", param="messages")
        )
    )
    assert (error["type"], error["param"], error["error"]["code"]) == ("error", "messages", "context_length_exceeded")


def test_signs_of_life_are_comments():
    assert exchange(stream=True).keep_alive() == b": keep-alive\n\n"


def test_logprobs():
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    answered = answer(Reply("four", "hm"))
    (part,) = json.loads(exchange(**wanted).whole(answered))["output"][1]["content"]
    assert [(entry["token"], entry["logprob"]) for entry in part["logprobs"]] == [("<0>", -0.5), ("<1>", -0.5)]
    made = exchange(**wanted, stream=True)
    made.begin(answered)
    data = made.piece(0, "hm", "", Tokens((1,), (-1.0,), ({1: -1.0, 2: -2.0},)))
    data += made.piece(0, "", "fo", Tokens((2, 3), (-2.0, -3.0), ()))
    data += made.piece(0, "", "ur", Tokens((4,), (-4.0,), ()))
    data += made.piece(0, "", "", Tokens((5,), (-5.0,), ()))
    data += made.finish(0, answered.outcomes[0]) + made.end(answered)
    said = events(data)
    deltas = [event["logprobs"] for event in said if event["type"] == "response.output_text.delta"]
    assert [[entry["logprob"] for entry in entries] for entries in deltas] == [[-1.0, -2.0, -3.0], [-4.0]]
    assert [top["token"] for top in deltas[0][0]["top_logprobs"]] == ["<1>", "<2>"]
    (done,) = (event["logprobs"] for event in said if event["type"] == "response.output_text.done")
    assert [entry["logprob"] for entry in done] == [-1.0, -2.0, -3.0, -4.0, -5.0]
    assert said[-1]["response"]["output"][1]["content"][0]["logprobs"] == done


def test_logprobs_are_those_of_their_message():
    made, answered = exchange(include=["message.output_text.logprobs"], stream=True), answer(Reply("four", "hm"))
    made.begin(answered)
    data = made.piece(0, "", "four", Tokens((1,), (-1.0,), ())) + made.piece(0, "hm", "", NOTHING)
    data += made.finish(0, answered.outcomes[0]) + made.end(answered)
    first, _, last = events(data)[-1]["response"]["output"]
    assert [len(item["content"][0]["logprobs"]) for item in (first, last)] == [1, 0]


def test_no_logprobs_unless_asked_for():
    made = exchange(stream=True)
    made.begin(answer(Reply("x")))
    (delta,) = (e for e in events(made.piece(0, "", "x", Tokens((1,), (-1.0,), ()))) if e["type"].endswith("delta"))
    assert delta["logprobs"] == []


def test_reading_is_pure():
    body = {"input": [{"role": "user", "content": "x"}, *TURN, F, G], "tools": [ADD], "text": {"verbosity": "low"}}
    before = json.dumps(body)
    exchange(**body).whole(answer(Reply("x")))
    assert json.dumps(body) == before
