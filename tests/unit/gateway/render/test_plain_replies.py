"""Replies that can only be text skip the renderer, and read as the renderer would read them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.gateway.call.chat import ChatCall, Reply
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.reply_parser import PlainReplies, ReplyParser
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.tokenizers import FAMILIES, PLAIN_TEMPLATE, make_tokenizer

USER = {"role": "user", "content": "What is two and two?"}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALLS = (ChatCall([USER]), ChatCall([USER], [LOOK]))
OPENING = "<|im_start|>assistant\n"
WORDS = ["Four", " is", "\n", " ", "é", "}", "]", ">", "assistant\n", "analysis", "to=look", "`", '"']
MARKS = ["<", "{", "[", "<think>", "</think>", "<tool_call>", '{"name": "look", "arguments": {}}', "</tool_call>"]


@cache
def render(family: str) -> ChatRenderer:
    if family == "generic":
        return ChatRenderer(Tokenizer(make_tokenizer("some/model", PLAIN_TEMPLATE)))
    return ChatRenderer(Tokenizer(make_tokenizer(f"some/{family}", family=family)), renderer=family)


@cache
def create(family: str) -> Any:
    return render(family).family.create({})


def plain_replies(family: str = "qwen3") -> PlainReplies:
    chat = render(family)
    return PlainReplies(chat.tokenizer, chat.stop_ids, ReplyParser(chat.tokenizer, chat.stop_ids).parse)


def read(text: str, ids: tuple[int, ...] = (), prompt: str = OPENING, renderer: Any = None) -> Reply | None:
    encode = render("qwen3").tokenizer.encode
    return plain_replies().read(renderer or create("qwen3"), [*encode(text), *ids], encode(prompt))


@pytest.mark.parametrize("family", [*FAMILIES, "generic"])
@given(pieces=st.lists(st.sampled_from([*WORDS, *MARKS]), max_size=8), before=st.sampled_from(MARKS), data=st.data())
def test_every_reply_reads_as_the_renderer_reads_it(
    family: str, pieces: list[str], before: str, data: st.DataObject
) -> None:
    chat = render(family)
    call = data.draw(st.sampled_from(CALLS))
    prompt = chat.render(ChatCall([{"role": "user", "content": f"x{before}"}], call.tools)).tolist()[-64:]
    ids = [*chat.tokenizer.encode("".join(pieces)), *data.draw(st.lists(st.sampled_from(chat.stop_ids), max_size=2))]
    ids += data.draw(st.lists(st.integers(0, chat.tokenizer.size - 1), max_size=3))
    parsed = ReplyParser(chat.tokenizer, chat.stop_ids).parse(create(family), ids, prompt, call, "u")
    assert chat.parse(ids, prompt, call, "u") == parsed


def test_plain_text_skips_the_renderer() -> None:
    stop = render("qwen3").stop_ids[0]
    assert read("  It is four: a > b ]}.\n", (stop,)) == Reply("It is four: a > b ]}.")
    assert read("Four.", prompt=f"<think>hi{OPENING}") == Reply("Four.")
    assert read("", (stop,)) == read("") == Reply()


@pytest.mark.parametrize("text", ["a < b", "see {x}", "[1]", "◁think▷", "<think>hm</think>4", "4<|im_end|>x"])
def test_text_with_a_possible_mark_needs_the_renderer(text: str) -> None:
    assert read(text) is None


def test_an_added_token_needs_the_renderer_whatever_its_text() -> None:
    real = make_tokenizer("some/model", PLAIN_TEMPLATE)
    real.add_tokens(["PAUSE"])
    chat = ChatRenderer(Tokenizer(real))
    plain = PlainReplies(chat.tokenizer, chat.stop_ids, ReplyParser(chat.tokenizer, chat.stop_ids).parse)
    renderer, encode = chat.family.create({}), chat.tokenizer.encode
    assert plain.read(renderer, encode("Four four"), encode(OPENING)) == Reply("Four four")
    assert plain.read(renderer, encode("Four PAUSE four"), encode(OPENING)) is None


@pytest.mark.parametrize("prompt", [f"{OPENING}<think>\n", "<|im_start|>assistant", "hi", ""])
def test_a_reply_that_its_prompt_has_begun_needs_the_renderer(prompt: str) -> None:
    assert read("Four.", prompt=prompt) is None


def test_most_formats_read_plain_text_as_it_is() -> None:
    prompts = {family: render(family).render(CALLS[0]).tolist() for family in [*FAMILIES, "generic"]}
    four = {family: render(family).tokenizer.encode("Four.") for family in prompts}
    skipped = {f for f in prompts if plain_replies(f).read(create(f), four[f], prompts[f]) == Reply("Four.")}
    assert {"qwen3", "llama-3", "kimi-k2", "deepseek-v3", "glm-4.5", "generic"} <= skipped
    ends = {family: render(family).tokenizer.decode(ids[-4:]).rstrip() for family, ids in prompts.items()}
    assert prompts.keys() - skipped == {family for family, end in ends.items() if end.endswith("<think>")}


class FindsMore:
    """A renderer that finds something in plain text: `what` in its reply or in its prompt."""

    def __init__(self, where: str, what: str) -> None:
        self._where, self._what = where, what

    def __getattr__(self, name: str) -> Any:
        return getattr(create("qwen3"), name)

    def parse_response(self, ids: list[int], *, prompt_ids: list[int], tools: Any = None) -> Any:
        parsed = create("qwen3").parse_response(ids, prompt_ids=prompt_ids, tools=tools)
        text = render("qwen3").tokenizer.decode(prompt_ids if self._where == "prompt" else ids)
        if (self._where != "tools" or tools) and self._what in text:
            parsed.content = f"({parsed.content})"
        return parsed


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("reply", "Action:"), ("reply", "analysis"), ("reply", "assistant\n"), ("reply", "<|im_end|>"),
        ("tools", "call:look"), ("prompt", "<tool_call>"), ("prompt", "assistant\n<think>"),
        ("prompt", "assistant\nhi"), ("prompt", "<|endoftext|>"),
    ],
)  # fmt: skip
def test_a_renderer_that_finds_something_in_plain_text_reads_every_reply(where: str, what: str) -> None:
    assert read("Four.", renderer=FindsMore(where, what)) is None
    assert read("Four.", renderer=FindsMore(where, "never")) == Reply("Four.")


class WithoutOpening:
    """A renderer that refuses short prompts, adds nothing to ask for a reply, or changes the prompt to do so."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(create("qwen3"), name)

    def render_ids(self, messages: Any, *, add_generation_prompt: bool = False, **rest: Any) -> list[int]:
        if self._kind == "refuses":
            raise ValueError("no")
        ids: list[int] = create("qwen3").render_ids(messages, add_generation_prompt=False, **rest)
        return [*ids[1:], *ids] if self._kind == "changes" and add_generation_prompt else ids


@pytest.mark.parametrize("kind", ["refuses", "empty", "changes"])
def test_a_renderer_whose_prompts_have_no_known_end_reads_every_reply(kind: str) -> None:
    assert read("Four.", prompt="hi", renderer=WithoutOpening(kind)) is None
