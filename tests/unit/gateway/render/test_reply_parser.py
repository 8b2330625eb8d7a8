"""Replies that are nothing but text are read without `renderers`, and as it would read them."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.gateway.call.chat import ChatCall, Reply
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.reply_parser import Replies
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.tokenizers import FAMILIES, PLAIN_TEMPLATE, make_tokenizer

USER = {"role": "user", "content": "What is two and two?"}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALLS = (ChatCall([USER]), ChatCall([USER], [LOOK]))
WORDS = ["Four", " is", "four", "\n", " ", "é", "}", "]", ">", "assistant\n", "analysis", "to=look", "`", '"']
PIECES = [
    *WORDS,
    "<",
    "{",
    "[",
    "<think>",
    "</think>",
    "<tool_call>",
    '{"name": "look", "arguments": {}}',
    "</tool_call>",
]


@cache
def render(family: str) -> ChatRenderer:
    if family == "generic":
        return ChatRenderer(Tokenizer(make_tokenizer("some/model", PLAIN_TEMPLATE)))
    return ChatRenderer(Tokenizer(make_tokenizer(f"some/{family}", family=family)), renderer=family)


class Reading:
    """A renderer that notes the replies it is asked to read."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.read: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def parse_response(self, ids: list[int], **rest: Any) -> Any:
        self.read.append(ids)
        return self._real.parse_response(ids, **rest)


def replies(family: str) -> Replies:
    chat = render(family)
    return Replies(chat.tokenizer, chat.stop_ids)


def reading(family: str = "qwen3", prompt: str = "<|im_start|>assistant\n") -> tuple[Any, Reading]:
    """What parses a reply's text with a renderer that has agreed, and that renderer."""
    chat, spy, parser = render(family), Reading(render(family)._plain), replies(family)
    encode = chat.tokenizer.encode

    def parse(text: str, ids: tuple[int, ...] = (), after: str = prompt, call: ChatCall = CALLS[1]) -> Reply:
        return parser.parse(spy, [*encode(text), *ids], encode(after), call, "u")

    parse("")
    spy.read.clear()
    return parse, spy


@pytest.mark.parametrize("family", [*FAMILIES, "generic"])
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=8), before=st.sampled_from(PIECES), data=st.data())
def test_every_reply_is_read_as_the_renderer_reads_it(
    family: str, pieces: list[str], before: str, data: st.DataObject
) -> None:
    chat = render(family)
    encode = chat.tokenizer.encode
    call = data.draw(st.sampled_from(CALLS))
    prompt = chat.render(ChatCall([{"role": "user", "content": f"x{before}"}], call.tools)).tolist()[-64:]
    ids = [*encode("".join(pieces)), *data.draw(st.lists(st.sampled_from(chat.stop_ids), max_size=2))]
    ids += data.draw(st.lists(st.integers(0, chat.tokenizer.size - 1), max_size=3))
    assert chat.parse(ids, prompt, call, "u") == chat._replies._read(chat._plain, ids, prompt, call, "u")


def test_plain_text_is_not_given_to_the_renderer() -> None:
    parse, spy = reading()
    stop = render("qwen3").stop_ids[0]
    assert parse("  It is four: a > b ]}.\n", (stop,)) == Reply("It is four: a > b ]}.")
    assert parse("Four.", call=CALLS[0]) == parse("Four.", after="<think>hi<|im_start|>assistant\n") == Reply("Four.")
    assert not spy.read
    assert parse("", (stop,)) == parse("") == Reply()
    assert not spy.read


@pytest.mark.parametrize(
    "text",
    [
        "a < b",
        "see {x}",
        "[1]",
        "◁think▷",
        "<think>hm</think>4",
        '<tool_call>{"name": "look"}</tool_call>',
        "4<|im_end|>x",
    ],
)
def test_what_may_have_a_mark_is_given_to_the_renderer(text: str) -> None:
    parse, spy = reading()
    parse(text)
    assert len(spy.read) == 1


def test_tokens_that_mean_something_are_given_to_the_renderer_whatever_they_say() -> None:
    real = make_tokenizer("some/model", PLAIN_TEMPLATE)
    real.add_tokens(["PAUSE"])
    chat = ChatRenderer(Tokenizer(real))
    spy, encode = Reading(chat._plain), chat.tokenizer.encode
    for said, read in (("Four four", 0), ("Four PAUSE four", 1)):
        chat._replies.parse(spy, [], [], CALLS[0], "u")
        spy.read.clear()
        chat._replies.parse(spy, encode(said), encode("<|im_start|>assistant\n"), CALLS[0], "u")
        assert len(spy.read) == read
    stopping = Replies(chat.tokenizer, encode("x"))
    assert stopping._words(encode("Fourx")) == "Four"
    assert stopping._words(encode("Fourxfour")) is None


@pytest.mark.parametrize("prompt", ["<|im_start|>assistant\n<think>\n", "<|im_start|>assistant", "hi", ""])
def test_a_reply_that_its_prompt_has_begun_is_given_to_the_renderer(prompt: str) -> None:
    parse, spy = reading()
    parse("Four.", after=prompt)
    assert len(spy.read) == 1


