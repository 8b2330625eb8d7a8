"""Google's wire: whatever JSON comes in is a call or a refusal; what goes out is what Google's clients read."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcore_rl_toolkit.engine.base import Sampling
from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.call.chat import Reply, ToolCall
from agentcore_rl_toolkit.gateway.record.turn import Tokens
from agentcore_rl_toolkit.gateway.wire.base import Exchange, Wire
from agentcore_rl_toolkit.gateway.wire.google import generate_content as google
from agentcore_rl_toolkit.gateway.wire.google.contents import sign
from agentcore_rl_toolkit.gateway.wire.google.generate_request import read_count
from agentcore_rl_toolkit.gateway.wire.google.google_types import json_schema
from agentcore_rl_toolkit.gateway.wire.routes import error_wire, find_route, find_wire
from support.wire import NOTHING, answer, asked, read_chat_messages, streamed

PATH = "v1beta/models/m:generateContent"
HELLO = [{"role": "user", "parts": [{"text": "hi"}]}]
TOOL = {"functionDeclarations": [{"name": "add", "description": "Adds", "parameters": {"type": "OBJECT"}}]}
BODY = {"contents": HELLO, "tools": [TOOL]}
CALL = ToolCall("call_u_0", "add", '{"a": 1}')


def exchange(body: dict[str, Any] | None = None, wire: Wire = google.GENERATE, **config: Any) -> Exchange:
    body = (body or BODY) | ({"generationConfig": config} if config else {})
    return wire.read(asked(body, PATH))


def read_contents(contents: list[Any], system: Any = None) -> list[dict[str, Any]]:
    return list(read_count({"contents": contents, "systemInstruction": system}, None).messages)


def thinking(wire: Wire = google.GENERATE) -> Exchange:
    return exchange(wire=wire, thinkingConfig={"includeThoughts": True})


# Whatever comes in

KEYS = [
    *("role", "parts", "text", "thought", "thoughtSignature", "functionCall", "function_call", "functionResponse"),
    *("name", "args", "response", "id", "output", "error", "inlineData", "fileData", "executableCode", "description"),
    *("functionDeclarations", "parameters", "parametersJsonSchema", "googleSearch", "type", "properties", "items"),
    *("anyOf", "nullable", "enum", "minItems", "functionCallingConfig", "mode", "allowedFunctionNames", "temperature"),
    *("topP", "topK", "maxOutputTokens", "stopSequences", "candidateCount", "seed", "responseMimeType", "logprobs"),
    *("responseSchema", "responseJsonSchema", "responseLogprobs", "thinkingConfig", "thinkingBudget", "thinkingLevel"),
]
FIELDS = [
    *("contents", "systemInstruction", "system_instruction", "tools", "toolConfig", "generationConfig"),
    *("cachedContent", "safetySettings", "generateContentRequest", "labels", "model"),
]
numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([0, -1, 2**31, 2**64, 10**400, float("inf")]))
texts = st.one_of(st.text(max_size=5), st.sampled_from(["user", "model", "add", "OBJECT", "ANY", "{}", "1"]))
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
keys = st.one_of(st.sampled_from(KEYS), st.text(max_size=3))
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=12
)


def refused_or(body: dict[str, Any]) -> Exchange | None:
    """The call, or the refusal, which has to be one to show to an agent."""
    try:
        return google.GENERATE.read(asked(body, PATH))
    except GatewayFault as fault:
        refused = fault
    assert refused.status == 400
    assert refused.param is not None
    assert len(refused.message) < 500
    said = json.loads(google.refuse(refused).body)["error"]
    assert (said["code"], said["status"]) == (400, "INVALID_ARGUMENT")
    return None


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(FIELDS), anything)
def test_any_value_of_any_field_is_read_or_refused(name: str, value: Any):
    refused_or(BODY | {name: value})


parts = st.dictionaries(st.sampled_from(KEYS[2:8]), anything, min_size=1, max_size=2)
contents = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "model", "function"]), "parts": st.lists(parts | anything, max_size=3)}
)


@settings(max_examples=400, deadline=None)
@given(st.lists(contents | anything, max_size=3))
def test_any_contents_are_read_or_refused(given_contents: list[Any]):
    read = refused_or({"contents": given_contents})
    for message in read.call.messages if read is not None else ():
        assert message["role"] in ("user", "assistant", "tool")
        assert isinstance(message["content"], str)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"contents": []}, "contents is "),
        ({"contents": [{"role": "user", "parts": []}]}, r"contents\[0\] has no parts"),
        ({"contents": [{"role": "king", "parts": [{"text": "x"}]}]}, "role is 'king': expected one of user, model"),
        ({"contents": [{"role": "model", "parts": [{"text": "x"}]}]}, "no user turn"),
        ({"contents": [*HELLO, {"role": "model", "parts": [{"text": "x"}]}]}, "prefill"),
        ({"contents": [{"parts": [{"inlineData": 1}]}]}, "inlineData is 1: expected `object"),
        ({"contents": [{"parts": [{"functionCall": {"name": "f"}}]}]}, "without a text or a function"),
        ({"contents": [{"parts": [{}]}]}, "without a text or a function"),
        ({"contents": [{"parts": [{"functionResponse": {"response": {}}}]}]}, "functionResponse.name is missing"),
        ({"cachedContent": "cachedContents/x"}, "stores no caches"),
        ({"tools": {}}, "tools is {}: expected `array"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "functionDeclarations.0..name is missing"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "mode is 'SOME'"),
        ({"tools": None, "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "has no tools"),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}}},
            "'x' names none of the tools",
        ),
        ({"generationConfig": {"topP": 2}}, "topP is 2: expected `float` <= 1"),
        ({"generationConfig": {"candidateCount": 0}}, "candidateCount is 0"),
        ({"generationConfig": {"responseMimeType": "audio/wav"}}, "responseMimeType is 'audio/wav'"),
        ({"generationConfig": {"responseJsonSchema": 3}}, "responseJsonSchema is 3"),
        ({"generationConfig": {"thinkingConfig": {"thinkingBudget": "x"}}}, "thinkingBudget is 'x'"),
    ],
)
def test_what_is_refused(field: dict[str, Any], why: str):
    with pytest.raises(GatewayFault, match=why) as refused:
        exchange(BODY | field)
    assert refused.value.status == 400


# Requests


def test_messages_are_those_of_openai():
    """The same conversation in both forms is the same to whoever renders it, but for the names of functions."""
    read = read_contents(
        [
            {"parts": [{"text": "a"}, {"text": "b"}]},
            {"role": "model", "parts": [{"text": "h", "thought": True}, {"text": "m", "thought": True}]},
            {"role": "model", "parts": [{"text": "let me "}, {"text": "see"}]},
            {
                "role": "model",
                "parts": [
                    {"functionCall": {"id": "c", "name": "f", "args": {"b": 1, "a": 2}}, "thoughtSignature": "x"},
                    {"function_call": {"id": "d", "name": "g"}},
                    {"executableCode": {"code": "1"}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"text": "and "},
                    {"functionResponse": {"id": "d", "name": "g", "response": {"error": "no"}}},
                    {"function_response": {"id": "c", "name": "f", "response": {"output": {"n": 3}}}},
                    {"text": "now?"},
                ],
            },
            {"role": "model", "parts": [{"text": "fine"}, {"thoughtSignature": "eA=="}]},
            {"role": "function", "parts": [{"functionResponse": {"name": "f", "response": {"a": 1, "b": 2}}}]},
        ],
        {"parts": [{"text": "be "}, {"text": "short"}]},
    )
    same = read_chat_messages(
        [
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
            {"role": "tool", "tool_call_id": "d", "name": "g", "content": "no"},
            {"role": "tool", "tool_call_id": "c", "name": "f", "content": '{"n":3}'},
            {"role": "user", "content": "and now?"},
            {"role": "assistant", "content": "fine"},
            {"role": "tool", "name": "f", "content": '{"a":1,"b":2}'},
        ]
    )
    assert read == same


def test_responses_without_ids_belong_to_the_calls_in_order():
    calls = [{"functionCall": {"name": name, "args": {}}} for name in ("f", "g", "f")]
    answers = [{"functionResponse": {"name": name, "response": {"result": name}}} for name in ("f", "f", "g")]
    read = read_contents([*HELLO, {"role": "model", "parts": calls}, {"role": "user", "parts": answers}])
    assert [call["id"] for call in read[1]["tool_calls"]] == ["call_0", "call_1", "call_2"]
    assert [message["tool_call_id"] for message in read[2:]] == ["call_0", "call_2", "call_1"]
    assert [message["content"] for message in read[2:]] == ["f", "f", "g"]


@pytest.mark.parametrize("thought", ["first\nthis", "ünï😀???>>>"])
def test_a_signature_brings_the_thought_back(thought: str):
    signature = sign(thought)
    for spelled in (signature, signature.rstrip("="), signature.replace("+", "-").replace("/", "_")):
        part = {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": spelled}
        read = read_contents([*HELLO, {"role": "model", "parts": [part]}, *HELLO])
        assert read[1]["reasoning_content"] == thought


@pytest.mark.parametrize(
    "signature", ["skip_thought_signature_validator", "", "é", "====", 7, base64.b64encode(b"another model's").decode()]
)
def test_signatures_of_others_are_ignored(signature: Any):
    read = read_contents([*HELLO, {"role": "model", "parts": [{"text": "x", "thoughtSignature": signature}]}, *HELLO])
    assert read[1] == {"role": "assistant", "content": "x"}


def test_settings():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    call = exchange(
        temperature=0.5, topP=0.25, topK=7, maxOutputTokens=9, stopSequences=["END"], candidateCount=2, seed=3,
        presencePenalty=1, frequencyPenalty=-1, responseMimeType="application/json", responseJsonSchema=schema,
        responseLogprobs=True, logprobs=2, thinkingConfig={"thinkingBudget": 0},
    ).call  # fmt: skip
    assert (call.n, call.logprobs, call.model) == (2, True, "m")
    assert call.template == {"enable_thinking": False}
    assert call.sampling == Sampling(
        temperature=0.5, top_p=0.25, top_k=7, max_tokens=9, stop=("END",), seed=3, presence_penalty=1,
        frequency_penalty=-1, json_schema=schema, top_logprobs=2, explicit=call.sampling.explicit,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, {}),
        ({"includeThoughts": True}, {}),
        ({"thinkingBudget": 0}, {"enable_thinking": False}),
        ({"thinkingBudget": -1}, {"enable_thinking": True}),
        ({"thinking_budget": 1024}, {"enable_thinking": True}),
        ({"thinkingLevel": "HIGH"}, {"enable_thinking": True}),
        ({"thinkingLevel": "MINIMAL"}, {"enable_thinking": False}),
    ],
)
def test_thinking(config: dict[str, Any], wanted: dict[str, Any]):
    assert exchange(thinkingConfig=config).call.template == wanted


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, "auto"),
        ({"mode": "AUTO"}, "auto"),
        ({"mode": "none"}, "none"),
        ({"mode": "ANY"}, "required"),
        ({"mode": "ANY", "allowed_function_names": ["b"]}, "=b"),
        ({"mode": "ANY", "allowedFunctionNames": ["b", "a"]}, "required"),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["a", "b"]}, "auto"),
    ],
)
def test_tool_choice(config: dict[str, Any], wanted: str):
    tools = [{"functionDeclarations": [{"name": "a"}]}, {"function_declarations": [{"name": "b"}]}]
    body = {"contents": HELLO, "tools": tools, "toolConfig": {"functionCallingConfig": config}}
    assert exchange(body).call.tool_choice == wanted


def test_tools_that_google_runs_are_left_out():
    tools = [{"googleSearch": {}}, TOOL, {"codeExecution": {}, "urlContext": {}}]
    call = exchange({"contents": HELLO, "tools": tools}).call
    assert [tool["function"]["name"] for tool in call.tools] == ["add"]
    assert call.omitted == ("googleSearch", "codeExecution", "urlContext")
    any_of_them = {"functionCallingConfig": {"mode": "ANY"}}
    assert exchange({"contents": HELLO, "tools": tools[:1], "toolConfig": any_of_them}).call.tool_choice == "auto"


def test_placeholders_take_the_place_of_media():
    image = {"inlineData": {"mimeType": "image/png", "data": "eA=="}}
    read = read_contents(
        [
            {"parts": [{"text": "see: "}, image, {"file_data": {"mime_type": "application/pdf", "file_uri": "x"}}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f"}}]},
            {"parts": [{"functionResponse": {"name": "f", "response": {"output": "this"}, "parts": [image]}}]},
        ]
    )
    omitted = "[%s omitted: this model reads text only]"
    assert read[0]["content"] == "see: " + omitted % "image" + omitted % "file"
    assert read[0]["omitted"] == {"image": 1, "file": 1}
    assert (read[2]["content"], read[2]["omitted"]) == ("this" + omitted % "image", {"image": 1})
    assert (read[0]["media"], read[2]["media"]) == ([(5, omitted % "image", "eA==")], [(4, omitted % "image", "eA==")])


def test_a_schema_in_googles_words():
    given = types.Schema(
        type="OBJECT",
        properties={
            "b": types.Schema(type="STRING", nullable=True, enum=["x"], max_length=5),
            "a": types.Schema(type="ARRAY", items=types.Schema(type="INTEGER"), min_items=1),
            "type": types.Schema(any_of=[types.Schema(type="NUMBER"), types.Schema(type="BOOLEAN")], nullable=True),
        },
        property_ordering=["a", "b"],
        required=["a"],
    ).model_dump(mode="json", exclude_none=True)
    given["properties"]["b"]["max_length"] = "5"  # as Google's other clients write it
    read = json_schema(given)
    assert read == {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            "b": {"type": ["string", "null"], "enum": ["x", None], "maxLength": 5},
            "type": {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "null"}]},
        },
        "required": ["a"],
    }
    assert list(read["properties"]) == ["a", "b", "type"]
    assert exchange(responseSchema={"type": "STRING"}).call.sampling.json_schema == {"type": "string"}
    assert exchange(responseMimeType="application/json").call.sampling.json_schema == {"type": "object"}


def test_a_request_to_count_may_hold_all_of_a_call():
    alone = read_count({"contents": HELLO}, "m")
    whole = read_count({"generateContentRequest": {"model": "models/m", **BODY}}, "m")
    assert (alone.messages, alone.tools) == (whole.messages, [])
    assert [tool["function"]["name"] for tool in whole.tools] == ["add"]


# Answers


def said(data: bytes) -> types.GenerateContentResponse:
    return types.GenerateContentResponse.model_validate(json.loads(data))


def test_an_answer():
    answered = answer(Reply("let me see", "hm", [CALL]), finish="stop")
    response = said(thinking().whole(answered))
    thought, text, call = response.candidates[0].content.parts
    assert (thought.text, thought.thought) == ("hm", True)
    assert text.text == "let me see"
    assert (call.function_call.id, call.function_call.name, call.function_call.args) == ("call_u_0", "add", {"a": 1})
    assert call.thought_signature == b"thought:hm"
    assert response.candidates[0].finish_reason == "STOP"
    used = response.usage_metadata
    assert (used.prompt_token_count, used.candidates_token_count, used.total_token_count) == (3, 2, 5)
    assert (response.model_version, response.response_id) == ("m", "u")


def test_thoughts_are_sent_to_clients_that_ask():
    (part,) = said(exchange().whole(answer(Reply("yes", "hm")))).candidates[0].content.parts
    assert (part.text, part.thought, part.thought_signature) == ("yes", None, b"thought:hm")


def test_there_is_always_a_part():
    for reply in (Reply(), Reply(reasoning="hm")):
        for data in (exchange().whole(answer(reply)), streamed(exchange(wire=google.EVENTS), answer(reply))[6:]):
            (part,) = said(data).candidates[0].content.parts
            assert part.text == ""


@pytest.mark.parametrize("wire", [google.EVENTS, google.ARRAY], ids=["events", "array"])
def test_a_stream_adds_up_to_the_answer(wire: Wire):
    answered = answer(Reply("let me see", "h\u2028m", [CALL]), finish="length")
    data = streamed(thinking(wire), answered, ("h\u2028", ""), ("", ""), ("m", "let "), ("", "me see"))
    if wire is google.EVENTS:
        events = data.decode().splitlines()  # by which some clients know lines
        assert not any(events[1::2])
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[::2]]
    else:
        chunks = json.loads(data)
    read = [types.GenerateContentResponse.model_validate(chunk) for chunk in chunks]
    parts = [part for chunk in read for part in chunk.candidates[0].content.parts]
    assert "".join(part.text for part in parts if part.thought) == "h\u2028m"
    assert "".join(part.text for part in parts if part.text and not part.thought) == "let me see"
    assert [part.function_call.name for part in parts if part.function_call] == ["add"]
    assert parts[-1].thought_signature == "thought:h\u2028m".encode()
    assert [chunk.candidates[0].finish_reason for chunk in read] == [None] * (len(read) - 1) + ["MAX_TOKENS"]
    assert read[-1].usage_metadata.total_token_count == 5


def test_candidates_have_their_places():
    answered = answer(Reply("a"), Reply("b"))
    whole = said(exchange(candidateCount=2).whole(answered))
    assert [(one.index, one.content.parts[0].text) for one in whole.candidates] == [(0, "a"), (1, "b")]
    assert whole.usage_metadata.candidates_token_count == 4
    chunks = json.loads(streamed(exchange(wire=google.ARRAY, candidateCount=2), answered))
    assert [chunk["candidates"][0]["index"] for chunk in chunks] == [0, 0, 1, 1]
    assert chunks[-1]["usageMetadata"]["candidatesTokenCount"] == 4


def test_logprobs():
    tokens = Tokens((4, 5), (-0.5, float("nan")), ({4: -0.5, 6: -2.0}, {}))
    asked_for = exchange(wire=google.ARRAY, responseLogprobs=True, logprobs=2)
    asked_for.begin(answer(Reply()))
    assert asked_for.piece(0, "", "", tokens) == b""  # nothing to say yet
    chunk = json.loads(asked_for.piece(0, "", "x", NOTHING)[1:])
    result = types.GenerateContentResponse.model_validate(chunk).candidates[0].logprobs_result
    assert [(one.token, one.token_id, one.log_probability) for one in result.chosen_candidates] == [
        ("<4>", 4, -0.5),
        ("<5>", 5, None),
    ]
    assert [[one.token_id for one in top.candidates] for top in result.top_candidates] == [[4, 6], []]
    assert "logprobsResult" in exchange(responseLogprobs=True).whole(answer(Reply("x"))).decode()


def test_arguments_that_are_not_an_object_survive_the_round_trip():
    part = google.function_call(ToolCall("c", "f", "[1"))
    assert part["functionCall"]["args"] == {"__arguments__": "[1"}
    read = read_contents([*HELLO, {"role": "model", "parts": [part]}, *HELLO])
    assert read[1]["tool_calls"][0]["function"]["arguments"] == "[1"


# Errors and paths


@pytest.mark.parametrize(
    ("status", "name"),
    [
        *[(400, "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (404, "NOT_FOUND")],
        *[(410, "NOT_FOUND"), (413, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"), (500, "INTERNAL")],
        *[(501, "UNIMPLEMENTED"), (502, "UNAVAILABLE"), (503, "UNAVAILABLE"), (504, "DEADLINE_EXCEEDED")],
    ],
)
def test_errors(status: int, name: str):
    refused = google.refuse(GatewayFault("too bad", status=status, code="too_bad", param="p", retry_after=2.4))
    error = json.loads(refused.body)["error"]
    assert (refused.status, error["code"], error["status"], error["message"]) == (status, status, name, "too bad")
    info, retry = error["details"]
    assert (info["reason"], info["metadata"]) == ("TOO_BAD", {"field": "p"})
    assert retry["retryDelay"] == "2s"


def test_a_context_that_overflows_is_known_by_googles_words():
    error = google.error(GatewayFault("12 tokens", status=400, code="context_length_exceeded"))["error"]
    assert error["message"] == "The input token count exceeds the maximum number of tokens allowed: 12 tokens"


def test_an_error_in_a_stream():
    events, array = exchange(wire=google.EVENTS), exchange(wire=google.ARRAY)
    fault = GatewayFault("too\u2028bad", status=502, code="engine_error")
    assert json.loads(events.fail(fault))["error"]["code"] == 502
    assert len(events.fail(fault).decode().splitlines()) == 2
    begun = array.piece(0, "", "x", NOTHING)
    assert [next(iter(element)) for element in json.loads(begun + array.fail(fault))] == ["candidates", "error"]
    assert events.keep_alive().strip() == array.keep_alive().strip() == b""


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("v1beta/models/m:generateContent", "m"),
        ("v1/models/m:generateContent", "m"),
        ("v1/v1beta/models/m:generateContent", "m"),
        ("v1beta/models/m%3AgenerateContent", "m"),
        ("v1beta/models/Qwen/Qwen3-8B:latest:generateContent", "Qwen/Qwen3-8B:latest"),
        ("v1beta/models/Qwen%2FQwen3-8B:generateContent", "Qwen/Qwen3-8B"),
        ("v1beta/tunedModels/m:generateContent", "m"),
        ("v1beta1/publishers/google/models/m:generateContent", "m"),
        ("v1/projects/p/locations/l/publishers/google/models/m:generateContent", "m"),
        ("v1beta1/projects/p/locations/l/publishers/Qwen/models/Qwen3-8B:generateContent", "Qwen/Qwen3-8B"),
    ],
)
def test_paths(path: str, model: str):
    for at, query, wire in (
        (path, "", google.GENERATE),
        (path.replace("generate", "streamGenerate"), "", google.ARRAY),
        (path.replace("generate", "streamGenerate"), "alt=sse", google.EVENTS),
        (path.replace("generate", "streamGenerate"), "key=k&%24alt=sse", google.EVENTS),
    ):
        assert find_wire(at, query) is wire
        assert wire.read(asked(BODY, at)).call.model == model


def test_paths_nearby():
    for path in ("v1beta/models", "v1beta/models/m", "v1beta/models/m:embedContent", "v1beta/cachedContents"):
        assert find_wire(path) is None
        assert error_wire(path, {}).refuse is google.refuse
    assert find_route("v1beta/models/qwen:latest") == "v1beta/models/{model}"
    for path in ("v1/models/qwen:latest", "v1/models/Qwen/Qwen3-8B", "v1/models/m%3Ax"):
        assert find_route(path) == "v1/models/{model}"
    assert find_route("v1/models") == "v1/models"
    assert error_wire("v1/models/x", {"x-goog-api-key": "EMPTY"}).refuse is google.refuse
