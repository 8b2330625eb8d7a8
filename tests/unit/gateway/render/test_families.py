"""The renderer is chosen by what a tokenizer is, for checkpoints in folders whose names say nothing."""

from __future__ import annotations

import sys
import time
from array import array
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.call.chat import ChatCall
from agentcore_rl_toolkit.gateway.record.turn import LOGPROBS, Turn
from agentcore_rl_toolkit.gateway.render.capabilities import probe_abilities
from agentcore_rl_toolkit.gateway.render.probes import TOOL, make_calls, make_result
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.template_reply import encode_template_reply
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.tokenizers import PLAIN_TEMPLATE, REWRITING_TEMPLATE, make_tokenizer

sys.path.append(str(Path(__file__).parents[4] / "benchmarks"))

import template_folders
import templates

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is the weather?"}
THANKS = {"role": "user", "content": "Thanks!"}


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer(template_folders.make_tokenizer(name))


def template_ids(name: str, **settings: Any) -> list[int]:
    text = tokenizer(name).apply_chat_template([SYSTEM, USER], tokenize=False, add_generation_prompt=True, **settings)
    return tokenizer(name).encode(text)


@pytest.mark.parametrize(
    ("template", "renderer", "read_as"),
    [
        ("qwen3", "qwen3", "qwen3"),
        ("qwen3_5_think", "qwen3.5", "qwen3.5"),
        ("qwen3_5_nothink", "qwen3.5", "qwen3.5"),
        ("qwen3_6", "qwen3.6", "qwen3.6"),
        ("glm4moe", "glm-4.5", "glm-4.5"),
        ("nemotron_3_5_lightning", "nemotron-3.5", "nemotron-3.5"),
        ("gemma4_v5", "gemma4", "gemma4"),
        ("llama3_2", "llama-3", "llama-3"),
        ("qwen2_5", "default", "qwen3"),
        ("gemma4_v3", "default", "gemma4"),
        ("gptoss", "default", "harmony"),
        ("lfm2_2_5", "default", "pythonic"),
        ("deepseekv3", "default", "deepseek-v3"),
        ("phi3", "default", "default"),
    ],
)
def test_the_renderer_that_does_what_the_template_does(template: str, renderer: str, read_as: str) -> None:
    chosen = ChatRenderer(tokenizer(template))
    assert (chosen.family.name, chosen.family.format, chosen.family.checked) == (renderer, read_as, True)
    dates = [template_ids(template)]
    found = chosen.render(ChatCall([SYSTEM, USER])).tolist()
    assert found in [*dates, template_ids(template)]  # a template may say what day it is


def test_a_fine_tune_with_its_own_template_does_not_use_the_qwen3_renderer() -> None:
    changed = template_folders.make_tokenizer("qwen3")
    changed.chat_template = changed.chat_template.replace("'<|im_start|>user\\n'", "'<|im_start|>human\\n'")
    assert ChatRenderer(Tokenizer(changed)).name == "qwen3"
    changed.chat_template = changed.chat_template.replace("<tool_response>", "<result>")
    chosen = ChatRenderer(Tokenizer(changed))
    assert chosen.name == "default"
    name, difference = chosen.family.nearest or ("", "")
    assert name == "qwen3"
    assert "<result>" in str(difference)


def test_settings_of_the_gateway_are_part_of_the_comparison() -> None:
    quiet = ChatRenderer(tokenizer("qwen3_5_think"), template={"enable_thinking": False})
    assert quiet.name == "qwen3.5"
    assert quiet.render(ChatCall([SYSTEM, USER])).tolist() == template_ids("qwen3_5_think", enable_thinking=False)


# What is found out of a template


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        ("phi3", ["<|endoftext|>", "<|end|>"]),
        ("hermes", ["<|endoftext|>", "<|im_end|>"]),
        ("cohere2", ["<|END_OF_TURN_TOKEN|>"]),
        ("smolvlm", ["<end_of_utterance>"]),
        ("gptoss", ["<|return|>", "<|call|>"]),
        ("deepseek_r1_distill", ["<｜end▁of▁sentence｜>"]),  # not what stands between two calls
    ],
)
def test_the_tokens_that_end_a_turn(template: str, ends: list[str]) -> None:
    chosen = ChatRenderer(tokenizer(template))
    assert [chosen.tokenizer.decode([stop]) for stop in chosen.stop_ids] == ends


