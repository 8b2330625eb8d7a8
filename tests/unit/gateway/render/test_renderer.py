"""Prompts and replies in every format that can be had without a download: exact bridges, parsing, forced calls."""

from __future__ import annotations

import itertools
import json
from array import array
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.errors import ConfigError, RenderFault
from agentcore_rl_toolkit.gateway.call.chat import ChatCall, Message, Reply, parse_arguments
from agentcore_rl_toolkit.gateway.call.fingerprint import hash_prompt
from agentcore_rl_toolkit.gateway.record import reasons
from agentcore_rl_toolkit.gateway.record.turn import LOGPROBS, Turn
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.tokenizers import FAMILIES, PLAIN_TEMPLATE, REWRITING_TEMPLATE, make_tokenizer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "About the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
    for name in ("get_weather", "get_forecast")
]
HISTORY: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the weather in Paris?"},
]
TEXT: Message = {"role": "assistant", "content": "It is sunny."}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "functions.get_weather:0",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}},
        }
    ],
}
RESULT: Message = {"role": "tool", "tool_call_id": "functions.get_weather:0", "name": "get_weather", "content": "sunny"}
THANKS: Message = {"role": "user", "content": "Thanks! And in Rome?"}
# A template that shows the reasoning of the last answers only, as those of many reasoning models do.
FORGETFUL_TEMPLATE = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def renderer(family: str = "qwen3", **settings: Any) -> ChatRenderer:
    return ChatRenderer(Tokenizer(make_tokenizer(f"some/{family}", family=family)), renderer=family, **settings)


def generic(template: str = PLAIN_TEMPLATE, **settings: Any) -> ChatRenderer:
    return ChatRenderer(Tokenizer(make_tokenizer("some/model", template)), **settings)


def turn(prompt: array[int], sampled: list[int], parent: Turn | None = None, keep: int = 0) -> Turn:
    return Turn(0, parent, keep, prompt[keep:], array(IDS, sampled), array(LOGPROBS, [0.0] * len(sampled)), "stop")


def sampled(render: ChatRenderer, reply: Message) -> list[int]:
    """A reply as the model would sample it after the history, without the token that ends it."""
    (text,) = render.render_replies(ChatCall(HISTORY, TOOLS), [reply])
    return [token for token in render.tokenizer.encode(text.rstrip()) if token not in render.stop_ids]


def bridged(render: ChatRenderer, before: Turn, call: ChatCall, used: int) -> array[int] | None:
    """The next prompt, which goes on from all of the turn before."""
    found = render.bridge(before, call, used)
    if isinstance(found, str):
        return None
    keep, delta = found
    assert keep == before.length
    return before.tokens(keep) + delta


CASES = [(TEXT, [THANKS]), (CALL, [RESULT]), (CALL, [RESULT, THANKS])]


# Bridges


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("reply", "new"), CASES, ids=["text", "call", "call and more"])
def test_the_next_prompt_begins_with_the_exact_ids_of_the_last_turn(
    family: str, reply: Message, new: list[Message]
) -> None:
    render = renderer(family)
    prompt = render.render(ChatCall(HISTORY, TOOLS))
    # Ids that no rendering would give: the same text, in other tokens.
    odd = [token for word in ["It", "is", "sun"] for letter in word for token in render.tokenizer.encode(letter)]
    for ids in (sampled(render, reply), sampled(render, reply) + odd):
        for end in ([], *([stop] for stop in render.stop_ids)):
            before = turn(prompt, ids + end)
            after = bridged(render, before, ChatCall([*HISTORY, reply, *new], TOOLS), 3)
            assert after is not None
            assert after[: before.length] == before.tokens()
            added = render.tokenizer.decode(after[before.length :].tolist())
            assert added.count(new[-1]["content"]) == 1
            assert "Paris" not in added
            if not end:  # one that the model did not sample
                assert after[before.length] in render.stop_ids or "glm" in family


STABLE = ["prime-qwen3", "qwen3.8", "qwen3-vl", "deepseek-v3", "deepseek-v4", "kimi-k2", "kimi-k2.5", "llama-3"]


