"""Tools of Responses that are not functions: as the model sees them, and as their calls come back to the client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.call.chat import Reply, ToolCall
from agentcore_rl_toolkit.gateway.wire.openai.response_items import read_items
from agentcore_rl_toolkit.gateway.wire.openai.response_tools import ResponseTools, custom_arguments, custom_input
from agentcore_rl_toolkit.gateway.wire.openai.responses import ResponseExchange
from support.wire import answer, asked, streamed

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch", "description": "Edits.", "format": {"type": "text"}}
MCP = {"type": "namespace", "name": "mcp__files", "description": "Files", "tools": [LOOK, PATCH]}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds tools", "parameters": {"type": "object"}}
HI = {"role": "user", "content": "hi"}


def exchange(*items: dict[str, Any], **body: Any) -> ResponseExchange:
    return ResponseExchange(asked({"input": [HI, *items], **body}))


def names(tools: list[dict[str, Any]]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def said(made: ResponseExchange, *calls: ToolCall) -> list[dict[str, Any]]:
    """The items of a reply, which a stream's events have to agree with."""
    answered = answer(Reply(tool_calls=list(calls)))
    whole = json.loads(made.whole(answered))
    items = whole["output"]
    data = streamed(ResponseExchange(asked({"input": "hi", "tools": whole["tools"]})), answered).decode()
    events = [json.loads(line.removeprefix("data: ")) for line in data.splitlines() if line.startswith("data: ")]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == items
    return list(items)


def test_a_namespace_is_flat_to_the_model_and_comes_back_as_one():
    made = exchange(tools=[LOOK, MCP, {"type": "namespace", "name": "functions", "tools": [SEARCH | {"x": 1}]}])
    assert names(made.call.tools) == ["look", "mcp__files__look", "mcp__files__patch", "tool_search"]
    (item,) = said(made, ToolCall("call_1", "mcp__files__look", '{"a": 1}'))
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "mcp__files", "look")
    (echoed,) = read_items([item], {})
    assert echoed["tool_calls"][0]["function"] == {"name": "mcp__files__look", "arguments": {"a": 1}}
    (plain,) = said(made, ToolCall("call_1", "look", "{}"))
    assert "namespace" not in plain


def test_a_namespace_may_be_chosen_from():
    choice = {"type": "function", "name": "look", "namespace": "mcp__files"}
    assert exchange(tools=[MCP], tool_choice=choice).call.tool_choice == "=mcp__files__look"
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [choice, {"type": "custom", "name": "patch"}]}
    made = exchange(tools=[PATCH, MCP | {"tools": [LOOK]}], tool_choice=allowed)
    assert made.call.tool_choice == "required"


def test_a_custom_tool_has_one_text():
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    made = exchange(tools=[PATCH | {"format": grammar}])
    (function,) = [tool["function"] for tool in made.call.tools]
    assert function["parameters"]["required"] == ["input"]
    assert "start: WORD" in function["description"]
    (item,) = said(made, ToolCall("call_1", "patch", json.dumps({"input": "*** Begin\n+x"})))
    assert (item["type"], item["input"], item["call_id"]) == ("custom_tool_call", "*** Begin\n+x", "call_1")
    output = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"}
    echoed, result = read_items([item, output], {})
    assert echoed["tool_calls"][0]["function"]["arguments"] == {"input": "*** Begin\n+x"}
    assert result == {"role": "tool", "content": "done", "tool_call_id": "call_1"}


@pytest.mark.parametrize(
    "arguments",
    ['{"input": "x"}', '{"input": "{\\"input\\": \\"x\\"}"}', '{"patch": "x"}', '{"input": "x", "more": 1}', "{}"],
)
def test_any_call_of_a_custom_tool_comes_back_as_it_was_made(arguments: str):
    assert custom_arguments(custom_input(arguments)) == json.loads(arguments)


def test_a_search_for_tools_that_the_client_runs():
    made = exchange(tools=[SEARCH, MCP | {"tools": [LOOK | {"defer_loading": True}]}])
    assert names(made.call.tools) == ["tool_search"]
    (item,) = said(made, ToolCall("call_1", "tool_search", '{"query": "files"}'))
    assert (item["type"], item["execution"], item["arguments"]) == ("tool_search_call", "client", {"query": "files"})
    found = {"type": "tool_search_output", "call_id": "call_1", "execution": "client", "tools": [MCP]}
    after = exchange(item, found, tools=[SEARCH, MCP | {"tools": [LOOK | {"defer_loading": True}]}])
    assert names(after.call.tools) == ["tool_search"]
    assert names(after.call.loaded) == ["mcp__files__look", "mcp__files__patch"]
    shown = [json.loads(line) for line in after.call.messages[-1]["content"].splitlines()]
    assert shown == after.call.loaded
    assert after.call.messages[-2]["tool_calls"][0]["function"] == {
        "name": "tool_search", "arguments": {"query": "files"},
    }  # fmt: skip


def test_tools_that_come_with_the_input():
    brought = {"type": "additional_tools", "role": "developer", "tools": [MCP]}
    tools = ResponseTools(None)
    messages = read_items([brought, HI], {}, tools)
    assert [message["role"] for message in messages] == ["user"]
    assert names(tools.shown) == ["mcp__files__look", "mcp__files__patch"]
    later = exchange({"role": "assistant", "content": "hello"}, brought, HI, tools=[LOOK])
    assert names(later.call.tools) == ["look"]
    assert names(later.call.loaded) == ["mcp__files__look", "mcp__files__patch"]
    assert [message["role"] for message in later.call.messages] == ["user", "assistant", "system", "user"]
    with pytest.raises(GatewayFault, match=r"input\[1\].tools is {}"):
        exchange({"type": "additional_tools", "tools": {}})