def goes_on(name: str, messages: list[Any], said: str, tools: Any = (), renderer: str = "auto") -> str:
    """What is added to the reply `said`, the last but one of the messages."""
    chosen = ChatRenderer(tokenizer(name), renderer=renderer)
    prompt = chosen.render(ChatCall(messages[:-2], list(tools)))
    ids = array(IDS, chosen.tokenizer.encode(said))
    turn = Turn(0, None, 0, prompt, ids, array(LOGPROBS, [0.0] * len(ids)), "stop")
    found = chosen.bridge(turn, ChatCall(messages, list(tools)), len(messages) - 1)
    assert isinstance(found, tuple), found
    assert found[0] == turn.length
    return chosen.tokenizer.decode(found[1].tolist())


def test_a_text_is_closed_as_the_template_closes_it() -> None:
    messages = [USER, {"role": "assistant", "content": "It is sunny."}, THANKS]
    rest = "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Thanks!<|END_OF_TURN_TOKEN|>"
    rest += "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>"
    closing = "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"
    assert goes_on("cohere2", messages, f"It is sunny.{closing}") == rest
    assert goes_on("cohere2", messages, "It is sunny.") == closing + rest  # cut at the token limit


def test_empty_thoughts_that_a_template_removes_do_not_count_as_a_difference() -> None:
    """Qwen3.5 has them in replies since the last question only, so that another question changes all of these."""
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": {}}}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": "a", "content": "12 degrees"}]
    messages += [{"role": "assistant", "content": "It is sunny."}, THANKS]
    added = goes_on("qwen3_5_think", messages, "Hm.</think>It is sunny.<|im_end|>", renderer="default")
    assert added == "\n<|im_start|>user\nThanks!<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_a_text_that_the_model_closed_is_read_without_its_closing() -> None:
    chosen = ChatRenderer(tokenizer("cohere2"))
    ids = chosen.tokenizer.encode("It is sunny.<|END_RESPONSE|><|END_OF_TURN_TOKEN|>")
    assert chosen.parse(ids, [], ChatCall([USER]), "u").content == "It is sunny."


