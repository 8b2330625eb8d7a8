"""What doctor's scripted policy says in models' own formats, and what it makes of templates that would not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcore_rl_toolkit.deploy.doctor.check_model import check_context, check_fidelity, check_tools
from agentcore_rl_toolkit.deploy.doctor.scripted_policy import ANSWER, call_message, example_value, reply_ids
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.errors import RenderFault
from agentcore_rl_toolkit.gateway.call.chat import ChatCall
from agentcore_rl_toolkit.gateway.record.trajectory import Fidelity
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer, load_tokenizer
from support.gateway import WEATHER
from support.tokenizers import FAMILIES, PLAIN_TEMPLATE, make_tokenizer

UNDERSTOOD = "calls of get_weather are parsed correctly"
USER = {"role": "user", "content": "Is it warm?"}
TINY = (Path(str(tiny.path())) / "chat_template.jinja").read_text()


def renderer(family: str) -> ChatRenderer:
    if family == "plain":
        return ChatRenderer(Tokenizer(make_tokenizer("some/model", PLAIN_TEMPLATE)))
    return ChatRenderer(Tokenizer(make_tokenizer(f"some/{family}", family=family)), renderer=family)


@pytest.mark.parametrize("family", [*FAMILIES, "plain"])
def test_every_format_is_spoken_and_understood(family: str) -> None:
    render = renderer(family)
    check = check_tools(render, [WEATHER])
    leaves_out = "the model's chat template leaves out the tool 'get_weather'"
    assert check.text == (leaves_out if family in ("deepseek-v3", "deepseek-r1") else UNDERSTOOD)
    ids = reply_ids(render, [USER], {"role": "assistant", "content": ANSWER}, [WEATHER])
    prompt = list(render.render(ChatCall([USER], [WEATHER])))
    reply = render.parse(ids, prompt[-64:], ChatCall([USER], [WEATHER]), "u")
    assert (reply.content, reply.tool_calls, reply.parse_failures) == (ANSWER, [], 0)
    assert ids[-1] in render.stop_ids
    assert sum(token in render.stop_ids for token in ids) == 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("if tools", "if false", "the model's chat template leaves out the tool 'get_weather'"),
        ("<tool_call>", "<invoke>", "a call of 'get_weather' in this model's format is not parsed: "),
        (
            "<|im_end|>",
            "",
            "the model's chat template doesn't end an assistant's turn with a token that stops the model",
        ),
    ],
)
def test_templates_that_would_not_do(old: str, new: str, says: str, tmp_path: Path) -> None:
    changed = TINY.replace(old, new).replace(old.replace("<", "</"), new.replace("<", "</"))
    (tmp_path / "changed.jinja").write_text(changed)
    check = check_tools(ChatRenderer(load_tokenizer(tiny.path(), tmp_path / "changed.jinja")), [WEATHER])
    assert check.state == "failed"
    assert check.text.startswith(says)
    assert check.fix


def test_a_prompt_that_changes_as_it_grows_is_spoken_after_too(tmp_path: Path) -> None:
    (tmp_path / "counting.jinja").write_text("{{ messages | length }} messages\n" + TINY)
    render = ChatRenderer(load_tokenizer(tiny.path(), tmp_path / "counting.jinja"))
    ids = reply_ids(render, [USER], {"role": "assistant", "content": ANSWER}, [])
    assert render.tokenizer.decode(ids) == f"{ANSWER}<|im_end|>"


def test_values_for_schemas() -> None:
    kinds = {"s": {"type": ["null", "string"]}, "n": {"type": "number"}, "b": {"type": "boolean"}, "z": {}}
    whole = {"type": "object", "properties": {**kinds, "o": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}}
    assert example_value(whole) == {"s": "1", "n": 1.5, "b": True, "z": "1", "o": 1}
    assert example_value({"type": "object", "properties": {"x": {"const": 3}, "y": {"default": 4}}}) == {"x": 3, "y": 4}
    no_parameters = {"type": "function", "function": {"name": "now"}}
    assert call_message(no_parameters)["tool_calls"][0]["function"] == {"name": "now", "arguments": {}}


def test_what_fidelity_comes_to() -> None:
    good = Fidelity(sampled=9, trained=9, masked={}, rows=1, turns=2, bridges=1, renders=0, parse_failures=0)
    assert check_fidelity("t", good).state == "ok"
    for changed in ({"renders": 1, "rows": 2}, {"parse_failures": 1}):
        check = check_fidelity("t", Fidelity(**{**vars(good), **changed}))
        assert (check.state, bool(check.fix)) == ("failed", True)


def test_whether_prompts_fit() -> None:
    assert check_context(100, 1124, 1024).state == "ok"
    assert check_context(101, 1124, 1024).state == "failed"
    assert check_context(100, None, 1024).state == "skipped"
    assert check_context(None, 100, 1024).state == "skipped"


def test_no_tools_is_no_failure() -> None:
    render = renderer("plain")
    assert check_tools(render, []).state == "skipped"
    with pytest.raises(RenderFault):
        reply_ids(ChatRenderer(Tokenizer(make_tokenizer("some/model", "{{ messages[0].content }}"))), [USER], USER, [])
