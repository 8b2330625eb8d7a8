"""The form of a reply, by what a call asks for."""

from __future__ import annotations

from agentcore_rl_toolkit.engine.reply_form import Form
from agentcore_rl_toolkit.gateway.call.chat import ChatCall
from agentcore_rl_toolkit.gateway.call.prompt_plan import choose_form
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.tokenizers import make_tokenizer

SCHEMA = {"type": "object"}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_a_tool_that_a_message_brought_in_may_be_called_beside_a_schema() -> None:
    render = ChatRenderer(Tokenizer(make_tokenizer()), renderer="qwen3")
    call = ChatCall([{"role": "user", "content": "hi"}], loaded=[LOOK])
    assert choose_form(render, call, render.render(call), SCHEMA) == Form("optional", "<tool_call>", SCHEMA)
