"""Replies in formats that `renderers` doesn't read."""

from __future__ import annotations

from typing import Any

import pytest

from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from agentcore_rl_toolkit.gateway.render.tool_formats import (
    ParsedText,
    TextReader,
    read_atem,
    read_harmony,
    read_mistral,
    read_pythonic,
)
from support.tokenizers import make_tokenizer


def calls(reading: ParsedText) -> list[tuple[str | None, Any]]:
    return [(call.name, call.arguments) for call in reading.tool_calls if call.status == "ok"]


def test_pythonic_calls() -> None:
    reading = read_pythonic("Wait.<|tool_call_start|>[f(a='it\\'s', b=[1, true, {'c': null}]), g()]<|tool_call_end|>")
    assert reading.content == "Wait."
    assert calls(reading) == [("f", {"a": "it's", "b": [1, True, {"c": None}]}), ("g", {})]


@pytest.mark.parametrize("inside", ["", "f(", "[f(1)]", "[f(a=b)]", "[a.b()]", "7", "[f(a=open('x'))]", "(" * 5000])
def test_text_that_is_not_a_pythonic_call_gives_none(inside: str) -> None:
    (attempt,) = read_pythonic(f"<|tool_call_start|>{inside}<|tool_call_end|>").tool_calls
    assert attempt.status == "invalid"


def test_harmony() -> None:
    thought = "<|channel|>analysis<|message|>Hm.<|end|>"
    call = '<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": 1}<|call|>'
    reading = read_harmony(thought + call)
    assert (reading.reasoning_content, reading.content, calls(reading)) == ("Hm.", "", [("look", {"at": 1})])
    assert read_harmony("<|channel|>final<|message|>Yes.<|return|>").content == "Yes."
    assert read_harmony("no channel at all").content == "no channel at all"
    broken = read_harmony(" to=functions.look<|channel|>commentary json<|message|>{oops<|call|>")
    assert [call.status for call in broken.tool_calls] == ["invalid"]


def test_atem() -> None:
    call = '<atem:invoke name="look">\n<atem:parameter name="at">Paris</atem:parameter>\n<atem:parameter name="n">2'
    text = f" to=self<|message|>Hm.<|eom|><|start|>assistant to=look<|message|>{call}</atem:parameter></atem:invoke>"
    reading = read_atem(text)
    assert (reading.reasoning_content, calls(reading)) == ("Hm.", [("look", {"at": "Paris", "n": 2})])
    assert read_atem(" to=user<|message|>Yes.").content == "Yes."


def test_mistral() -> None:
    reading = read_mistral('So:[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}')
    assert (reading.content, calls(reading)) == ("So:", [("f", {"a": 1}), ("g", {})])
    assert [call.status for call in read_mistral("[TOOL_CALLS] [{").tool_calls] == ["invalid"]
    assert [call.status for call in read_mistral("[TOOL_CALLS] [7, {}]").tool_calls] == ["invalid", "invalid"]


def test_a_thought_before_the_reply_is_read_in_any_format() -> None:
    tokenizer = Tokenizer(make_tokenizer())
    reader = TextReader(tokenizer, read_pythonic)
    for prompt, text in (("x", "<think>Hm.</think>Yes."), ("x<think>\n", "Hm.</think>Yes.")):
        reading = reader.parse_response(tokenizer.encode(text), prompt_ids=tokenizer.encode(prompt))
        assert (reading.reasoning_content, reading.content) == ("Hm.", "Yes.")
    assert reader.parse_response(tokenizer.encode("a </think> in text")).content == "a </think> in text"