def test_ids_that_a_client_repeats_in_each_turn_name_their_own_calls() -> None:
    messages: list[Any] = [USER]
    for name in ("look", "find", "look"):
        call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": {}}}
        messages += [{"role": "assistant", "content": "", "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": "call_0", "content": f"result of {name}"}]
    about = {"description": "Finds.", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": {"name": name, **about}} for name in ("look", "find")]
    added = goes_on("muse_glimmer", messages, " to=look<|message|><|eot|>", tools)
    assert added.count("result of look") == 1


# A renderer that was asked for


@pytest.mark.parametrize(
    ("template", "renderer", "ours", "theirs"),
    [
        ("qwen2_5", "qwen3", "<|im_start|>user", "You are Qwen"),
        ("llama3", "llama-3", "Cutting Knowled", "What is the weath"),
        ("glm4moe", "glm-5", "<|user|>What", "<|user|>\\\\nWhat"),
    ],
)
def test_a_renderer_whose_first_prompt_is_another_is_refused(
    template: str, renderer: str, ours: str, theirs: str
) -> None:
    with pytest.raises(ConfigError, match=f"does not fit .*{ours.replace('|', '.')}.*{theirs.replace('|', '.')}"):
        ChatRenderer(tokenizer(template), renderer=renderer)


def test_a_renderer_that_was_asked_for_renders_the_templates_first_prompt() -> None:
    small = ChatRenderer(tokenizer("qwen3_5_nothink"), renderer="qwen3.5")
    assert small.render(ChatCall([SYSTEM, USER])).tolist() == template_ids("qwen3_5_nothink")
    before = time.strftime("%d %b %Y")
    dated = ChatRenderer(tokenizer("llama3_2"), renderer="llama-3")
    text = dated.tokenizer.decode(dated.render(ChatCall([SYSTEM, USER])).tolist())
    assert any(f"Today Date: {day}" in text for day in (before, time.strftime("%d %b %Y")))


def test_a_renderer_that_differs_later_is_taken_with_a_warning() -> None:
    asked = ChatRenderer(tokenizer("gemma4_v3"), renderer="gemma4")
    assert asked.name == "gemma4"
    (problem,) = probe_abilities(asked).problems.values()
    assert "where the chat template has" in problem


# What is said at the start


def test_the_start_says_which_renderer_it_is_and_what_it_bridges() -> None:
    known = probe_abilities(ChatRenderer(tokenizer("qwen3")))
    assert known.line == "renderer qwen3: renders as the chat template does; bridges text, tools, reasoning"
    assert known.problems == {}
    known = probe_abilities(ChatRenderer(tokenizer("qwen2_5")))
    assert known.line.startswith("renderer: the chat template itself, replies are read as qwen3's (nearest is ")
    assert known.line.endswith("; bridges text, tools")


@pytest.mark.parametrize(
    ("template", "about", "why"),
    [
        ("phi3", "the definition of tools", "doesn't show the model any"),
        ("phi3", "tools", "leaves out the tool calls"),
        ("lfm2", "tools", "leaves out the tool calls"),
        ("gemma", "system prompts", "refuses or leaves out"),
    ],
)
def test_the_start_says_what_a_template_has_no_place_for(template: str, about: str, why: str) -> None:
    known = probe_abilities(ChatRenderer(tokenizer(template)))
    assert why in known.problems[about]
    assert known.line.endswith("; bridges text")


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (REWRITING_TEMPLATE, "writes earlier messages differently"),
        (PLAIN_TEMPLATE.replace("<|im_end|>", ""), "ends a reply without a token"),
        (PLAIN_TEMPLATE.replace("<tool_call>", "<invoke>"), "are not parsed correctly"),
    ],
)
def test_the_start_says_what_cannot_be_bridged(template: str, why: str) -> None:
    known = probe_abilities(ChatRenderer(Tokenizer(make_tokenizer("some/model", template))))
    assert any(why in problem for problem in known.problems.values())


def test_the_start_tries_a_second_round_of_tools() -> None:
    """DeepSeek's template takes back the end of a tool's output once another call follows it."""
    known = probe_abilities(ChatRenderer(tokenizer("deepseekv3")))
    assert "writes earlier messages differently" in known.problems["tools"]


# Sessions


@pytest.mark.parametrize(
    "name", ["qwen3", "qwen2_5", "llama3_2", "gptoss", "gemma4_v3", "lfm2_2_5", "deepseek_r1_distill", "hermes", "phi3"]
)
def test_six_turns_are_one_row_whatever_the_client_does(name: str, tmp_path: Path) -> None:
    folder = template_folders.write_folder(name, tmp_path / "checkpoint-7")
    found = templates.measure(folder, ["all of these", "the model's own JSON spelling"])
    for case, figures in found["cases"].items():
        assert templates.is_good(figures), (case, figures)


def test_a_renderer_that_refuses_to_go_on_is_helped_by_the_template() -> None:
    """Gemma 4's goes on from a tool's result, but not from one that the user's words follow."""
    render = ChatRenderer(tokenizer("gemma4_v5"))
    assert render.family.name == "gemma4"
    tools, said = [TOOL], make_calls(arguments={"at": "Paris"})
    prompt = render.render(ChatCall([USER], tools))

    def rendered(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[int]:
        return render.render(ChatCall(messages, tools)).tolist()

    ids = encode_template_reply(render.tokenizer, rendered, render.stops, [USER], said, tools)
    before = Turn(0, None, 0, prompt, array(IDS, ids), array(LOGPROBS, [0.0] * len(ids)), "stop")
    whole = ChatCall([USER, said, make_result(content="sunny"), USER], tools)
    keep, added = render.bridge(before, whole, 2)
    assert (keep, before.tokens() + added) == (before.length, render.render(whole))