@pytest.mark.parametrize("family", STABLE)
@pytest.mark.parametrize(("reply", "new"), CASES, ids=["text", "call", "call and more"])
@pytest.mark.parametrize("ended", [True, False])
def test_a_bridge_is_what_a_stable_template_renders(
    family: str, reply: Message, new: list[Message], ended: bool
) -> None:
    render = renderer(family)
    prompt = render.render(ChatCall(HISTORY, TOOLS))
    before = turn(prompt, sampled(render, reply) + [render.stop_ids[0]] * ended)
    whole = ChatCall([*HISTORY, reply, *new], TOOLS)
    assert bridged(render, before, whole, 3) == render.render(whole)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("reply", "new"), CASES[:2], ids=["text", "call"])
def test_bridging_on_the_end_of_a_prompt_is_bridging_on_all_of_it(
    family: str, reply: Message, new: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    render = renderer(family)
    prompt = render.render(ChatCall(HISTORY, TOOLS))
    before = turn(prompt, [*sampled(render, reply), render.stop_ids[0]])
    call = ChatCall([*HISTORY, reply, *new], TOOLS)
    monkeypatch.setattr(render, "bridge_tail", len(prompt))
    whole = render.bridge(before, call, 3)
    monkeypatch.setattr(render, "bridge_tail", 24)
    assert isinstance(whole, tuple)
    assert render.bridge(before, call, 3) == whole


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_that_shares_all_of_its_prompt_is_bridged_like_any_other(family: str) -> None:
    """Another choice of the same call, or the same call again."""
    render = renderer(family)
    prompt = render.render(ChatCall(HISTORY, TOOLS))
    first = turn(prompt, [*sampled(render, TEXT), render.stop_ids[0]])
    second = turn(prompt, first.sampled.tolist(), first, first.prompt_length)
    assert not second.delta
    call = ChatCall([*HISTORY, TEXT, THANKS], TOOLS)
    assert bridged(render, second, call, 3) == bridged(render, first, call, 3) is not None


def test_a_bridge_can_be_bridged_again() -> None:
    render = renderer()
    messages = list(HISTORY)
    before = turn(render.render(ChatCall(messages, TOOLS)), [7, 8, render.stop_ids[0]])
    for number in range(5):
        messages += [TEXT, {"role": "user", "content": f"number {number}"}]
        found = render.bridge(before, ChatCall(messages, TOOLS), len(messages) - 1)
        assert isinstance(found, tuple)
        keep, delta = found
        after = Turn(0, before, keep, delta, array(IDS, [9, number]), array(LOGPROBS, [0.0, 0.0]), "length")
        assert after.tokens(before.length) == before.tokens()
        before = after
    assert render.tokenizer.decode(before.tokens().tolist()).count("number") == 5


@pytest.mark.parametrize("make", [renderer, lambda: generic()])
def test_history_that_was_not_sampled_here_is_not_bridged(make: Any) -> None:
    render = make()
    before = turn(render.render(ChatCall(HISTORY)), [7, render.stop_ids[0]])
    assert render.bridge(before, ChatCall([*HISTORY, TEXT]), 3) == reasons.FOREIGN
    assert render.bridge(before, ChatCall([*HISTORY, TEXT, THANKS, TEXT, THANKS]), 3) == reasons.FOREIGN


def test_a_thought_cut_off_is_closed() -> None:
    render = renderer("qwen3.5")
    prompt = render.render(ChatCall(HISTORY))
    before = turn(prompt, render.tokenizer.encode("I was thinking"))
    after = bridged(render, before, ChatCall([*HISTORY, {"role": "assistant", "content": ""}, THANKS]), 3)
    assert after is not None
    text = render.tokenizer.decode(after.tolist())
    assert "I was thinking</think><|im_end|>\n" in text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("said", ["<think>\nhm", "hm"])
def test_a_turn_that_ends_within_a_thought_is_gone_on_from(family: str, said: str) -> None:
    render = renderer(family)
    prompt = render.render(ChatCall(HISTORY))
    before = turn(prompt, [*render.tokenizer.encode(said), render.stop_ids[0]])
    after = bridged(render, before, ChatCall([*HISTORY, {"role": "assistant", "content": ""}, THANKS]), 3)
    assert after is not None
    assert "</think>" not in render.tokenizer.decode(after[before.length :].tolist()).split(THANKS["content"])[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_client_appends_is_a_message_after_the_sampled_one(family: str) -> None:
    render = renderer(family)
    prompt = render.render(ChatCall(HISTORY))
    before = turn(prompt, [*render.tokenizer.encode("four"), render.stop_ids[0]])
    echo = {"role": "assistant", "content": "four\nCalling: x"}
    found = render.bridge(before, ChatCall([*HISTORY, echo, THANKS]), 3, "Calling: x")
    if family == "deepseek-v4":  # which renders a reply otherwise once another one follows
        assert isinstance(found, str)
        return
    keep, added = found
    text = render.tokenizer.decode(added.tolist())
    assert keep == before.length
    assert 0 < text.index("Calling: x") < text.index(THANKS["content"])


def test_what_a_client_appends_is_bridged_where_a_users_messages_are_joined() -> None:
    alternates = (
        "{% for m in messages %}{% if m.role == 'user' and loop.previtem and loop.previtem.role == 'user' %}"
        "{{ raise_exception('twice') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    render = ChatRenderer(Tokenizer(make_tokenizer("anonymous", alternates)), renderer="default")
    before = turn(render.render(ChatCall(HISTORY)), [*render.tokenizer.encode("four"), render.stop_ids[0]])
    echo = {"role": "assistant", "content": "four\nCalling: x"}
    keep, added = render.bridge(before, ChatCall([*HISTORY, echo, THANKS, THANKS]), 3, "Calling: x")
    assert keep == before.length
    twice = f"{THANKS['content']}\n\n{THANKS['content']}"
    appended = "\n<|im_start|>assistant\nCalling: x<|im_end|>\n"
    assert render.tokenizer.decode(added.tolist()) == (
        f"{appended}<|im_start|>user\n{twice}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_a_client_appends_is_bridged_where_an_end_of_text_follows_the_last_message() -> None:
    render = generic(PLAIN_TEMPLATE + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}")
    before = turn(render.render(ChatCall(HISTORY)), [*render.tokenizer.encode("four"), render.stop_ids[0]])
    echo = {"role": "assistant", "content": "four\nCalling: x"}
    keep, added = render.bridge(before, ChatCall([*HISTORY, echo, THANKS]), 3, "Calling: x")
    assert keep == before.length
    text = render.tokenizer.decode(added.tolist())
    assert text.startswith("\n<|im_start|>assistant\nCalling: x<|im_end|>\n<|im_start|>user\n")


# Templates nobody knows


@pytest.mark.parametrize(("reply", "new"), CASES, ids=["text", "call", "call and more"])
@pytest.mark.parametrize("ended", [True, False])
def test_an_unknown_template_is_bridged_exactly(reply: Message, new: list[Message], ended: bool) -> None:
    render = generic()
    assert render.name == "default"
    prompt = render.render(ChatCall(HISTORY, TOOLS))
    whole = ChatCall([*HISTORY, reply, *new], TOOLS)
    stop = render.stop_ids[0]
    before = turn(prompt, sampled(render, reply) + [stop] * ended)
    assert bridged(render, before, whole, 3) == render.render(whole)
    odd = turn(prompt, [5, 6, 7] + [stop] * ended)
    after = bridged(render, odd, whole, 3)
    assert after is not None
    assert after[odd.length :] == render.render(whole)[len(before.tokens()) :]


def test_what_an_unknown_template_does_to_history_is_not_guessed() -> None:
    for template, why in (
        (REWRITING_TEMPLATE, reasons.REWRITTEN),
        (PLAIN_TEMPLATE.replace("{{ m.content }}", "{{ m.content }} of {{ messages | length }}"), reasons.REWRITTEN),
        (PLAIN_TEMPLATE.replace("<|im_end|>", ""), reasons.NO_TURN_END),
        (PLAIN_TEMPLATE.replace("{{ m.content }}", "{{ m.content if m.role != 'assistant' }}"), reasons.NO_TURN_END),
    ):
        render = generic(template)
        before = turn(render.render(ChatCall(HISTORY)), [5, render.stop_ids[0]])
        assert render.bridge(before, ChatCall([*HISTORY, TEXT, THANKS]), 3) == why


def test_what_a_client_echoes_of_reasoning_changes_no_exact_bridge() -> None:
    render = generic(FORGETFUL_TEMPLATE)
    before = turn(render.render(ChatCall(HISTORY)), [5, render.stop_ids[0]])
    plain = render.bridge(before, ChatCall([*HISTORY, TEXT, THANKS]), 3)
    echoed = render.bridge(before, ChatCall([*HISTORY, TEXT | {"reasoning_content": "hm"}, THANKS]), 3)
    assert isinstance(plain, tuple)
    assert plain == echoed


def test_a_template_that_refuses_messages_is_the_requests_fault() -> None:
    template = (
        "{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}" + PLAIN_TEMPLATE
    )
    render = generic(template)
    with pytest.raises(RenderFault, match="begin with the user"):
        render.render(ChatCall(HISTORY))
    before = turn(render.render(ChatCall([THANKS])), [5, render.stop_ids[0]])
    with pytest.raises(RenderFault):
        render.bridge(before, ChatCall([*HISTORY, TEXT, THANKS]), 3)


def test_an_earlier_reply_that_the_template_refuses_is_gone_on_from() -> None:
    template = (
        "{% for m in messages %}{% if '<tool_call>' in m.content or m.tool_calls and m.tool_calls[0].function.arguments"
        " is string %}{{ raise_exception('tags') }}{% endif %}{% endfor %}" + PLAIN_TEMPLATE
    )
    render = generic(template)
    cut: Message = {"role": "assistant", "content": "<tool_call>\n{"}
    odd = CALL | {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "[1]"}}]}
    for reply, result in ((cut, THANKS), (odd, RESULT | {"tool_call_id": "1"})):
        known = [*HISTORY, reply, result]
        before = turn(array(IDS, render.tokenizer.encode("whatever it was")), [5, render.stop_ids[0]])
        after = bridged(render, before, ChatCall([*known, TEXT, THANKS], TOOLS), 5)
        assert after is not None
        assert render.tokenizer.decode(after[before.length :].tolist()).strip().startswith("<|im_start|>user\nThanks!")


# What happens to old reasoning


def test_dropped_reasoning_is_reported_as_the_reason() -> None:
    render = renderer("qwen3", history="template")
    said = [*render.tokenizer.encode("<think>\nhm\n</think>\n\nfour"), render.stop_ids[0]]
    before = turn(render.render(ChatCall(HISTORY)), said)
    assert render.bridge(before, ChatCall([*HISTORY, TEXT, THANKS]), 3) == reasons.THOUGHT_DROPPED


@pytest.mark.parametrize(
    "make",
    [
        renderer,
        lambda **settings: generic(FORGETFUL_TEMPLATE, **settings),
        lambda **settings: generic(PLAIN_TEMPLATE, **settings),
    ],
    ids=["qwen3", "forgets", "never shows"],
)
def test_old_reasoning_is_kept_or_treated_as_the_template_does(make: Any) -> None:
    exact, template = make(history="exact"), make(history="template")
    prompt = exact.render(ChatCall(HISTORY))
    thought = [*exact.tokenizer.encode("<think>I know this</think>It is sunny."), exact.stop_ids[0]]
    before = turn(prompt, thought)
    goes_on = ChatCall([*HISTORY, TEXT, THANKS])
    kept = bridged(exact, before, goes_on, 3)
    assert kept is not None
    assert "I know this" in exact.tokenizer.decode(kept.tolist())
    assert template.bridge(before, goes_on, 3) in (reasons.REFUSED, reasons.THOUGHT_DROPPED)
    assert "I know this" not in template.tokenizer.decode(template.render(goes_on).tolist())
    if make is renderer:  # within a round of tool calls the template keeps it
        assert template.bridge(before, ChatCall([*HISTORY, CALL, RESULT], TOOLS), 3)[0] == before.length


# Replies


def parse(render: ChatRenderer, text: str, *, choice: str = "auto", tools: bool = True, ended: bool = True) -> Reply:
    call = ChatCall(HISTORY, TOOLS if tools else [], choice)
    prompt = render.render(call)
    opened = render.tokenizer.decode(prompt.tolist()[-4:]).rstrip().endswith("<think>")
    if opened and not text.startswith("<think>"):
        text = "</think>" + text
    ids = render.tokenizer.encode(text.removeprefix("<think>") if opened else text)
    return render.parse([*ids, render.stop_ids[0]] if ended else ids, prompt[-64:], call, "u")


def calls(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, parse_arguments(call.arguments)) for call in reply.tool_calls]


