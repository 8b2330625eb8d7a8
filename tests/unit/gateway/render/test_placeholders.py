"""Long texts as stand-ins: the same prompts, put together faster, or not at all."""

from __future__ import annotations

import threading
from array import array

import pytest

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.gateway.call.chat import ChatCall
from agentcore_rl_toolkit.gateway.render.placeholders import LONG_CALLS, StandIns
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.tokenizers import FAMILIES, PLAIN_TEMPLATE, make_tokenizer

LONG = "a long text, of many words, that is said again and again. " * 20


def renderer(family: str) -> ChatRenderer:
    return ChatRenderer(Tokenizer(make_tokenizer(family=family)), renderer=family)


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_the_same_to_the_token(family: str) -> None:
    quick = renderer(family)
    slow = renderer(family)
    slow._agreed = False
    system, question = {"role": "system", "content": LONG}, {"role": "user", "content": LONG[3:]}
    for call in (ChatCall([question]), ChatCall([system, question]), *LONG_CALLS):
        assert quick.render(call) == slow.render(call)


def test_formats_that_look_at_ids_are_found_out() -> None:
    assert not renderer("deepseek-v4")._agreed
    assert renderer("qwen3")._agreed


def test_renderers_handle_fewer_ids() -> None:
    one = renderer("qwen3")
    with one._stand_ins.used():
        ids = one._plain.render_ids([{"role": "user", "content": LONG}], add_generation_prompt=True)
        assert min(ids) < 0
        assert len(ids) < 20 < len(one._stand_ins.restore(ids))


def test_a_template_of_its_own_is_rendered_the_same_too() -> None:
    tokenizer = make_tokenizer("somebody/model", PLAIN_TEMPLATE)
    messages = [{"role": "user", "content": LONG}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ChatRenderer(Tokenizer(tokenizer)).render(ChatCall(messages)).tolist() == expected


def test_restoring_puts_every_text_in_its_place() -> None:
    tokenizer = Tokenizer(make_tokenizer())
    stand_ins = StandIns(tokenizer)
    first, second = tokenizer.encode(LONG), tokenizer.encode(LONG.upper())
    with stand_ins.used():
        ids = [7, *stand_ins.encode(LONG), *stand_ins.encode("short"), *stand_ins.encode(LONG.upper()), 8]
        assert [token for token in ids if token < 0] == [-1, -2]
        assert stand_ins.restore(ids) == array(IDS, [7, *first, *tokenizer.encode("short"), *second, 8])
        assert stand_ins.restore([-2, -1]) == array(IDS, [*second, *first])
        assert stand_ins.restore([1, 2]) == array(IDS, [1, 2])
    assert stand_ins.encode(LONG) == first


def test_other_threads_get_real_ids() -> None:
    stand_ins = StandIns(Tokenizer(make_tokenizer()))
    seen: list[list[int]] = []
    with stand_ins.used():
        thread = threading.Thread(target=lambda: seen.append(stand_ins.encode(LONG)))
        thread.start()
        thread.join()
    assert min(seen[0]) >= 0
