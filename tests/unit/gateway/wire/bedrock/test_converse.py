"""Bedrock's wire: whatever JSON comes in is a call or a refusal; what goes out is what botocore reads."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcore_rl_toolkit.common.eventstream import CONTENT_TYPE
from agentcore_rl_toolkit.engine.base import Sampling
from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.call.chat import Reply, ToolCall
from agentcore_rl_toolkit.gateway.wire.base import Exchange
from agentcore_rl_toolkit.gateway.wire.bedrock import converse
from agentcore_rl_toolkit.gateway.wire.routes import error_wire, find_wire
from support.speakers.bedrock_converse import gather
from support.wire import NOTHING, answer, asked, read_chat, read_chat_messages, streamed

HELLO = [{"role": "user", "content": [{"text": "hi"}]}]
TOOL = {"toolSpec": {"name": "add", "description": "Adds", "inputSchema": {"json": {"type": "object"}}}}
BODY = {"messages": HELLO, "toolConfig": {"tools": [TOOL]}}

KEYS = [
    *("role", "content", "text", "toolUse", "toolResult", "toolUseId", "name", "input", "json", "type", "status"),
    *("reasoningContent", "reasoningText", "redactedContent", "guardContent", "cachePoint", "image", "document"),
    *("tools", "toolSpec", "systemTool", "inputSchema", "toolChoice", "auto", "any", "tool", "description"),
    *("maxTokens", "temperature", "topP", "stopSequences", "top_k", "topK", "seed", "thinking", "inferenceConfig"),
    *("textFormat", "structure", "jsonSchema", "schema", "response_format", "logit_bias", "__arguments__"),
]
FIELDS = [
    *("messages", "system", "inferenceConfig", "toolConfig", "guardrailConfig", "additionalModelRequestFields"),
    *("additionalModelResponseFieldPaths", "outputConfig", "requestMetadata", "performanceConfig", "promptVariables"),
]
numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([0, -1, 2**31, 2**64, 10**400, float("inf")]))
texts = st.one_of(st.text(max_size=5), st.sampled_from(["user", "assistant", "system", "add", "enabled", "{}"]))
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
keys = st.one_of(st.sampled_from(KEYS), st.text(max_size=3))
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=12
)
unions = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, min_size=1, max_size=1)
)


def exchange(body: dict[str, Any], model: str = "m", *, stream: bool = False) -> Exchange:
    wire = converse.STREAM if stream else converse.CONVERSE
    return wire.read(asked(body, f"model/{model}/converse"))


def read_messages(messages: list[Any], system: Any = None) -> list[dict[str, Any]]:
    return list(exchange({"messages": messages, "system": system}).call.messages)


def refused_or(body: dict[str, Any]) -> Exchange | None:
    """The call, or the refusal, which has to be one to show to an agent."""
    try:
        return exchange(body)
    except GatewayFault as fault:
        refused = fault
    assert refused.status == 400
    assert refused.param is not None
    assert len(refused.message) < 500
    said = converse.refuse(refused)
    assert (said.status, said.headers["x-amzn-ErrorType"]) == (400, "ValidationException")
    assert json.loads(said.body) == {"message": refused.message}
    return None


def refusal(body: dict[str, Any]) -> str:
    with pytest.raises(GatewayFault) as refused:
        exchange(BODY | body)
    assert refused.value.status == 400
    return refused.value.message


def events(data: bytes) -> list[dict[str, Any]]:
    """Frames, as botocore takes them apart; their sums are checked on the way."""
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    known = []
    for message in buffer:
        headers = message.headers
        assert headers[":content-type"] == "application/json"
        name = headers.get(":event-type") or headers[":exception-type"]
        assert headers[":message-type"] == ("event" if ":event-type" in headers else "exception")
        known.append({name: json.loads(message.payload)})
    return known


# Requests


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(FIELDS), anything | unions)
def test_any_value_of_any_field_is_read_or_refused(name: str, value: Any):
    refused_or(BODY | {name: value})


@settings(max_examples=600, deadline=None)
@given(st.lists(st.dictionaries(keys, anything | unions, max_size=3) | unions, max_size=3))
def test_any_blocks_are_read_or_refused(made: list[Any]):
    for role in ("user", "assistant", "system"):
        read = refused_or({"messages": [{"role": role, "content": made}, *HELLO], "system": [{"text": "x"}]})
        for message in read.call.messages if read else []:
            assert message["role"] in ("system", "user", "assistant", "tool")
            assert isinstance(message["content"], str)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["tools", "toolChoice"]), anything | unions)
def test_any_tools_are_read_or_refused(name: str, value: Any):
    refused_or(BODY | {"toolConfig": {"tools": [TOOL], name: value}})


def test_messages_in_canonical_form():
    """Exactly what OpenAI's wire makes of the same conversation."""
    result = {"toolUseId": "c", "content": [{"text": "a"}, {"json": {"b": [1, 2.0, "ü"]}}], "status": "error"}
    other = {"toolUseId": "d", "content": [{"text": "4"}]}
    mine = read_messages(
        [
            {"role": "user", "content": [{"text": "a"}, {"cachePoint": {"type": "default"}}, {"text": "b"}]},
            {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "h", "signature": "s"}}},
                    {"reasoningContent": {"redactedContent": "b3BhcXVl"}},
                    {"reasoningContent": {"reasoningText": {"text": "m"}}},
                    {"text": "let me see"},
                    {"toolUse": {"toolUseId": "c", "name": "f", "input": {"b": 1, "a": 2}}},
                    {"toolUse": {"toolUseId": "d", "name": "g", "input": {}}},
                ],
            },
            {"role": "user", "content": [{"text": "well"}, {"toolResult": result}, {"toolResult": other}]},
            {"role": "assistant", "content": [{"text": "done"}]},
            {"role": "user", "content": [{"toolResult": other}]},
            {"role": "system", "content": [{"text": "be long"}]},
            {"role": "user", "content": [{"guardContent": {"text": {"text": "?", "qualifiers": ["query"]}}}]},
        ],
        [{"text": "be "}, {"guardContent": {"text": {"text": "short"}}}, {"cachePoint": {"type": "default"}}],
    )
    theirs = read_chat_messages(
        [
            {"role": "system", "content": "be short"},
            {"role": "user", "content": "ab"},
            {
                "role": "assistant",
                "content": "let me see",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}},
                    {"id": "d", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": 'a{"b":[1,2.0,"ü"]}'},
            {"role": "tool", "tool_call_id": "d", "content": "4"},
            {"role": "user", "content": "well"},
            {"role": "assistant", "content": "done"},
            {"role": "tool", "tool_call_id": "d", "content": "4"},
            {"role": "system", "content": "be long"},
            {"role": "user", "content": "?"},
        ]
    )
    assert mine == theirs