@pytest.mark.parametrize("family", [*FAMILIES, "generic"])
@pytest.mark.parametrize("ended", [True, False])
def test_text_is_read_back(family: str, ended: bool) -> None:
    render = generic() if family == "generic" else renderer(family)
    reply = parse(render, "\nIt is sunny, {not} <b>.\n", ended=ended)
    assert (reply.content, reply.tool_calls, reply.parse_failures) == ("It is sunny, {not} <b>.", [], 0)


@pytest.mark.parametrize("family", [*FAMILIES, "generic"])
def test_reasoning_is_read_back(family: str) -> None:
    if family == "laguna-xs.2":
        pytest.skip("its prompt has closed the thought")
    reply = parse(generic() if family == "generic" else renderer(family), "<think>\nhm\n</think>\n\nSunny.\n")
    assert (reply.reasoning, reply.content) == ("hm", "Sunny.")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("many", [1, 2])
def test_calls_are_read_back(family: str, many: int) -> None:
    if family == "llama-3" and many > 1:
        pytest.skip("one call a reply")
    render = renderer(family)
    prompt = render.render(ChatCall(HISTORY, TOOLS))
    made = [
        {
            "id": f"functions.get_weather:{place}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": city, "days": place + 1}},
        }
        for place, city in enumerate(["Paris", "Rome, 'é' <x>"][:many])
    ]
    ids = sampled(render, CALL | {"tool_calls": made})
    reply = render.parse([*ids, render.stop_ids[0]], prompt[-64:], ChatCall(HISTORY, TOOLS), "u")
    assert calls(reply) == [("get_weather", call["function"]["arguments"]) for call in made]
    assert [call.id for call in reply.tool_calls] == [f"call_u_{place}" for place in range(many)]
    assert (reply.content, reply.parse_failures) == ("", 0)
    for asked in (ChatCall(HISTORY, []), ChatCall(HISTORY, TOOLS, "none")):
        plain = render.parse([*ids, render.stop_ids[0]], prompt[-64:], asked, "u")
        assert (plain.tool_calls, plain.parse_failures) == ([], 0)
        assert "get_weather" in plain.content
        assert "Paris" in plain.content
        assert "think>" not in plain.content


WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PARIS = ("get_weather", {"city": "Paris"})


@pytest.mark.parametrize("make", [renderer, generic])
@pytest.mark.parametrize(
    ("text", "made", "content", "failures"),
    [
        (f"See: {WEATHER}", [PARIS], "See:", 0),
        (f"{WEATHER}\n{WEATHER}", [PARIS, PARIS], "", 0),
        (WEATHER.replace("get_weather", "unheard_of"), [("unheard_of", {"city": "Paris"})], "", 0),
        (WEATHER.replace("}}", "}"), [], "get_weather", 1),
        (f"{WEATHER}<tool_call>oops</tool_call>{WEATHER}", [PARIS, PARIS], "<tool_call>oops</tool_call>", 1),
        (WEATHER.removesuffix("</tool_call>"), [], "get_weather", 1),
        ('<tool_call>{"arguments": {}}</tool_call>', [], "arguments", 1),
        ('<tool_call>{"name": 5, "arguments": {}}</tool_call>', [], "5", 1),
        ('<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', [], "ud800", 1),
        ("<tool_call>[1, 2]</tool_call>", [], "[1, 2]", 1),
        ("<tool_call></tool_call>", [], "<tool_call></tool_call>", 1),
        ('<tool_call>{"name": "get_weather"}</tool_call>', [("get_weather", {})], "", 0),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", {"a": 1})], "", 0),
        ('<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>", [], "999", 1),
        ('<tool_call>{"name": "f", "arguments": ' + '{"a":' * 2000 + "</tool_call>", [], '{"a":', 1),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_malformed_calls_become_text_and_are_counted(
    make: Any, text: str, made: list[Any], content: str, failures: int
) -> None:
    reply = parse(make(), text)
    assert calls(reply) == made
    assert content in reply.content
    assert (reply.content == "") == (content == "")
    assert reply.parse_failures == failures
    json.dumps(reply.message(), ensure_ascii=False).encode()


def test_a_call_of_a_tool_that_there_is_none_of_is_the_agents_to_refuse() -> None:
    reply = parse(renderer("glm-5"), "<tool_call>unheard_of<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>")
    assert (calls(reply), reply.parse_failures) == ([("unheard_of", {"a": 1})], 0)


def test_lone_surrogates_in_arguments_can_be_sent() -> None:
    reply = parse(renderer(), r'<tool_call>{"name": "f", "arguments": {"a": "\ud800é"}}</tool_call>')
    assert reply.tool_calls[0].arguments.encode().isascii()
    assert calls(reply) == [("f", {"a": "\ud800é"})]
    reply = parse(renderer(), '<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>')
    assert reply.tool_calls[0].arguments == '{"a": "é"}'


def test_a_call_that_ends_a_thought_is_a_call() -> None:
    reply = parse(renderer(), f"<think>I look. {WEATHER}")
    assert (calls(reply), reply.reasoning, reply.content) == ([PARIS], "I look.", "")
    reply = parse(renderer(), f"<think>I look. {WEATHER}", tools=False)
    assert (reply.reasoning, reply.content, reply.tool_calls) == ("I look.", WEATHER, [])


def test_an_empty_thought_before_a_call_without_tools_is_dropped() -> None:
    reply = parse(renderer(), f"<think>\n\n</think>\n\n{WEATHER}", tools=False)
    assert (reply.reasoning, reply.content) == ("", WEATHER)


def test_a_model_without_tokens_for_calls_writes_them_as_text() -> None:
    plain = make_tokenizer("some/model", PLAIN_TEMPLATE, "llama-3")
    render = ChatRenderer(Tokenizer(plain))
    reply = parse(render, f"See: {WEATHER}<tool_call>oops</tool_call>")
    assert (calls(reply), reply.content) == ([PARIS], "See:\n<tool_call>oops</tool_call>")
    assert reply.parse_failures == 1
    assert parse(render, WEATHER, tools=False).content == WEATHER
    for text in ('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"a":' + '{"a":' * 2000, "<tool_call>3"):
        assert parse(render, text).parse_failures == 1


@settings(max_examples=60)
@given(st.lists(st.integers(0, 400), max_size=30), st.booleans(), st.sampled_from(sorted(FAMILIES)))
def test_any_ids_are_read(ids: list[int], tools: bool, family: str) -> None:
    render = renderer(family)
    ids = [token % render.tokenizer.size for token in ids]
    call = ChatCall(HISTORY, TOOLS if tools else [])
    reply = render.parse(ids, render.render(call)[-64:], call, "u")
    json.dumps(reply.message(), ensure_ascii=False).encode()
    assert tools or not reply.tool_calls


# Forced calls


@pytest.mark.parametrize("family", [*FAMILIES, "generic"])
@pytest.mark.parametrize("choice", ["required", "=get_weather"])
def test_a_forced_call_is_begun_and_nothing_more(family: str, choice: str) -> None:
    render = generic() if family == "generic" else renderer(family)
    call = ChatCall(HISTORY, TOOLS, choice)
    forced = render.encode_forced_call(call)
    prompt = render.render(call)
    assert not set(forced) & set(render.stop_ids)
    text = render.tokenizer.decode(forced)
    assert ("get_weather" in text) == (choice != "required")
    assert "probe" not in text
    begun = render.tokenizer.decode(prompt.tolist()[-4:]).rstrip().endswith("<think>")
    assert ("</think>" in text) or not begun  # a thought that the prompt has opened is closed
    # The rest of a call, as the model goes on with it, makes it whole.
    (rest,) = render.render_replies(call, [CALL])
    assert rest.startswith(text)
    ids = [*forced, *render.tokenizer.encode(rest.rstrip()[len(text) :])]
    reply = render.parse(ids, prompt[-64:], call, "u")
    assert calls(reply) == [("get_weather", {"city": "Paris", "days": 2})]


def test_nothing_is_forced_unless_asked_for() -> None:
    assert renderer().encode_forced_call(ChatCall(HISTORY, TOOLS)) == []
    assert renderer().encode_forced_call(ChatCall(HISTORY, TOOLS, "none")) == []


def test_a_format_without_calls_can_force_none() -> None:
    render = generic(PLAIN_TEMPLATE.replace("c.function.name", "'x'"))
    with pytest.raises(RenderFault, match="does not allow a forced call"):
        render.encode_forced_call(ChatCall(HISTORY, TOOLS, "=get_weather"))
    with pytest.raises(RenderFault, match="does not allow a forced call"):
        generic(FORGETFUL_TEMPLATE).encode_forced_call(ChatCall(HISTORY, TOOLS, "required"))
    bare = PLAIN_TEMPLATE.replace("<tool_call>\n{{ {'name': c.function.name, 'arguments'", "{{ {c.function.name")
    with pytest.raises(RenderFault, match="does not allow a forced call"):
        generic(
            bare.replace("{{ {c.function.name: c.function.arguments} | tojson }}", "{{ c.function.name }}")
        ).encode_forced_call(ChatCall(HISTORY, TOOLS, "required"))


# Settings


def test_template_settings_are_taken_or_refused() -> None:
    render = renderer()
    plain = render.render(ChatCall(HISTORY))
    quiet = render.render(ChatCall(HISTORY, template={"enable_thinking": False}))
    assert render.tokenizer.decode(quiet[len(plain) :].tolist()).split() == ["<think>", "</think>"]
    for bad in (
        {"enable_thinking": "x"},
        {"no_such": 1},
        {"x": "\ud800"},
        {"x": 10**400},
        {"thinking_retention": "all"},
    ):
        with pytest.raises(RenderFault, match="can't use chat_template_kwargs"):
            render.render(ChatCall(HISTORY, template=bad))
    assert render.render(ChatCall(HISTORY)) == plain


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "truncation", "tool_parser", "add_generation_prompt"])
def test_template_settings_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(RenderFault, match=name):
        generic().render(ChatCall(HISTORY, template={name: "x"}))


def test_template_settings_reach_an_unknown_template() -> None:
    render = generic("{{ mood }}" + PLAIN_TEMPLATE)
    text = render.tokenizer.decode(render.render(ChatCall(HISTORY, template={"mood": "merry"})).tolist())
    assert text.startswith("merry<|im_start|>")
    before = turn(render.render(ChatCall(HISTORY)), [5, render.stop_ids[0]])
    goes_on = ChatCall([*HISTORY, TEXT, THANKS], template={"mood": "merry"})
    assert isinstance(render.bridge(before, goes_on, 3), tuple)


def test_settings_of_the_gateway_are_the_default() -> None:
    quiet = renderer(template=None)
    render = ChatRenderer(quiet.tokenizer, renderer="qwen3", template={"enable_thinking": False})
    assert render.render(ChatCall(HISTORY)) == quiet.render(ChatCall(HISTORY, template={"enable_thinking": False}))
    assert render.render(ChatCall(HISTORY, template={"enable_thinking": True})) == quiet.render(ChatCall(HISTORY))


def test_any_number_of_different_settings_is_served_and_few_are_kept() -> None:
    render = generic("{{ mood }}" + PLAIN_TEMPLATE)
    for number in range(200):
        text = render.tokenizer.decode(render.render(ChatCall(HISTORY, template={"mood": number})).tolist())
        assert text.startswith(f"{number}<|im_start|>")
    assert len(render.renderers) == render.most_settings


def test_creating_a_renderer_fails_if_none_fits() -> None:
    tokenizer = Tokenizer(make_tokenizer("some/model"))
    with pytest.raises(ConfigError, match="no chat template"):
        ChatRenderer(tokenizer)
    with pytest.raises(ConfigError, match="unknown renderer 'nonsense'"):
        ChatRenderer(tokenizer, renderer="nonsense")
    with pytest.raises(ConfigError, match="can't create a renderer"):
        ChatRenderer(tokenizer, renderer="llama-3")
    with pytest.raises(ConfigError, match="neither"):
        ChatRenderer(tokenizer, renderer="qwen3", history="other")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not a fast tokenizer"):
        Tokenizer(object())
    assert ChatRenderer(Tokenizer(make_tokenizer("Qwen/Qwen3-0.6B"))).name == "qwen3"


# The cache


def test_prompts_are_rendered_once_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatRenderer, "most_cached_tokens", 200)
    render = ChatRenderer(Tokenizer(make_tokenizer("some/qwen")), renderer="qwen3")
    asked = [ChatCall([{"role": "user", "content": f"number {number}"}]) for number in range(60)]
    plain = [render.render(call) for call in asked]
    for call, whole in itertools.chain(zip(asked, plain, strict=True), zip(asked, plain, strict=True)):
        first = render.render(call, hash_prompt(call))
        assert first == whole
        assert render.render(call, hash_prompt(call)) is first
        assert render.cached_tokens <= 200
    latest, older = asked[-1], asked[-2]
    last = render.render(latest, hash_prompt(latest))
    kept = render.render(older, hash_prompt(older))
    render.render(ChatCall([{"role": "user", "content": "x" * 160}]), b"large")
    assert render.render(older, hash_prompt(older)) is kept  # what was used last is kept longest
    assert render.render(latest, hash_prompt(latest)) is not last
    render.render(ChatCall([{"role": "user", "content": "x" * 900}]), b"larger than all")
    assert render.cached_tokens == 0
