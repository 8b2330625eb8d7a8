"""Orders of roles that a chat template doesn't take, settled before they get there."""

from __future__ import annotations

from typing import Any

import pytest

from agentcore_rl_toolkit.gateway.call.chat import ChatCall
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.roles import RoleOrderAdapter, adapt_roles
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.tokenizers import PLAIN_TEMPLATE, make_tokenizer

# What templates do: refuse a second system message, drop it, move it to the start, or insist on turns.
_END = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('not first') }}{% endif %}"
    + _TURN + "{% endfor %}" + _END
)  # fmt: skip
DROPS = "{% for m in messages %}{% if m.role != 'system' or loop.first %}" + _TURN + "{% endif %}{% endfor %}" + _END
MOVES = (
    "{% for m in messages if m.role == 'system' %}" + _TURN + "{% endfor %}"
    "{% for m in messages if m.role != 'system' %}" + _TURN + "{% endfor %}" + _END
)
ALTERNATES = (
    "{% for m in messages %}{% if loop.previtem and loop.previtem.role == m.role %}{{ raise_exception('twice') }}"
    "{% endif %}" + _TURN + "{% endfor %}" + _END
)
ASKED = [
    {"role": "system", "content": "AAA"},
    {"role": "system", "content": "BBB"},
    {"role": "user", "content": "CCC"},
    {"role": "user", "content": "DDD"},
    {"role": "system", "content": "EEE"},
]


def rendered(template: str) -> tuple[Any, str]:
    tokenizer = make_tokenizer("anonymous", template)
    renderer = ChatRenderer(Tokenizer(tokenizer), renderer="default")
    ids = list(renderer.render(ChatCall(ASKED)))
    return adapt_roles(renderer.family.create({}), renderer.tokenizer.decode), str(tokenizer.decode(ids))


def turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


LATER = [turn("user", "CCC"), turn("user", "DDD"), turn("user", "EEE")]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (REFUSES, [turn("system", "AAA\n\nBBB"), *LATER]),
        (DROPS, [turn("system", "AAA\n\nBBB"), *LATER]),
        (MOVES, [turn("system", "AAA"), turn("system", "BBB"), *LATER]),
        (ALTERNATES, [turn("system", "AAA\n\nBBB"), turn("user", "CCC\n\nDDD"), turn("system", "EEE")]),
    ],
)
def test_messages_are_put_into_an_order_that_the_template_takes(template: str, said: list[str]):
    renderer, text = rendered(template)
    assert isinstance(renderer, RoleOrderAdapter)
    assert text == "".join(said) + "<|im_start|>assistant\n"


def test_a_template_that_takes_them_all_is_left_alone():
    renderer, text = rendered(PLAIN_TEMPLATE)
    assert not isinstance(renderer, RoleOrderAdapter)
    assert text.startswith(turn("system", "AAA") + turn("system", "BBB"))


def test_qwen35_takes_what_codex_sends():
    """Its renderer refuses every system message but the first."""
    tokenizer = make_tokenizer("anonymous", family="qwen3.5")
    renderer = ChatRenderer(Tokenizer(tokenizer), renderer="qwen3.5")
    text = str(tokenizer.decode(list(renderer.render(ChatCall(ASKED)))))
    assert [text.find(said) for said in ("AAA", "BBB", "CCC", "DDD", "EEE")] == sorted(
        text.find(said) for said in ("AAA", "BBB", "CCC", "DDD", "EEE")
    )
    assert "EEE" in text
