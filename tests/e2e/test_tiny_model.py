"""The built-in policy: what ships with the package, in the real agent and through the real gateway."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest
from strands import Agent
from strands.models.openai import OpenAIModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.engine.transformers import TransformersEngine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.record.trajectory import Trajectories
from support.example import example
from support.process import clean_env

ROOT = Path(__file__).parents[2]
SYSTEM = "Solve the math problem step by step."
PROBLEMS = 48


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(tiny.path())


def text(messages: list[dict[str, Any]], **settings: Any) -> str:
    return str(tokenizer().apply_chat_template(messages, tokenize=False, **settings))


def solve(session: dict[str, Any], prompt: str, **params: Any) -> str:
    """The math agent's reply, with its tool and prompt."""
    model = OpenAIModel(
        client_args={"api_key": "EMPTY", "base_url": session["base_url"]},
        model_id="tiny",
        params={"max_tokens": 64, **params},
    )
    calculator = example("strands_math_agent/calculator.py").calculator
    return str(Agent(model=model, tools=[calculator], system_prompt=SYSTEM, callback_handler=None)(prompt))


# What ships


def test_it_is_small() -> None:
    files = list(tiny.path().iterdir())
    assert {file.name for file in files} == {
        *("chat_template.jinja", "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    assert sum(file.stat().st_size for file in files) < 3_000_000


def test_naming_it_imports_nothing() -> None:
    code = "import sys; from agentcore_rl_toolkit.engine import tiny; tiny.path(); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_env())
    assert out.stdout.strip() == "False"


def test_it_loads_in_single_precision_and_knows_where_a_turn_ends() -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny.path(), dtype="auto")
    assert str(model.dtype) == "torch.float32"
    assert model.generation_config.eos_token_id == tokenizer().eos_token_id
    assert tokenizer().decode([tokenizer().eos_token_id]) == "<|im_end|>"
    assert model.get_input_embeddings().num_embeddings == len(tokenizer())


# Tokenizer and template


@pytest.mark.parametrize("said", ["Ada has 4071 pears.", "Grüße, 世界\n\n\t 12,5 🙂", '{"a": [1, 2.5, null]}', "  "])
def test_it_can_say_anything(said: str) -> None:
    ids = tokenizer().encode(said, add_special_tokens=False)
    assert tokenizer().decode(ids) == said


def test_digits_are_tokens_of_their_own() -> None:
    assert [tokenizer().decode([i]) for i in tokenizer().encode("4071*52")] == list("4071*52")


def test_the_template_renders_tools_calls_and_results() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": "é"}}}
    messages = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "so", "tool_calls": [call, {"function": {"name": "g", "arguments": "{}"}}]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
    ]
    tool = {"type": "function", "function": {"name": "f"}}
    assert text(messages, tools=[tool], add_generation_prompt=True) == (
        "<|im_start|>system\nbe short\n\n<tools>\n" + json.dumps(tool) + "\n</tools>\nCall a tool like this:\n"
        '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nhi<|im_end|>\n"
        '<|im_start|>assistant\nso\n<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert text(messages[1:2]) == "<|im_start|>user\nhi<|im_end|>\n"


# In the agent


@cache
def script(name: str) -> Any:
    """A module of the script that made it."""
    folder = ROOT / "scripts" / "tiny_model"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location(f"tiny_model_{name}", folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(folder))


def test_it_was_trained_on_what_the_agent_sends() -> None:
    corpus = script("corpus")
    problem = next(corpus.problems("train", 5))
    talk = corpus.conversation(problem, corpus.SKILLED, random.Random(0))
    ids, labels = script("train").encode(talk, tokenizer())
    turns = [list(turn) for learned, turn in groupby(labels, lambda label: label >= 0) if learned]
    assert len(turns) == 2
    with Gateway(ScriptedEngine(turns, models=("tiny",)), tokenizer=tiny.path()) as running:
        session = running.open_session()
        assert str(problem.answer) in solve(session, problem.prompt)
        (row,) = running.trajectories(session["session_id"]).rows
    assert list(row.token_ids) == ids[: len(row.token_ids)]
    assert tokenizer().decode(ids[len(row.token_ids) :]) == "\n"
    assert [label >= 0 for label in labels[: len(row.token_ids)]] == [bool(mask) for mask in row.loss_mask]


@pytest.fixture(scope="module")
def running() -> Iterator[Gateway]:
    with Gateway(TransformersEngine(tiny.path(), name="tiny"), tokenizer=tiny.path()) as gateway:
        yield gateway


@pytest.mark.timeout(300)
def test_it_is_mediocre_and_every_token_of_it_can_be_trained_on(running: Gateway) -> None:
    reward_fn = example("strands_math_agent/reward.py").MathReward()
    problems = enumerate(islice(example("strands_math_agent/problems.py").problems("held-out"), PROBLEMS))

    def rollout(numbered: tuple[int, Any]) -> tuple[float, Trajectories]:
        number, problem = numbered
        session = running.open_session()
        reply = solve(session, problem.prompt, seed=number)
        reward = reward_fn(response_text=reply, ground_truth=problem.row["answer"])
        return reward, running.trajectories(session["session_id"])

    with ThreadPoolExecutor(12) as pool:
        rewards, known = zip(*pool.map(rollout, problems), strict=True)
    for one in known:
        assert (one.fidelity.rows, one.fidelity.renders) == (1, 0)
        assert one.fidelity.bridges == one.fidelity.turns - 1
        assert one.fidelity.trained == one.fidelity.sampled
        assert len(one.rows[0].token_ids) < 200
    assert {one.fidelity.turns for one in known} == {1, 2}
    assert sum(one.fidelity.parse_failures for one in known) <= 3, "now and then it samples a broken call"
    assert 0.15 <= sum(rewards) / PROBLEMS <= 0.5


# How it is made


def test_the_script_makes_the_same_files_twice(tmp_path: Path) -> None:
    make, shape = script("__main__").make, script("train").Shape
    small = shape(hidden=32, inner=32, layers=1, heads=2, batch=2, skill_steps=2, habit_steps=2)
    made = []
    for name in ("one", "two"):
        make(tmp_path / name, 0, small)
        made.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert made[0] == made[1]
    assert made[0].keys() == {file.name for file in tiny.path().iterdir()}
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert made[0][name] == (tiny.path() / name).read_bytes()
    make(tmp_path / "three", 1, small)
    assert (tmp_path / "three" / "model.safetensors").read_bytes() != made[0]["model.safetensors"]
