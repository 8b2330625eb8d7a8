"""Images and server-side tools: a placeholder or nothing to the model, and a count in the session's fidelity."""

from __future__ import annotations

from typing import Any

import pytest

from agentcore_rl_toolkit.gateway.wire.openai import response_items as items
from support.wire import read_chat, read_chat_messages, read_converse

IMAGE = "[image omitted: this model reads text only]"


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "data:"}}, "image"),
        ({"type": "input_image", "image_url": "data:"}, "image"),
        ({"type": "input_audio", "input_audio": {}}, "audio"),
        ({"type": "file", "file": {}}, "file"),
        ({"type": "video_url", "video_url": {}}, "video"),
    ],
)
def test_chat_completions(part: dict[str, Any], kind: str):
    content = [{"type": "text", "text": "see "}, part, part]
    (message,) = read_chat_messages([{"role": "user", "content": content}])
    seen = f"[{kind} omitted: this model reads text only]"
    media = {"media": [(4, seen, "data:"), (4 + len(seen), seen, "data:")]} if kind == "image" else {}
    assert message == {"role": "user", "content": f"see {seen}{seen}", "omitted": {kind: 2}, **media}


def test_tools_of_other_servers_over_chat_completions():
    function = {"type": "function", "function": {"name": "f"}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "web_search"}, function]}
    call = read_chat(body)
    assert (call.tools, call.omitted) == ([function], ("web_search",))


def test_responses():
    image = [{"type": "input_image", "image_url": "data:"}]
    result = {"type": "function_call_output", "call_id": "c", "output": image}
    user, tool = items.read_items([{"role": "user", "content": image}, result], {})
    read = {"content": IMAGE, "omitted": {"image": 1}, "media": [(0, IMAGE, "data:")]}
    assert user == {"role": "user", **read}
    assert tool == {"role": "tool", **read, "tool_call_id": "c"}


@pytest.mark.parametrize("kind", ["image", "document", "video", "audio"])
def test_converse(kind: str):
    block = {kind: {"format": "png", "source": {"bytes": "eA=="}}}
    result = {"toolResult": {"toolUseId": "c", "content": [{"text": "x "}, block]}}
    read = read_converse(
        {"messages": [{"role": "user", "content": [result, {"guardContent": {"image": {}}}]}]}
    ).messages
    seen = f"[{kind} omitted: this model reads text only]"
    assert [message["content"] for message in read] == [f"x {seen}", IMAGE]
    assert [message["omitted"] for message in read] == [{kind: 1}, {"image": 1}]
    assert read[0].get("media") == ([(2, seen, "eA==")] if kind == "image" else None)
    assert read[1]["media"] == [(0, IMAGE, None)]


def test_system_tools_of_converse():
    config = {"tools": [{"systemTool": {"name": "nova_grounding"}}]}
    body = {"messages": [{"role": "user", "content": [{"text": "hi"}]}], "toolConfig": config}
    assert read_converse(body).omitted == ("nova_grounding",)


@pytest.mark.parametrize("choice", ["required", {"type": "web_search"}])
def test_a_tool_that_is_left_out_is_not_forced_over_chat_completions(choice: Any):
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "web_search"}], "tool_choice": choice}
    assert read_chat(asked).tool_choice == "auto"


@pytest.mark.parametrize("choice", [{"any": {}}, {"tool": {"name": "nova_grounding"}}])
def test_a_tool_that_is_left_out_is_not_forced_over_converse(choice: Any):
    config = {"tools": [{"systemTool": {"name": "nova_grounding"}}], "toolChoice": choice}
    body = {"messages": [{"role": "user", "content": [{"text": "hi"}]}], "toolConfig": config}
    assert read_converse(body).tool_choice == "auto"