def test_no_system_message_without_a_text():
    for system in (None, [], [{"cachePoint": {"type": "default"}}]):
        assert [message["role"] for message in read_messages(HELLO, system)] == ["user"]


def test_an_empty_reply_that_is_echoed():
    for content in ([], [{"text": ""}]):
        read = read_messages([*HELLO, {"role": "assistant", "content": content}, *HELLO])
        assert read[1] == {"role": "assistant", "content": ""}


def test_a_whole_request():
    read = exchange(
        {
            "messages": HELLO,
            "system": [{"text": "be short"}],
            "inferenceConfig": {"maxTokens": 5, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END"]},
            "toolConfig": {"tools": [TOOL, {"cachePoint": {"type": "default"}}], "toolChoice": {"auto": {}}},
            "additionalModelRequestFields": {"top_k": 40, "seed": 7, "anthropic_beta": ["x"]},
            "requestMetadata": {"team": "a"},
            "performanceConfig": {"latency": "optimized"},
            "serviceTier": {"type": "flex"},
            "promptVariables": {"x": {"text": "y"}},
            "guardrailConfig": {},
            "outputConfig": {"effort": "high"},
        }
    )
    assert read.call.sampling == Sampling(max_tokens=5, temperature=0.5, top_p=0.9, stop=("END",), top_k=40, seed=7)
    same = read_chat(
        {
            "messages": [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "add", "description": "Adds", "parameters": {"type": "object"}},
                }
            ],
        }
    )
    call = read.call
    assert (call.messages, call.tools, call.tool_choice, call.template) == (same.messages, same.tools, "auto", {})
    assert (call.n, call.logprobs, read.stream) == (1, False, False)
    assert exchange(BODY, stream=True).stream


