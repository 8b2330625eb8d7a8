"""Fingerprints: what clients do to the history they echo leaves them as they are, a real edit does not."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.gateway.call.chat import ChatCall, Message, Reply, ToolCall, parse_arguments
from agentcore_rl_toolkit.gateway.call.fingerprint import (
    extend_fingerprint,
    fingerprint_call,
    hash_message,
    hash_prompt,
)
from support.wire import read_chat_messages

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
ARGUMENTS = {"city": "Zürich", "days": 2, "deep": {"a": [1, 2.5, None, True], "b": "x  y"}}
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is\nthe weather?"}
CALLS = Reply("Let me look.", "hm", [ToolCall("call_1", "look", json.dumps(ARGUMENTS)), ToolCall("c2", "go", "{}")])
TEXT = Reply("It is sunny,\n\nand  warm.", "The tool said so.")
RESULTS = [
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    {"role": "tool", "tool_call_id": "c2", "content": "gone"},
]
LAST = {"role": "user", "content": "Thanks!"}


def history() -> list[dict[str, Any]]:
    """A conversation as an OpenAI client sends it back."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in CALLS.tool_calls
    ]
    return copy.deepcopy(
        [
            SYSTEM,
            USER,
            {"role": "assistant", "content": CALLS.content, "tool_calls": calls},
            *RESULTS,
            {"role": "assistant", "content": TEXT.content},
            LAST,
        ]
    )


def fingerprints(messages: list[Any], **settings: Any) -> list[bytes]:
    """The fingerprints up to each assistant message, and of the whole."""
    found = fingerprint_call(ChatCall(read_chat_messages(messages), **({"tools": TOOLS} | settings)))
    return [echo.end for echo in found.echoes] + [found.whole.digest()[:16]]