@pytest.mark.parametrize(
    "said", ['x <tool_call>{"na', '<tool_call>\n{"name": }\n</tool_call>', "<tool_call>[1]</tool_call>"]
)
def test_a_call_that_is_none_is_text_as_it_was_sampled(said: str) -> None:
    parse, _ = reading()
    reply = parse(said, (render("qwen3").stop_ids[0],))
    assert (reply.content.replace("x\n", "x "), reply.parse_failures) == (said, 1)


def test_a_call_of_another_format_is_text_as_it_was_sampled() -> None:
    chat = render("deepseek-v3")
    said = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{"
    reply = chat.parse(chat.tokenizer.encode(said), chat.tokenizer.encode("<｜Assistant｜>"), CALLS[1], "u")
    assert reply.parse_failures == 1
    assert "tool_call>" not in reply.content
    assert reply.content in said


def test_a_call_whose_place_is_not_told_is_text_as_it_was_sampled() -> None:
    chat = render("kimi-k2.5")
    call = "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{<|tool_call_end|>"
    said = f"</think><|tool_call_section_begin|>{call}<|tool_call_section_end|>"  # not tokens of its own
    prompt = chat.tokenizer.encode("<|im_assistant|>assistant<|im_middle|><think>")
    reply = chat.parse(chat.tokenizer.encode(said), prompt, CALLS[1], "u")
    assert (reply.content, reply.parse_failures) == (call, 1)


def test_a_thought_that_the_prompt_opens_stays_a_thought() -> None:
    parse, _ = reading()
    assert parse("hm</think>Four.", after="<|im_start|>assistant\n<think>\n") == Reply("Four.", "hm")


def test_most_formats_read_plain_text_as_it_is() -> None:
    chats = {family: render(family) for family in [*FAMILIES, "generic"]}
    openings = {family: chat._replies._opening(chat._plain) for family, chat in chats.items()}
    thinking = {family for family, opening in openings.items() if opening is None}
    ends = {family: chats[family].tokenizer.decode(chats[family].render(CALLS[0])[-4:]) for family in chats}
    assert thinking == {family for family, end in ends.items() if end.rstrip().endswith("<think>")}
    assert {"qwen3", "llama-3", "kimi-k2", "deepseek-v3", "glm-4.5", "generic"} <= chats.keys() - thinking


class Marking(Reading):
    """A renderer that finds something in plain text: `what` of its reply or of its prompt."""

    def __init__(self, real: Any, where: str, what: str) -> None:
        super().__init__(real)
        self._where, self._what = where, what

    def parse_response(self, ids: list[int], *, prompt_ids: list[int], tools: Any = None) -> Any:
        parsed = super().parse_response(ids, prompt_ids=prompt_ids, tools=tools)
        decode = self._real._tokenizer.decode
        if (self._where != "tools" or tools) and self._what in decode(prompt_ids if self._where == "prompt" else ids):
            parsed.content = f"({parsed.content})"
        return parsed


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("reply", "Action:"),
        ("reply", "analysis"),
        ("reply", "assistant\n"),
        ("reply", "<|im_end|>"),
        ("tools", "call:look"),
        ("prompt", "<tool_call>"),
        ("prompt", "assistant\n<think>"),
        ("prompt", "assistant\nhi"),
        ("prompt", "<|endoftext|>"),
    ],
)
def test_a_renderer_that_finds_something_in_plain_text_reads_every_reply(where: str, what: str) -> None:
    parser, chat = replies("qwen3"), render("qwen3")
    encode = chat.tokenizer.encode
    for renderer, kept in ((Marking(chat._plain, where, what), True), (Marking(chat._plain, where, "never"), False)):
        parser.parse(renderer, encode("Four."), encode("<|im_start|>assistant\n"), CALLS[1], "u")
        renderer.read.clear()
        parser.parse(renderer, encode("Four."), encode("<|im_start|>assistant\n"), CALLS[1], "u")
        assert bool(renderer.read) == kept


class Wordless(Reading):
    """A renderer whose prompts can't be made, or end with nothing, or change when the reply is asked for."""

    def __init__(self, real: Any, kind: str) -> None:
        super().__init__(real)
        self._kind = kind

    def render_ids(self, messages: Any, *, add_generation_prompt: bool = False, **rest: Any) -> list[int]:
        if self._kind == "refuses":
            raise ValueError("no")
        ids: list[int] = self._real.render_ids(messages, add_generation_prompt=False, **rest)
        return [*ids[1:], *ids] if self._kind == "changes" and add_generation_prompt else ids


@pytest.mark.parametrize("kind", ["refuses", "empty", "changes"])
def test_a_renderer_without_an_opening_of_its_own_reads_every_reply(kind: str) -> None:
    parser, chat = replies("qwen3"), render("qwen3")
    renderer = Wordless(chat._plain, kind)
    for _ in range(2):
        renderer.read.clear()
        parser.parse(renderer, chat.tokenizer.encode("Four."), chat.tokenizer.encode("hi"), CALLS[0], "u")
        assert len(renderer.read) == 1


def test_what_was_found_out_goes_with_its_renderer() -> None:
    parser, chat = replies("qwen3"), render("qwen3")
    renderer = Reading(chat._plain)
    parser.parse(renderer, [], [], CALLS[0], "u")
    assert len(parser._openings) == 1
    del renderer
    gc.collect()
    assert not parser._openings