def test_settings_that_models_have_of_their_own():
    def sampling(**more: Any) -> Sampling:
        return exchange({"messages": HELLO, "inferenceConfig": {"temperature": 0.5}, **more}).call.sampling

    assert sampling(additionalModelRequestFields={"topK": 3}).top_k == 3
    assert sampling(additionalModelRequestFields={"inferenceConfig": {"topK": 4}}).top_k == 4
    assert sampling(additionalModelRequestFields={"stop_sequences": ["x"]}).stop == ("x",)
    assert sampling(additionalModelRequestFields={"temperature": 0.9}).temperature == 0.5
    assert sampling(additionalModelRequestFields={"k": 1, "topK": None}) == Sampling(temperature=0.5)


@pytest.mark.parametrize("name", ["thinking", "reasoning_config", "reasoningConfig"])
@pytest.mark.parametrize(
    ("config", "template"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}),
        ({"type": "adaptive"}, {"enable_thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        ("high", {}),
        ({"type": ["x"]}, {}),
    ],
)
def test_thinking_is_a_setting_of_the_template(name: str, config: Any, template: dict[str, bool]):
    assert exchange({"messages": HELLO, "additionalModelRequestFields": {name: config}}).call.template == template


def test_structured_output():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    described = {"schema": json.dumps(schema), "name": "x"}
    output = {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": described}}}
    assert exchange({"messages": HELLO, "outputConfig": output}).call.sampling.json_schema == schema
    for bad in ("{", "[]", 5, None):
        output = {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": bad}}}}
        assert "outputConfig.textFormat" in refusal({"outputConfig": output})


@pytest.mark.parametrize(
    ("choice", "canonical"),
    [(None, "auto"), ({"auto": {}}, "auto"), ({"any": {}}, "required"), ({"tool": {"name": "add"}}, "=add")],
)
def test_tool_choice(choice: Any, canonical: str):
    assert exchange(BODY | {"toolConfig": {"tools": [TOOL], "toolChoice": choice}}).call.tool_choice == canonical


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("model/qwen/converse", "qwen"),
        ("v1/model/qwen/converse-stream", "qwen"),
        ("model/a%2Fmodel%2Fb/converse", "a/model/b"),
        (
            "model/us.anthropic.claude-sonnet-4-20250514-v1%3A0/converse-stream",
            "us.anthropic.claude-sonnet-4-20250514-v1:0",
        ),
        ("model/arn%3Aaws%3Abedrock%3Aus-west-2%3A1%3Ax%2Fy/converse", "arn:aws:bedrock:us-west-2:1:x/y"),
        ("model/arn:aws:bedrock:us-west-2:1:x/y/converse", "arn:aws:bedrock:us-west-2:1:x/y"),
        ("model/%E4%BD%A0%ff%zz/converse", "你\ufffd%zz"),
    ],
)
def test_the_model_is_in_the_path(path: str, model: str):
    wire = find_wire(path)
    assert wire is (converse.STREAM if path.endswith("stream") else converse.CONVERSE)
    assert wire.read(asked(BODY, path)).call.model == model


