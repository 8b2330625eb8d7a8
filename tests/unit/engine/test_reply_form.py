"""The form of a reply: what is left of it, how servers are told, and what the engine in process lets a model say."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from agentcore_rl_toolkit.engine import SampleRequest, Sampling
from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.engine.remote.sglang import SglangEngine
from agentcore_rl_toolkit.engine.remote.vllm import VllmEngine
from agentcore_rl_toolkit.engine.reply_form import Form, structural_tag
from agentcore_rl_toolkit.errors import EngineError
from support.fake_sglang import FakeSglang
from support.fake_vllm import FakeVllm
from support.gateway import ids, tokenizer
from support.loop import LoopThread, loop_thread

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nhm\n</think>\n\n"


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with loop_thread() as thread:
        yield thread


@cache
def grammars() -> Any:
    pytest.importorskip("llguidance")
    pytest.importorskip("torch")
    from agentcore_rl_toolkit.engine.transformers.grammar import GrammarFactory

    return GrammarFactory(tokenizer(), len(tokenizer()), frozenset(ids("")))


def takes(form: Form, text: str) -> bool:
    """Whether the grammar lets a model say this, and then end."""
    grammar = grammars().compile(form)
    complete = False
    for token in ids(text, end=False):
        if complete or grammar.forbidden()[token]:
            return False
        complete = grammar.accept(token)
    (end,) = ids("")
    return complete or not bool(grammar.forbidden()[end])


@pytest.mark.parametrize(
    ("form", "said", "not_said"),
    [
        (Form("", "<tool_call>", SCHEMA), ['{"a": 1}', CALL, CALL + "\n" + CALL], ["hi", THOUGHT + CALL, '{"b": 1}']),
        (
            Form("optional", "<tool_call>", SCHEMA),
            ['{"a": 1}', CALL, THOUGHT + CALL, THOUGHT + '{"a": 1}', '<think></think>{"a": 1}'],
            ["hi", THOUGHT + "hi", THOUGHT, "<think>hm", 'hm\n</think>{"a": 1}'],
        ),
        (
            Form("open", "<tool_call>", SCHEMA),
            [f"hm\n</think>\n\n{CALL}", 'hm\n</think>\n\n{"a": 1}', '</think>{"a": 1}'],
            ["hi", '{"a": 1}', "hm</think>hi"],
        ),
        (Form("optional", "", SCHEMA), ['{"a": 1}', THOUGHT + '{"a": 1}'], [CALL, THOUGHT + CALL]),
        (
            Form("optional", '<tool_call>\n{"name": "look"'),
            [CALL, THOUGHT + CALL],
            ["hi", THOUGHT + "hi", CALL.replace("look", "go"), '{"a": 1}'],
        ),
        (Form("", '{"name":', SCHEMA), ['{"a": 1}', '{"name": "look", "parameters": {}}'], ["hi", '{"b": 1}']),
        (Form("", "", {}), ["{}", '{"x": [1]}'], ["[1]", "hi"]),
    ],
)
def test_what_the_engine_in_process_lets_a_model_say(form: Form, said: list[str], not_said: list[str]) -> None:
    assert {text: takes(form, text) for text in said} == dict.fromkeys(said, True)
    assert {text: takes(form, text) for text in not_said} == dict.fromkeys(not_said, False)


def test_a_schema_that_can_not_be_followed_is_refused() -> None:
    with pytest.raises(EngineError, match="can't be followed"):
        grammars().compile(Form("optional", "<tool_call>", {"type": "nonsense"}))


@pytest.mark.parametrize(
    ("form", "text", "left"),
    [
        (Form("optional", "c", {}), "", Form("optional", "c", {})),
        (Form("optional", "c", {}), "<think>h", Form("open", "c", {})),
        (Form("optional", "c", {}), "<think>h</think>\n", Form("", "c", {})),
        (Form("optional", "c", {}), "<think>h</think>{", None),
        (Form("optional", "c", {}), '{"a"', None),
        (Form("open", "c", {}), "h", Form("open", "c", {})),
        (Form("open", "c", {}), "h</think>c", None),
        (Form("", "", {}), "\n", Form("", "", {})),
    ],
)
def test_what_is_left_of_a_form(form: Form, text: str, left: Form | None) -> None:
    assert form.remaining(text) == left


def test_the_form_reaches_the_servers(loop: LoopThread) -> None:
    form = Form("optional", "<tool_call>", SCHEMA)
    request = SampleRequest(array(IDS, [11, 12]), Sampling(max_tokens=3, form=form))
    with FakeVllm().serving() as vllm, FakeSglang().serving() as sglang:
        engines = VllmEngine(vllm.url), SglangEngine(sglang.url)
        for engine in engines:
            assert engine.forms
            loop.collect(engine.sample(request))
            loop.run(engine.close())
    told = vllm.requests[0][1]["structured_outputs"]
    assert told == {"structural_tag": structural_tag(form)}
    params = next(body for path, body in sglang.requests if path == "/generate")["sampling_params"]
    assert params["structural_tag"] == structural_tag(form)


def test_a_form_as_xgrammar_reads_it() -> None:
    """What this accepts was tried with xgrammar 0.2.8, on the table above."""
    call = {"type": "sequence", "elements": [{"type": "const_string", "value": "<tool_call>"}, {"type": "any_text"}]}
    schema = {"type": "json_schema", "json_schema": SCHEMA}
    said = {"type": "or", "elements": [call, schema]}
    assert json.loads(structural_tag(Form("", "<tool_call>", SCHEMA))) == {"type": "structural_tag", "format": said}
    thought = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
    gap = {"type": "regex", "pattern": "[ \\n]{0,4}"}
    ways = [{"type": "sequence", "elements": [thought, gap, said]}, {"type": "sequence", "elements": [gap, said]}]
    optional, opened = (json.loads(structural_tag(Form(how, "<tool_call>", SCHEMA))) for how in ("optional", "open"))
    assert optional["format"] == {"type": "or", "elements": ways}
    assert opened["format"]["elements"][0]["elements"][0]["begin"] == ""
    assert json.loads(structural_tag(Form("", "", {})))["format"]["json_schema"] == {"type": "object"}