def function(messages: list[Any], number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = messages[2]["tool_calls"][number]["function"]
    return found


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return value


def edit(**changes: Callable[[list[Any]], Any]) -> list[Any]:
    return [pytest.param(change, id=name) for name, change in changes.items()]


def put(path: tuple[Any, ...], value: Any) -> Callable[[list[Any]], None]:
    def change(messages: list[Any]) -> None:
        place = messages
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


def drop(path: tuple[Any, ...]) -> Callable[[list[Any]], None]:
    def change(messages: list[Any]) -> None:
        place = messages
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return change


def parts(text: str, *cuts: int) -> list[dict[str, str]]:
    places = [0, *cuts, len(text)]
    return [{"type": "text", "text": text[a:b]} for a, b in itertools.pairwise(places)]


def swap(one: int, other: int) -> Callable[[list[Any]], None]:
    def change(messages: list[Any]) -> None:
        messages[one], messages[other] = messages[other], messages[one]

    return change


TOLERATED = edit(
    arguments_compact=lambda m: function(m).update(arguments=json.dumps(ARGUMENTS, separators=(",", ":"))),
    arguments_indented=lambda m: function(m).update(arguments=json.dumps(ARGUMENTS, indent=4)),
    arguments_unescaped=lambda m: function(m).update(arguments=json.dumps(ARGUMENTS, ensure_ascii=False)),
    arguments_reordered=lambda m: function(m).update(arguments=json.dumps(reordered(ARGUMENTS))),
    arguments_as_object=lambda m: function(m).update(arguments=reordered(ARGUMENTS)),
    arguments_with_other_numbers=lambda m: function(m).update(arguments=json.dumps(ARGUMENTS | {"days": 2.0})),
    no_arguments_as_empty_text=lambda m: function(m, 1).update(arguments=""),
    no_arguments_as_null=lambda m: function(m, 1).update(arguments=None),
    other_call_ids=lambda m: (
        [call.update(id="x") for call in m[2]["tool_calls"]] + [r.pop("tool_call_id") for r in m[3:5]]
    ),
    text_beside_calls_dropped=put((2, "content"), None),
    content_empty=put((2, "content"), ""),
    content_missing=drop((2, "content")),
    reasoning_echoed=put((5, "reasoning_content"), TEXT.reasoning),
    reasoning_echoed_under_another_name=put((5, "reasoning"), TEXT.reasoning),
    thought_in_content=put((5, "content"), f"<think>\n{TEXT.reasoning}\n</think>\n\n{TEXT.content}"),
    empty_thought_in_content=put((5, "content"), f"\n<think></think>{TEXT.content}"),
    whitespace_around_a_reply=put((5, "content"), f"\n {TEXT.content} \n"),
    whitespace_inside_a_reply=put((5, "content"), " ".join(TEXT.content.split())),
    whitespace_around_a_question=put((1, "content"), f"  {USER['content']}\n\n"),
    windows_newlines=put((1, "content"), USER["content"].replace("\n", "\r\n") + "\r\n"),
    split_question=put((1, "content"), parts(USER["content"], 3, 3, 9)),
    split_reply=put((5, "content"), parts(TEXT.content, 5)),
    one_part_result=put((3, "content"), parts("sunny")),
    developer_for_system=put((0, "role"), "developer"),
    result_with_a_name=put((3, "name"), "look"),
    unknown_fields=put((5, "refusal"), None),
)

EDITS = edit(
    word_of_the_question=put((1, "content"), "What was\nthe weather?"),
    case_of_the_question=put((1, "content"), "what is\nthe weather?"),
    whitespace_inside_a_question=put((1, "content"), "What is the weather?"),
    word_of_the_reply=put((5, "content"), "It is sunny, and cold."),
    reply_dropped_to_nothing=put((5, "content"), ""),
    word_after_a_thought=put((5, "content"), "<think>\nThe tool said so.\n</think>\nIt is rainy, and warm."),
    system_prompt=put((0, "content"), "Be long."),
    no_system_prompt=drop((0,)),
    other_role=put((0, "role"), "user"),
    tool_name=lambda m: function(m).update(name="look_up"),
    argument_value=lambda m: function(m).update(arguments=json.dumps(ARGUMENTS | {"days": 3})),
    argument_type=lambda m: function(m).update(arguments=json.dumps(ARGUMENTS | {"days": "2"})),
    argument_true_for_one=lambda m: function(m).update(arguments=json.dumps(ARGUMENTS | {"days": True})),
    argument_whitespace=lambda m: function(m).update(arguments=json.dumps(ARGUMENTS | {"city": "Zürich "})),
    argument_name=lambda m: function(m).update(arguments=json.dumps({"town": "Zürich"})),
    argument_more=lambda m: function(m).update(arguments=json.dumps(ARGUMENTS | {"more": None})),
    argument_list_order=lambda m: function(m).update(
        arguments=json.dumps(ARGUMENTS | {"deep": {"a": [2.5, 1, None, True], "b": "x  y"}})
    ),
    arguments_broken=lambda m: function(m).update(arguments=json.dumps(ARGUMENTS)[:-1]),
    calls_swapped=lambda m: m[2]["tool_calls"].reverse(),
    call_dropped=lambda m: m[2]["tool_calls"].pop(),
    calls_dropped=drop((2, "tool_calls")),
    result=put((3, "content"), "rainy"),
    results_swapped=swap(3, 4),
    result_dropped=drop((3,)),
    reply_dropped=drop((5,)),
    first_message_twice=lambda m: m.insert(1, m[1]),
    calls_and_text_swapped=swap(2, 5),
    last_message=put((6, "content"), "Thanks."),
)


@pytest.mark.parametrize("change", TOLERATED)
def test_changes_that_clients_make_to_history_do_not_count_as_edits(change: Callable[[list[Any]], Any]) -> None:
    messages = history()
    change(messages)
    assert messages != history()
    assert fingerprints(messages) == fingerprints(history())


@pytest.mark.parametrize("change", EDITS)
def test_a_real_edit_is_seen_from_where_it_is(change: Callable[[list[Any]], Any]) -> None:
    messages = history()
    change(messages)
    assert fingerprints(messages)[-1] != fingerprints(history())[-1]


def test_an_edit_leaves_the_fingerprints_before_it_as_they_were() -> None:
    messages = history()
    messages[5]["content"] = "No."
    assert fingerprints(messages)[0] == fingerprints(history())[0]
    assert fingerprints(messages)[1] != fingerprints(history())[1]


def test_other_tools_or_template_settings_are_another_conversation() -> None:
    ways = [
        {},
        {"tools": []},
        {"tools": [*TOOLS, *TOOLS]},
        {"tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "array"}}}]},
        {"template": {"enable_thinking": False}},
        {"template": {"enable_thinking": True}},
        {"tools": [], "template": {"enable_thinking": True}},
    ]
    seen = [fingerprints(history(), **way)[-1] for way in ways]
    assert len(set(seen)) == len(ways)
    assert fingerprints(history(), tools=[reordered(tool) for tool in TOOLS]) == fingerprints(history())


def test_the_print_of_a_reply_is_that_of_its_echo() -> None:
    messages = read_chat_messages(history())
    asked = fingerprint_call(ChatCall(messages[:2], TOOLS))
    again = fingerprint_call(ChatCall(messages, TOOLS))
    assert again.echoes[0][:2] == (3, extend_fingerprint(asked.whole, CALLS.message()))
    assert hash_message(again.echoes[0][2]) == hash_message(CALLS.message())
    second = fingerprint_call(ChatCall(messages[:5], TOOLS))
    before = second.whole.digest()
    assert again.echoes[1] == (6, extend_fingerprint(second.whole, TEXT.message()), TEXT.message(), before)


def test_carrying_a_print_on_leaves_it_as_it_was() -> None:
    asked = fingerprint_call(ChatCall([USER]))
    before = asked.whole.digest()[:16]
    assert extend_fingerprint(asked.whole, TEXT.message()) == extend_fingerprint(asked.whole, TEXT.message())
    assert asked.whole.digest()[:16] == before


def test_the_exact_print_tells_replies_with_the_same_calls_apart() -> None:
    def reply(text: str) -> Message:
        return Reply(text, tool_calls=CALLS.tool_calls).message()

    assert hash_message(reply("One way.")) != hash_message(reply("Another."))
    assert (
        hash_message(reply("One way."))
        == hash_message(reply(" One\nway. "))
        == hash_message(reply("<think>x</think>One way."))
    )
    assert hash_message(reply("")) != hash_message(TEXT.message())


def test_numbers_survive_a_client_that_has_floats_only() -> None:
    def call(number: Any) -> bytes:
        reply = Reply(tool_calls=[ToolCall("", "f", json.dumps({"x": [{"y": number}]}))])
        return hash_message(reply.message())

    assert call(1) == call(1.0) == call(1e0)
    assert call(12345678901234567890) == call(float(12345678901234567890))
    assert call(10**30) == call(1e30)
    assert call(2**53) == call(float(2**53))
    assert call(2**53) != call(2**53 - 1)
    assert len({call(n) for n in (1, 2, 1.5, "1", True, None, False, 0)}) == 8
    assert call(None) == call(10**400) == call(-(10**400)) == call(math.inf) == call(math.nan)


# Nothing runs together

texts = st.text(st.sampled_from('ab \0:1{}[]",user\n\ud800é'), max_size=12)
calls = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": texts, "arguments": texts | st.dictionaries(texts, texts, max_size=2)})}
)
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "tool", "assistant"]), "content": texts}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.just(""), "tool_calls": st.lists(calls, min_size=1, max_size=2)}
    ),
)