def test_paths_nearby():
    assert find_wire("model//converse") is None
    for path in ("model/m", "model/m/count-tokens", "model//converse", "v1/model/m/x"):
        assert find_wire(path) is None
        assert error_wire(path, {}).refuse is converse.refuse


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        ([{"searchResult": {}}], "must be an object with one of: text"),
        ([{"toolUse": {"toolUseId": "c", "name": "f", "input": {}}}], "toolUse, which is not allowed there"),
        ([{"json": {}}], "json, which is not allowed there"),
        ([{"text": 5}], "text is 5: expected `str"),
        ([{"guardContent": {"text": {}}}], "text is missing"),
        ([{"text": "a", "image": {}}], "object"),
        ([{}], "object"),
        ([5], "object"),
        ("x", "expected `array`"),
        (None, "content is missing"),
        ([{"toolResult": {"content": []}}], "toolResult.toolUseId is missing"),
        ([{"toolResult": {"toolUseId": "c"}}], "toolResult.content is missing"),
        ([{"toolResult": {"toolUseId": "c", "content": [{"reasoningContent": {}}]}}], "reasoningContent, which is not"),
    ],
)
def test_user_messages_that_are_refused(blocks: Any, why: str):
    message = refusal({"messages": [*HELLO, {"role": "user", "content": blocks}]})
    assert message.startswith("messages[1].")
    assert why in message


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ({"toolResult": {"toolUseId": "c", "content": []}}, "toolResult, which is not allowed there"),
        ({"toolUse": {"name": "f", "input": {}}}, "toolUse.toolUseId is missing"),
        ({"toolUse": {"toolUseId": "c", "name": "", "input": {}}}, "toolUse.name is ''"),
        ({"toolUse": {"toolUseId": "c", "name": "f", "input": "{}"}}, "toolUse.input is '{}': expected `object"),
        ({"toolUse": {"toolUseId": "c", "name": "f", "input": {}, "type": "server_tool_use"}}, "AWS's servers"),
        ({"reasoningContent": {"reasoningText": {}}}, "text is missing"),
        ({"reasoningContent": {}}, "object"),
    ],
)
def test_replies_that_are_refused(block: Any, why: str):
    assert why in refusal({"messages": [*HELLO, {"role": "assistant", "content": [block]}]})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"messages": []}, "messages is "),
        ({"messages": None}, "messages is "),
        ({"messages": [{"role": "tool", "content": []}]}, "role is 'tool': expected one of user, assistant, system"),
        ({"messages": ["x"]}, "expected `object`"),
        ({"messages": [{"role": "assistant", "content": [{"text": "x"}]}]}, "no user turn"),
        ({"messages": [*HELLO, {"role": "assistant", "content": [{"text": "x"}]}]}, "prefill"),
        ({"system": [{"toolUse": {}}]}, "system[0].toolUse"),
        ({"guardrailConfig": {"guardrailIdentifier": "g"}}, "the gateway applies no guardrails"),
        ({"inferenceConfig": []}, "inferenceConfig is []: expected `object"),
        ({"inferenceConfig": {"maxTokens": 0}}, "inferenceConfig.maxTokens is 0: expected `int` >= 1"),
        ({"inferenceConfig": {"topP": 1.1}}, "topP is 1.1: expected `float` <= 1"),
        ({"inferenceConfig": {"temperature": "hot"}}, "temperature is 'hot': expected `float"),
        ({"inferenceConfig": {"stopSequences": 5}}, "stopSequences is 5"),
        ({"additionalModelRequestFields": {"topK": "x"}}, "top_k is 'x': expected `int"),
        ({"additionalModelRequestFields": {"top_k": -2}}, "top_k is -2"),
        ({"toolConfig": {"tools": [{"otherTool": {"name": "x"}}]}}, "one of: toolSpec"),
        ({"toolConfig": {"tools": [{"toolSpec": {"inputSchema": {"json": {}}}}]}}, "name is missing"),
        ({"toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": 5}}}]}}, "inputSchema is "),
        ({"toolConfig": {"tools": {"a": 1}}}, "toolConfig.tools is "),
        ({"toolConfig": {"tools": [TOOL], "toolChoice": {"none": {}}}}, "one of: auto, any, tool"),
        ({"toolConfig": {"tools": [TOOL], "toolChoice": {"tool": {"name": "x"}}}}, "names none of the tools"),
        ({"toolConfig": {"tools": [], "toolChoice": {"any": {}}}}, "has no tools"),
    ],
)
def test_requests_that_are_refused(body: dict[str, Any], why: str):
    assert why in refusal(body)


# Answers


CALL = ToolCall("call_1", "add", '{"a": 1}')


def whole(reply: Reply, body: dict[str, Any] | None = None, **about: Any) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(exchange(BODY | (body or {})).whole(answer(reply, **about)))
    return said


def streamed_whole(reply: Reply, *pieces: tuple[str, str], **about: Any) -> dict[str, Any]:
    return gather(events(streamed(exchange(BODY, stream=True), answer(reply, **about), *pieces)))


def test_a_whole_answer():
    answered = answer(Reply("done", "hm", [CALL]), prompt=7, sampled=3)
    turn = answered.outcomes[0].turn
    turn.seconds, turn.keep = 1.2345, 4
    assert json.loads(exchange(BODY).whole(answered)) == {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "u"}}},
                    {"text": "done"},
                    {"toolUse": {"toolUseId": "call_1", "name": "add", "input": {"a": 1}}},
                ],
            }
        },
        "stopReason": "tool_use",
        "usage": {
            "inputTokens": 3,
            "outputTokens": 3,
            "totalTokens": 10,
            "cacheReadInputTokens": 4,
            "cacheWriteInputTokens": 0,
        },
        "metrics": {"latencyMs": 1234},
    }


