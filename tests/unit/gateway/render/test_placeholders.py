"""Prompts rendered with placeholders for long texts are the same, token by token."""

from __future__ import annotations

import threading
from array import array

import pytest

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.gateway.call.chat import ChatCall
from agentcore_rl_toolkit.gateway.render.renderer import LONG_CALLS, ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.tokenizers import FAMILIES, PLAIN_TEMPLATE, make_tokenizer

LONG = "a long text, of many words, that is said again and again. " * 20


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_the_same_to_the_token(family: str) -> None:
    chat = ChatRenderer(Tokenizer(make_tokenizer(family=family)), renderer=family)
    system, question = {"role": "system", "content": LONG}, {"role": "user", "content": LONG[3:]}
    rendered = 0
    for call in (ChatCall([question]), ChatCall([system, question]), *LONG_CALLS):
        try:
            ids = chat.family.create({}).render_ids(call.messages, tools=call.tools or None, add_generation_prompt=True)
        except Exception:  # some templates refuse some roles
            continue
        rendered += 1
        assert chat.render(call).tolist() == list(ids)
    assert rendered


def test_a_chat_template_renders_the_same() -> None:
    tokenizer = make_tokenizer("some/model", PLAIN_TEMPLATE)
    messages = [{"role": "user", "content": LONG}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ChatRenderer(Tokenizer(tokenizer)).render(ChatCall(messages)).tolist() == expected


def test_each_text_takes_the_place_of_its_placeholder() -> None:
    tokenizer = Tokenizer(make_tokenizer())
    first, second, short = map(tokenizer.encode, (LONG, LONG.upper(), "short"))
    seen: list[int] = []

    def render() -> list[int]:
        seen[:] = [7, *tokenizer.encode(LONG), *tokenizer.encode("short"), *tokenizer.encode(LONG.upper()), 8]
        return seen

    assert tokenizer.fill_placeholders(render) == array(IDS, [7, *first, *short, *second, 8])
    assert seen == [7, -1, *short, -2, 8]
    assert tokenizer.fill_placeholders(lambda: [1, 2]) == array(IDS, [1, 2])


def test_text_is_encoded_whole_after_rendering_failed() -> None:
    tokenizer = Tokenizer(make_tokenizer())
    with pytest.raises(ZeroDivisionError):
        tokenizer.fill_placeholders(lambda: [1 // 0])
    assert min(tokenizer.encode(LONG)) >= 0


def test_another_thread_sees_no_placeholders() -> None:
    tokenizer, seen = Tokenizer(make_tokenizer()), []

    def render() -> list[int]:
        thread = threading.Thread(target=lambda: seen.extend(tokenizer.encode(LONG)))
        thread.start()
        thread.join()
        return []

    tokenizer.fill_placeholders(render)
    assert min(seen) >= 0
