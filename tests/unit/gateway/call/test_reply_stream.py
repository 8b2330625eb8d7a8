"""Replies as they come: whatever the chunks, what is passed on adds up to the parsed reply, and nothing leaks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentcore_rl_toolkit.gateway.call.chat import ChatCall, Reply
from agentcore_rl_toolkit.gateway.call.reply_stream import ReplyStream, Text, can_stream
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.tokenizers import FAMILIES, PLAIN_TEMPLATE, make_tokenizer

# Of GLM-4.5 the renderer takes all for a thought that no thought begins; it is tested with replies that have one.
STREAMING = [family for family in FAMILIES if can_stream(family) and family != "glm-4.5"]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]
# Some formats end a text with a special token, before the one that ends the turn.
CLOSING_TEMPLATE = PLAIN_TEMPLATE.replace(
    "{{ m.content }}", "{{ m.content }}{% if m.role == 'assistant' %}<|vision_end|>{% endif %}"
)
CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Paris"}}\n</tool_call>'


@cache
def renderer(family: str) -> ChatRenderer:
    if family == "default":
        return ChatRenderer(Tokenizer(make_tokenizer("some/model", PLAIN_TEMPLATE)), renderer="default")
    if family == "closing":
        tokenizer = make_tokenizer("some/model", CLOSING_TEMPLATE, family="qwen3.5")
        return ChatRenderer(Tokenizer(tokenizer), renderer="default")
    return ChatRenderer(Tokenizer(make_tokenizer(f"some/{family}", family=family)), renderer=family)


def call(*, tools: bool = True) -> ChatCall:
    return ChatCall([{"role": "user", "content": "hi"}], TOOLS if tools else [])


def read(
    family: str, ids: Sequence[int], cuts: Sequence[int] = (), *, tools: bool = True, stop: Sequence[str] = ()
) -> tuple[list[tuple[str, str]], Reply, ReplyStream]:
    """What is passed on for ids that come in pieces, the parsed reply, and the stream."""
    render, asked = renderer(family), call(tools=tools)
    prompt = render.render(asked).tolist()
    stream = ReplyStream(
        render.tokenizer,
        stop_ids=render.stop_ids,
        stop=stop,
        calls=tools,
        thinking=render.tokenizer.decode(prompt[-4:]).rstrip().endswith("<think>"),
        live=can_stream(render.name),
    )
    places = sorted({0, *(cut % (len(ids) + 1) for cut in cuts), len(ids)})
    passed = [stream.feed(ids[start:end]) for start, end in itertools.pairwise(places)]
    reply = render.parse(ids, prompt, asked, "u")
    return [*passed, stream.finish(reply)], reply, stream


def joined(passed: list[tuple[str, str]]) -> tuple[str, str]:
    return "".join(reasoning for reasoning, _ in passed), "".join(content for _, content in passed)


pieces = st.sampled_from(
    [
        *(
            "a",
            "the answer",
            " ",
            "\n",
            "\n\n",
            "<",
            "a < b",
            "é",
            "日本",
            "👩‍👩‍👧",
            "\u2028",
            "{",
            '{"a": 1}',
            "[",
            "}",
        ),
        *(
            "<think>",
            "</think>",
            "<thin",
            "</thi",
            "think>",
            CALL,
            CALL,
            "<tool_call>",
            "</tool_call>",
            "<tool",
            "<tool_response>",
        ),
        *("<function=look>\n", "<|im_start|>", "<｜tool", "<|tool_call", "<minimax:", "[TOOL", "[TOOL_CALLS]"),
    ]
)
replies = st.lists(pieces, max_size=8).map("".join)


@pytest.mark.parametrize("family", [*STREAMING, "default"])
@settings(max_examples=60)
@given(text=replies, cuts=st.lists(st.integers(0, 200), max_size=12), tools=st.booleans(), ended=st.booleans())
def test_whatever_the_chunks_the_pieces_are_the_reply(
    family: str, text: str, cuts: list[int], tools: bool, ended: bool
) -> None:
    render = renderer(family)
    ids = render.tokenizer.encode(text) + ([render.stop_ids[0]] if ended else [])
    passed, reply, _ = read(family, ids, cuts, tools=tools)
    assert joined(passed) == (reply.reasoning, reply.content)


def one_by_one(family: str, text: str, **settings: Any) -> tuple[list[tuple[str, str]], Reply]:
    ids = renderer(family).tokenizer.encode(text)
    passed, reply, _ = read(family, ids, range(len(ids)), **settings)
    return passed, reply


@pytest.mark.parametrize(
    "text",
    ["a < b and c > d", "use <tool x", "x <", "1 [TOOL", "a {b}", "[1, 2]", "<b>bold</b>", "</", "日本 é 👩‍👩‍👧"],
)
@pytest.mark.parametrize("tools", [True, False])
def test_what_only_looks_like_a_call_arrives_whole(text: str, tools: bool) -> None:
    passed, reply = one_by_one("qwen3", text, tools=tools)
    assert joined(passed) == ("", text)
    assert (reply.content, reply.tool_calls) == (text, [])


def test_text_is_passed_on_as_soon_as_it_is_clear() -> None:
    passed, _ = one_by_one("qwen3", "<think>so it is</think>\n\nthe answer is a <b>")
    early = joined(passed[:-1])
    assert early == ("so it is", "the answer is a <b>")
    assert len([1 for reasoning, content in passed if reasoning or content]) > 5


@pytest.mark.parametrize(
    "family", ["qwen3", "glm-4.5", "glm-5", "minimax-m2", "deepseek-r1", "kimi-k2.5", "llama-3", "default"]
)
def test_reasoning_and_text_are_separated(family: str) -> None:
    render = renderer(family)
    opened = render.tokenizer.decode(render.render(call()).tolist()[-4:]).rstrip().endswith("<think>")
    passed, reply = one_by_one(family, ("" if opened else "<think>") + "\nhm, so\n</think>\n\nthe answer\n")
    assert joined(passed) == ("hm, so", "the answer") == (reply.reasoning, reply.content)
    assert joined(passed[:-1]) == joined(passed)  # as it came


def test_a_thought_within_a_thought_is_the_same_thought() -> None:
    for family in ("qwen3", "kimi-k2"):  # as one token, and as many
        passed, reply = one_by_one(family, "<think>a<think>b</think>c")
        assert joined(passed) == ("ab", "c") == (reply.reasoning, reply.content)


def test_nothing_of_a_call_is_passed_on_as_text() -> None:
    passed, reply = one_by_one("qwen3", f"Let me see.\n{CALL}\n{CALL}")
    assert joined(passed) == ("", "Let me see.")
    assert [made.name for made in reply.tool_calls] == ["look", "look"]


def test_nothing_of_a_call_that_ends_a_thought_is_passed_on() -> None:
    passed, reply = one_by_one("qwen3", f"<think>I will look. {CALL}")
    assert joined(passed) == ("I will look.", "")
    assert [made.name for made in reply.tool_calls] == ["look"]


def test_a_reply_that_is_json_waits_until_it_is_known_to_be_no_call() -> None:
    passed, reply = one_by_one("llama-3", '{"name": "look", "parameters": {"city": "Paris"}}')
    assert joined(passed) == ("", "")
    assert [made.name for made in reply.tool_calls] == ["look"]
    passed, reply = one_by_one("llama-3", '{"city": "Paris"}')
    assert joined(passed) == ("", '{"city": "Paris"}')
    assert joined(passed[:-1]) == ("", "")


def test_without_tools_json_and_calls_are_text() -> None:
    for text in ('{"city": "Paris"}', CALL):
        passed, reply = one_by_one("qwen3", text, tools=False)
        assert joined(passed) == ("", text)
        assert (reply.tool_calls, reply.parse_failures) == ([], 0)
        assert joined(passed[:-1]) == ("", text)


def test_a_broken_call_comes_at_the_end() -> None:
    passed, reply = one_by_one("qwen3", 'Now: <tool_call>{"name": </tool_call>')
    assert joined(passed[:-1]) == ("", "Now:")
    assert joined(passed) == ("", 'Now:\n<tool_call>{"name": </tool_call>')
    assert reply.parse_failures == 1


def test_what_does_not_stream_is_passed_on_when_whole() -> None:
    assert not can_stream("gpt-oss")
    assert not can_stream("laguna-xs.2")
    render = renderer("laguna-xs.2")
    ids = render.tokenizer.encode("the answer")
    passed, reply, _ = read("laguna-xs.2", ids, range(20))
    assert joined(passed[:-1]) == ("", "")
    assert joined(passed) == (reply.reasoning, reply.content)


def test_a_final_reply_that_differs_from_the_stream_adds_nothing() -> None:
    stream = ReplyStream(renderer("qwen3").tokenizer, stop_ids=(), stop=(), calls=False, thinking=False, live=True)
    assert stream.feed(renderer("qwen3").tokenizer.encode("the answer")) == ("", "the answer")
    assert stream.finish(Reply("another")) == ("", "")


# Stop strings

stops = st.lists(st.text(st.sampled_from("ab\n <é"), min_size=1, max_size=4), min_size=1, max_size=3)


def cut_off(text: str, stop: Sequence[str]) -> str:
    return text[: min((place for place in map(text.find, stop) if place >= 0), default=len(text))]


@given(st.text(st.sampled_from("aab\n <é日"), max_size=20), stops, st.lists(st.integers(0, 60), max_size=20))
def test_a_stop_string_is_cut_off_exactly_and_none_of_it_leaks(text: str, stop: list[str], cuts: list[int]) -> None:
    tokenizer = renderer("qwen3").tokenizer
    stream = ReplyStream(tokenizer, stop_ids=(), stop=stop, calls=False, thinking=False, live=True, plain=True)
    ids = tokenizer.encode(text)
    said, seen = "", ""
    for start, end in itertools.pairwise(sorted({0, *(cut % (len(ids) + 1) for cut in cuts), len(ids)})):
        said += stream.feed(ids[start:end])[1]
        seen = tokenizer.decode(ids[:end])
        assert cut_off(seen, stop).startswith(said)
        if stream.stopped:
            break
    assert stream.stopped == any(word in text for word in stop)
    assert seen == text or stream.stopped
    held = cut_off(seen, stop)[len(said) :]
    assert any(word.startswith(held) for word in stop)  # not more than it has to
    assert stream.finish(Reply(cut_off(seen, stop))) == ("", held)


@pytest.mark.parametrize("family", ["qwen3", "default", "llama-3"])
@settings(max_examples=60)
@given(
    text=st.text(st.sampled_from("ab c"), max_size=16),
    cuts=st.lists(st.integers(0, 60), max_size=20),
    thought=st.booleans(),
)
def test_a_stop_string_in_a_reply_is_never_passed_on(family: str, text: str, cuts: list[int], thought: bool) -> None:
    stop = ["abc", "ca"]
    ids = renderer(family).tokenizer.encode(f"<think>{text}</think>b" if thought else text)
    passed, _, stream = read(family, ids, cuts, stop=stop)
    assert stream.stopped == (cut_off(text, stop) != text)
    reasoning, content = joined(passed[:-1])
    if stream.stopped:
        assert cut_off(text, stop).lstrip().startswith(reasoning if thought else content)
        assert (content if thought else reasoning) == ""


# Characters


@given(st.text(max_size=20), st.lists(st.integers(0, 200), max_size=30))
def test_no_character_is_broken(text: str, cuts: list[int]) -> None:
    tokenizer = renderer("qwen3").tokenizer
    text = text.encode("utf-8", "replace").decode()
    ids = tokenizer.encode(text)
    decoder = Text(tokenizer)
    places = sorted({0, *(cut % (len(ids) + 1) for cut in cuts), len(ids)})
    said = "".join(decoder.feed(ids[start:end]) for start, end in itertools.pairwise(places))
    whole = tokenizer.decode(ids)
    assert said == whole or whole[len(said) :].strip("\ufffd") == ""
    assert whole.startswith(said)


def test_half_a_character_waits_for_its_other_half() -> None:
    tokenizer = renderer("qwen3").tokenizer
    decoder = Text(tokenizer)
    ids = tokenizer.encode("👩")
    assert len(ids) == 4
    assert [decoder.feed([token]) for token in ids] == ["", "", "", "👩"]
    assert decoder.feed(tokenizer.encode("!")) == "!"


def test_spaces_between_tokens_that_only_the_decoder_knows_are_kept() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"▁the": 0, "▁answer": 1}, unk_token="▁the"))
    backend.decoder = tokenizers.decoders.Metaspace()
    decoder = Text(Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend)))
    assert [decoder.feed([token]) for token in (0, 1, 1)] == ["the", " answer", " answer"]


def test_special_tokens_in_a_reply_lose_nothing() -> None:
    render = renderer("default")
    ids = [
        *render.tokenizer.encode("one "),
        render.tokenizer.encode("<|endoftext|>")[0],
        *render.tokenizer.encode(" two"),
    ]
    passed, reply, _ = read("default", ids, range(20))
    assert joined(passed) == ("", reply.content)
    assert reply.content.split() == ["one", "two"]


@pytest.mark.parametrize("tools", [False, True])
def test_a_token_that_closes_the_text_is_not_passed_on(tools: bool) -> None:
    ids = renderer("closing").tokenizer.encode("It is sunny.<|vision_end|><|im_end|>")
    passed, reply, _ = read("closing", ids, range(20), tools=tools)
    assert joined(passed) == ("", "It is sunny.") == ("", reply.content)