@pytest.mark.parametrize(
    ("reply", "finish", "reason"),
    [
        (Reply("x"), "stop", "end_turn"),
        (Reply("x", stop="END"), "stop", "stop_sequence"),
        (Reply("x", tool_calls=[CALL]), "stop", "tool_use"),
        (Reply("x", tool_calls=[CALL], stop="END"), "stop", "tool_use"),
        (Reply("x"), "length", "max_tokens"),
        (Reply("x", tool_calls=[CALL]), "length", "max_tokens"),
    ],
)
def test_stop_reasons(reply: Reply, finish: str, reason: str):
    assert whole(reply, finish=finish)["stopReason"] == reason
    assert streamed_whole(reply, finish=finish)["stopReason"] == reason


def test_the_stop_sequence_is_sent_to_clients_that_ask():
    wanted = {"additionalModelResponseFieldPaths": ["/stop_sequence", "/x"]}
    assert whole(Reply("x", stop="END"), wanted)["additionalModelResponseFields"] == {"stop_sequence": "END"}
    assert whole(Reply("x"), wanted)["additionalModelResponseFields"] == {"stop_sequence": None}
    assert "additionalModelResponseFields" not in whole(Reply("x", stop="END"))
    data = streamed(exchange(BODY | wanted, stream=True), answer(Reply("x", stop="END")))
    stop = {"stopReason": "stop_sequence", "additionalModelResponseFields": {"stop_sequence": "END"}}
    assert {"messageStop": stop} in events(data)


@pytest.mark.parametrize("arguments", ["not JSON", "[1]", '"x"', '{"a": "\\ud800"}'])
def test_arguments_that_are_not_an_object_survive_the_round_trip(arguments: str):
    reply = Reply(tool_calls=[ToolCall("c", "add", arguments)])
    for said in (whole(reply), streamed_whole(reply)):
        message = said["output"]["message"]
        json.dumps(message, ensure_ascii=False).encode()  # boto3 can send it
        (call,) = read_messages([*HELLO, message, *HELLO])[1]["tool_calls"]
        theirs = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
        assert [call] == read_chat_messages([{"role": "user"}, {"role": "assistant", "tool_calls": [theirs]}])[1][
            "tool_calls"
        ]


def test_no_arguments_are_an_empty_object():
    reply = Reply(tool_calls=[ToolCall("c", "add", "")])
    for said in (whole(reply), streamed_whole(reply)):
        assert said["output"]["message"]["content"] == [{"toolUse": {"toolUseId": "c", "name": "add", "input": {}}}]


# Streams


def test_the_order_of_events():
    pieces = [("", ""), ("h", ""), ("m", "do"), ("", "ne")]
    wire = exchange(BODY, stream=True)
    reply = Reply("done", "hm", [CALL, ToolCall("call_2", "add", "{}")])
    known = events(streamed(wire, answer(reply, prompt=7, sampled=3), *pieces))
    thought = [{"reasoningContent": part} for part in ({"text": "h"}, {"text": "m"}, {"signature": "u"})]
    said = ({"text": text} for text in ("do", "ne"))
    assert known == [
        {"messageStart": {"role": "assistant"}},
        *({"contentBlockDelta": {"delta": delta, "contentBlockIndex": 0}} for delta in thought),
        {"contentBlockStop": {"contentBlockIndex": 0}},
        *({"contentBlockDelta": {"delta": delta, "contentBlockIndex": 1}} for delta in said),
        {"contentBlockStop": {"contentBlockIndex": 1}},
        {
            "contentBlockStart": {
                "start": {"toolUse": {"toolUseId": "call_1", "name": "add"}},
                "contentBlockIndex": 2,
            }
        },
        {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"a":1}'}}, "contentBlockIndex": 2}},
        {"contentBlockStop": {"contentBlockIndex": 2}},
        {
            "contentBlockStart": {
                "start": {"toolUse": {"toolUseId": "call_2", "name": "add"}},
                "contentBlockIndex": 3,
            }
        },
        {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}, "contentBlockIndex": 3}},
        {"contentBlockStop": {"contentBlockIndex": 3}},
        {"messageStop": {"stopReason": "tool_use"}},
        {
            "metadata": {
                "usage": {
                    "inputTokens": 7,
                    "outputTokens": 3,
                    "totalTokens": 10,
                    "cacheReadInputTokens": 0,
                    "cacheWriteInputTokens": 0,
                },
                "metrics": {"latencyMs": 0},
            }
        },
    ]


