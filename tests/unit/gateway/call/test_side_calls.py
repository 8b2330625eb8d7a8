"""Which calls are side calls."""

from __future__ import annotations

from typing import Any

import pytest

from agentcore_rl_toolkit.errors import ConfigError, GatewayFault
from agentcore_rl_toolkit.gateway.call.chat import ChatCall, TextCall
from agentcore_rl_toolkit.gateway.call.side_calls import SideCalls, read_rules
from agentcore_rl_toolkit.gateway.record.session import read_settings

MESSAGES = [
    {"role": "system", "content": "You write titles."},
    {"role": "user", "content": "First question"},
    {"role": "assistant", "content": "a commit message"},
    {"role": "user", "content": "Write a Commit Message"},
    {"role": "tool", "content": "done"},
]
CALL = ChatCall(MESSAGES, [{"type": "function", "function": {"name": "f"}}], model="claude-haiku-4")


@pytest.mark.parametrize(
    ("rules", "matched"),
    [
        ({}, False),
        ({"model": "claude-haiku-4"}, True),
        ({"model": "*haiku*"}, True),
        ({"model": ["gpt-*", "claude-haiku-?"]}, True),
        ({"model": "haiku"}, False),
        ({"system": "write TITLES"}, True),
        ({"system": "First"}, False),
        ({"user": "commit message"}, True),
        ({"user": "First question"}, False),
        ({"user": ["nothing", "a commit"]}, True),
        ({"tools": "none"}, False),
        ({"tools": "none", "system": "titles"}, True),
    ],
)
def test_any_rule_will_do(rules: dict[str, Any], matched: bool) -> None:
    assert SideCalls(rules).match(CALL) == matched


def test_calls_without_tools() -> None:
    assert SideCalls({"tools": "none"}).match(ChatCall(MESSAGES))
    assert SideCalls({"tools": "none"}).match(TextCall("x"))
    assert SideCalls({"user": "tit"}).match(TextCall("a Title"))
    assert not SideCalls({"user": "tit", "system": "tit", "model": "x"}).match(TextCall([1, 2]))


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"role": "x"}, "no rule 'role'; it has model, system, user, tools"),
        ({"model": ""}, "neither a text nor a list"),
        ({"model": []}, "neither a text nor a list"),
        ({"system": [1]}, "neither a text nor a list"),
        ({"tools": "some"}, "the only rule is `none`"),
    ],
)
def test_rules_that_are_none_are_refused_where_they_are_given(rules: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_rules(rules)
    with pytest.raises(GatewayFault, match=why):
        read_settings({"side_calls": rules})