def meaning(message: Message) -> Any:
    """What a message comes to, without any encoding that could be ambiguous."""
    if message.get("tool_calls"):
        functions = [call["function"] for call in message["tool_calls"]]
        return [(f["name"], " ".join(a.split()) if isinstance(a := f["arguments"], str) else a) for f in functions]
    content = message["content"]
    return message["role"], " ".join(content.split()) if message["role"] == "assistant" else content.strip()


def canonical(message: Message) -> Message:
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = parse_arguments(call["function"]["arguments"]) or {}
    return message


@given(st.lists(messages, max_size=3), st.lists(messages, max_size=3))
def test_only_the_same_conversations_have_the_same_print(one: list[Message], other: list[Message]) -> None:
    one, other = list(map(canonical, one)), list(map(canonical, other))
    same = [meaning(m) for m in one] == [meaning(m) for m in other]
    fingerprints = [fingerprint_call(ChatCall(m)).whole.digest()[:16] for m in (one, other)]
    assert (fingerprints[0] == fingerprints[1]) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("f", "x\0g\0y")], [("f", "x"), ("g", "y")]),
        ([("f", "1 call:g")], [("f", ""), ("g", "")]),
        ([("f\0x", "")], [("f", "x")]),
        ([("f{}g", "")], [("f", ""), ("g", "")]),
        ([("f", "")], [("f", ""), ("f", "")]),
    ],
)
def test_calls_do_not_run_together(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> None:
    def message(calls: list[tuple[str, str]]) -> Message:
        return {
            "role": "assistant",
            "tool_calls": [{"function": {"name": name, "arguments": text}} for name, text in calls],
        }

    assert hash_message(message(one)) != hash_message(message(other))


def test_messages_do_not_run_together() -> None:
    one = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    for text in ("auser:b", "a1 user:b", "ab"):
        other = [{"role": "user", "content": text}]
        assert fingerprint_call(ChatCall(one)).whole.digest()[:16] != fingerprint_call(ChatCall(other)).whole.digest()


@given(st.lists(messages, min_size=1, max_size=4))
def test_a_conversations_beginning_has_the_print_it_had_alone(conversation: list[Message]) -> None:
    whole = fingerprint_call(ChatCall(conversation))
    for place, end, own, _ in whole.echoes:
        part = fingerprint_call(ChatCall(conversation[:place]))
        assert (
            part.whole.digest()[:16]
            == end
            == extend_fingerprint(fingerprint_call(ChatCall(conversation[: place - 1])).whole, conversation[place - 1])
        )
        assert own is conversation[place - 1]


# Odd input


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "{",
        "[1]",
        "null",
        '"x"',
        '{"a": "\ud800"}',
        '{"a": 123456789012345678901234567890}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": NaN, "b": Infinity, "c": 1e400}',
        '{"a":' * 100_000,
        '{"a":' * 990 + "1" + "}" * 990,
        '{"a":' * 400 + "1" + "}" * 400,
        {"a": "\ud800"},
        {"a": 10**400},
        None,
    ],
    ids=lambda value: str(value)[:20].encode("unicode_escape").decode(),
)
def test_odd_arguments_do_no_harm(arguments: Any) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    call = ChatCall([USER, message])
    assert fingerprint_call(call).echoes == fingerprint_call(copy.deepcopy(call)).echoes


