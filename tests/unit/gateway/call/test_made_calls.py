"""Echoed tool calls in which a client has filled in defaults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentcore_rl_toolkit.gateway.call.chat import ToolCall
from agentcore_rl_toolkit.gateway.call.made_calls import MadeCalls

MADE = {"path": "a", "edits": [{"old": "x", "n": 1}]}


def restored(echoed: Any, *, name: str = "edit", call_id: str = "call_1") -> Any:
    made = MadeCalls()
    made.add([ToolCall("call_1", "edit", json.dumps(MADE))])
    message = {"role": "assistant", "tool_calls": [{"id": call_id, "function": {"name": name, "arguments": echoed}}]}
    made.restore([{"role": "user", "content": "x"}, message])
    return message["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    "echoed", [MADE, MADE | {"all": False}, {"edits": [{"old": "x", "n": 1, "all": None}], "path": "a", "k": {}}]
)
def test_what_a_client_adds_is_taken_back(echoed: Any):
    assert restored(echoed) == MADE


@pytest.mark.parametrize(
    "echoed",
    [
        {"path": "a"},
        MADE | {"path": "b"},
        MADE | {"path": None},
        MADE | {"edits": []},
        MADE | {"edits": [{"old": "x", "n": 1}, {}]},
        MADE | {"edits": [{"old": "x", "n": True}]},
        "text",
    ],
)
def test_what_a_client_changes_stays_changed(echoed: Any):
    assert restored(echoed) == echoed


def test_only_the_call_itself_is_restored():
    more = MADE | {"all": False}
    assert restored(more, name="other") == more
    assert restored(more, call_id="call_2") == more
