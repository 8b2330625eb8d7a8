"""A server's message, put together from its deltas."""

from __future__ import annotations

from agentcore_rl_toolkit.gateway.chat import ToolCall
from agentcore_rl_toolkit.gateway.proxy import Gathered


def test_calls_come_in_pieces_and_side_by_side() -> None:
    gathered = Gathered()
    gathered.add({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "add", "arguments": '{"x"'}}]})
    gathered.add({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "sub", "arguments": "{"}}]})
    gathered.add({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]})
    gathered.add({"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]})
    assert gathered.reply.tool_calls == [ToolCall("a", "add", '{"x": 1}'), ToolCall("b", "sub", "{}")]


def test_pieces_are_told_once() -> None:
    gathered = Gathered()
    gathered.add({"reasoning_content": "hm", "content": "It "})
    assert gathered.unsent() == ("hm", "It ")
    gathered.add({"reasoning": "", "content": "is"})
    assert gathered.unsent() == ("", "is")
    assert gathered.unsent() == ("", "")
    assert (gathered.reply.reasoning, gathered.reply.content) == ("hm", "It is")