def test_arguments_nested_to_any_depth_do_no_harm() -> None:
    for depth in range(100, 1000, 10):
        arguments = '{"a":' * depth + "1" + "}" * depth
        message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
        assert len(hash_message(message)) == 8


def test_arguments_are_an_object_or_as_they_came() -> None:
    assert parse_arguments('{"a": 1}') == {"a": 1}
    for other in ("[1]", "null", "1", '"x"', "{", ""):
        assert parse_arguments(other) == other


def test_missing_arguments_equal_empty_arguments() -> None:
    def message(arguments: Any) -> Message:
        return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}

    assert (
        hash_message(message(""))
        == hash_message(message(None))
        == hash_message(message({}))
        == hash_message(message("{ }"))
    )
    assert hash_message(message({"a": "\ud800", "b": 1})) == hash_message(message({"b": 1, "a": "\ud800"}))


def test_lone_surrogates_are_kept_apart() -> None:
    one, other = ([{"role": "user", "content": text}] for text in ("\ud800", "\ud801"))
    assert fingerprint_call(ChatCall(one)).whole.digest()[:16] != fingerprint_call(ChatCall(other)).whole.digest()
    assert hash_prompt(ChatCall(one)) != hash_prompt(ChatCall(other))


# What a prompt is rendered from

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@given(values, values)
def test_what_renders_differently_has_another_key(one: Any, other: Any) -> None:
    def call(value: Any) -> ChatCall:
        function = {"name": "f", "arguments": {"x": value}}
        return ChatCall([USER, {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}])

    # Prompts have arguments in them as JSON or as text.
    rendered = [(json.dumps(value), str(value)) for value in (one, other)]
    if rendered[0] != rendered[1]:
        assert hash_prompt(call(one)) != hash_prompt(call(other))
    assert hash_prompt(call(one)) == hash_prompt(call(copy.deepcopy(one)))


@pytest.mark.parametrize(("one", "other"), [(float("nan"), None), (float("inf"), float("-inf")), (1, 1.0), (1, True)])
def test_keys_tell_values_apart_that_are_alike(one: Any, other: Any) -> None:
    assert hash_prompt(ChatCall([USER], template={"x": one})) != hash_prompt(ChatCall([USER], template={"x": other}))


def test_keys_are_exact_to_the_letter() -> None:
    plain = ChatCall([SYSTEM, USER], TOOLS)
    others = [
        ChatCall([SYSTEM, USER | {"content": USER["content"] + " "}], TOOLS),
        ChatCall([SYSTEM, USER | {"content": USER["content"].replace("\n", "\r\n")}], TOOLS),
        ChatCall([SYSTEM, USER | {"name": "x"}], TOOLS),
        ChatCall([USER, SYSTEM], TOOLS),
        ChatCall([SYSTEM, USER], [reordered(tool) for tool in TOOLS]),
        ChatCall([SYSTEM, USER]),
        ChatCall([SYSTEM, USER], TOOLS, template={"enable_thinking": False}),
    ]
    keys = [hash_prompt(call) for call in (plain, *others)]
    assert len(set(keys)) == len(keys)
    assert hash_prompt(copy.deepcopy(plain)) == keys[0]