def test_a_stream_is_of_frames():
    assert converse.STREAM.stream_type == CONTENT_TYPE == "application/vnd.amazon.eventstream"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(),
        Reply("text"),
        Reply("", "thought"),
        Reply("", "", [CALL]),
        Reply("", "thought", [CALL]),
        Reply("text", "thought", [CALL, CALL]),
    ],
)
def test_a_stream_adds_up_to_the_whole(reply: Reply):
    said = whole(reply)
    assert streamed_whole(reply) == said
    assert said["output"]["message"]["content"]  # agents look at its first block


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.text(), st.text()), max_size=6))
def test_any_text_comes_through(pieces: list[tuple[str, str]]):
    reply = Reply("".join(text for _, text in pieces), "".join(thought for thought, _ in pieces))
    blocks = streamed_whole(reply, *(pieces or [("", "")]))["output"]["message"]["content"]
    assert "".join(block["text"] for block in blocks if "text" in block) == reply.content
    thoughts = [block["reasoningContent"]["reasoningText"]["text"] for block in blocks if "reasoningContent" in block]
    assert "".join(thoughts) == reply.reasoning


def test_pieces_go_out_as_they_come():
    wire = exchange(BODY, stream=True)
    wire.begin(answer(Reply("x")))
    assert [next(iter(event)) for event in events(wire.piece(0, "", "x", NOTHING))] == [
        "messageStart",
        "contentBlockDelta",
    ]
    assert [next(iter(event)) for event in events(wire.piece(0, "", "y", NOTHING))] == ["contentBlockDelta"]
    assert wire.piece(0, "", "", NOTHING) == b""


def test_a_sign_of_life_is_an_event_that_is_in_no_service_model():
    (event,) = events(exchange(BODY, stream=True).keep_alive())
    client = boto3.client("bedrock-runtime", region_name="us-west-2")
    known = client.meta.service_model.shape_for("ConverseStreamOutput").members
    assert set(event) == {"keepAlive"}
    assert not set(event) & set(known)


# Errors

FAULTS = {
    400: (400, "ValidationException", "validationException"),
    401: (403, "AccessDeniedException", "validationException"),
    403: (403, "AccessDeniedException", "validationException"),
    404: (404, "ResourceNotFoundException", "validationException"),
    405: (405, "UnknownOperationException", None),
    408: (408, "ModelTimeoutException", "modelStreamErrorException"),
    409: (400, "ValidationException", "validationException"),
    410: (404, "ResourceNotFoundException", "validationException"),
    413: (400, "ValidationException", "validationException"),
    422: (400, "ValidationException", "validationException"),
    429: (429, "ThrottlingException", "throttlingException"),
    500: (500, "InternalServerException", "internalServerException"),
    501: (500, "InternalServerException", "internalServerException"),
    502: (424, "ModelErrorException", "modelStreamErrorException"),
    503: (503, "ServiceUnavailableException", "serviceUnavailableException"),
    504: (408, "ModelTimeoutException", "modelStreamErrorException"),
}


@pytest.mark.parametrize("status", FAULTS)
def test_every_fault_is_an_exception_that_aws_knows(status: int):
    fault = GatewayFault("what happened", status=status, code="code", hint="do this")
    said, in_stream = converse.refuse(fault), FAULTS[status][2]
    assert (said.status, said.headers) == (FAULTS[status][0], {"x-amzn-ErrorType": FAULTS[status][1]})
    assert json.loads(said.body) == {"message": "what happened (do this)"}
    if in_stream is None:  # there is no such stream
        return
    model = boto3.client("bedrock-runtime", region_name="us-west-2").meta.service_model
    known = {
        shape.name: shape.metadata["error"]["httpStatusCode"]
        for shape in model.operation_model("Converse").error_shapes
    }
    assert known[FAULTS[status][1]] == FAULTS[status][0]
    assert events(exchange(BODY, stream=True).fail(fault)) == [{in_stream: {"message": "what happened (do this)"}}]
    assert in_stream in model.shape_for("ConverseStreamOutput").members
