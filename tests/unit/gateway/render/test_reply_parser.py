"""Replies are parsed through `renderers`; what it can't read stays text."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.gateway.call.chat import ChatCall, Reply
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
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


def parse(text: str, ids: tuple[int, ...] = (), after: str = "<|im_start|>assistant\n") -> Reply:
    """A reply's text as Qwen3's renderer parses it."""
    chat = render("qwen3")
    return chat.parse([*chat.tokenizer.encode(text), *ids], chat.tokenizer.encode(after), CALLS[1], "u")


@pytest.mark.parametrize("family", [*FAMILIES, "generic"])
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=8), data=st.data())
def test_every_reply_is_parsed_whatever_was_sampled(family: str, pieces: list[str], data: st.DataObject) -> None:
    chat = render(family)
    call = data.draw(st.sampled_from(CALLS))
    prompt = chat.render(ChatCall([USER], call.tools)).tolist()[-64:]
    ids = [*chat.tokenizer.encode("".join(pieces)), *data.draw(st.lists(st.sampled_from(chat.stop_ids), max_size=2))]
    ids += data.draw(st.lists(st.integers(0, chat.tokenizer.size - 1), max_size=3))
    reply = chat.parse(ids, prompt, call, "u")
    assert call.tools or not (reply.tool_calls or reply.parse_failures)
    assert reply == chat.parse(ids, prompt, call, "u")


@pytest.mark.parametrize("call", CALLS)
def test_plain_text_is_text(call: ChatCall) -> None:
    chat = render("qwen3")
    ids = [*chat.tokenizer.encode("  It is four: a > b ]}.\n"), chat.stop_ids[0]]
    assert chat.parse(ids, chat.tokenizer.encode("<|im_start|>assistant\n"), call, "u") == Reply(
        "It is four: a > b ]}."
    )
    assert chat.parse([], [], call, "u") == Reply()


@pytest.mark.parametrize(
    "said", ['x <tool_call>{"na', '<tool_call>\n{"name": }\n</tool_call>', "<tool_call>[1]</tool_call>"]
)
def test_a_call_that_is_none_is_text_as_it_was_sampled(said: str) -> None:
    reply = parse(said, (render("qwen3").stop_ids[0],))
    assert (reply.content.replace("x\n", "x "), reply.parse_failures) == (said, 1)


def test_a_call_of_another_format_is_text_as_it_was_sampled() -> None:
    chat = render("deepseek-v3")
    said = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{"
    reply = chat.parse(chat.tokenizer.encode(said), chat.tokenizer.encode("<｜Assistant｜>"), CALLS[1], "u")
    assert reply.parse_failures == 1
    assert "tool_call>" not in reply.content
    assert reply.content in said


def test_a_malformed_call_without_a_span_stays_as_it_was_sampled() -> None:
    chat = render("kimi-k2.5")
    call = "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{<|tool_call_end|>"
    said = f"</think><|tool_call_section_begin|>{call}<|tool_call_section_end|>"  # not tokens of its own
    prompt = chat.tokenizer.encode("<|im_assistant|>assistant<|im_middle|><think>")
    reply = chat.parse(chat.tokenizer.encode(said), prompt, CALLS[1], "u")
    assert (reply.content, reply.parse_failures) == (call, 1)


def test_a_thought_that_the_prompt_opens_stays_a_thought() -> None:
    assert parse("hm</think>Four.", after="<|im_start|>assistant\n<think>\n") == Reply("Four.", "hm")
