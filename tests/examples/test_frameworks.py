"""The agents of `examples/frameworks`: each framework's own client, built without a URL, on the local runtime."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from typing import Any

import pytest

from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.types import Status
from support.example import EXAMPLES, example
from support.gateway import call_text

run = example("frameworks/run.py")
FRAMEWORKS = list(run.WIRES)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return run.load_tokenizer(run.tiny.path())


@pytest.fixture(scope="module")
def gateway(tokenizer: Any) -> Iterator[Gateway]:
    with Gateway(run.engine("script", tokenizer), tokenizer=run.tiny.path()) as running:
        yield running


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_asks_the_calculator_and_answers(framework: str, gateway: Gateway, tokenizer: Any) -> None:
    found = run.rollouts(framework, gateway, n=2, model="script")
    assert [(rollout.status, rollout.error) for rollout in found] == [(Status.COMPLETED, None)] * 4
    for rollout in found:
        known = rollout.fidelity
        assert rollout.reward == 1.0
        assert (known.turns, known.tool_calls, known.rows, known.bridges, known.renders) == (2, 1, 1, 1, 0)
        assert known.trained == known.sampled > 0
        (row,) = rollout.rows
        text = tokenizer.decode(row.token_ids)
        assert text.count("Solve the math problem step by step.") == 1
        assert f"<tool_response>\n{rollout.payload['answer']}\n</tool_response>" in text
        said = [tokenizer.decode(row.token_ids[span.start : span.end]) for span in row.spans]
        call = call_text("calculator", expression=run.EXPRESSIONS[rollout.payload["prompt"]])
        assert said == [f"{call}<|im_end|>", f"The answer is {rollout.payload['answer']}.<|im_end|>"]
    assert run.figures(framework, found)[2:] == ["4", "1.00", "2", "1", "1", "1.00"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_names_no_endpoint_and_is_short_enough_to_copy(framework: str) -> None:
    source = (EXAMPLES / "frameworks" / f"{framework}_agent.py").read_text()
    assert not re.search(r"base_url|endpoint_url|api_key|_rollout\b|environ", source)
    assert len(source.splitlines()) <= 50


def test_every_agent_is_run() -> None:
    agents = {path.stem.removesuffix("_agent") for path in (EXAMPLES / "frameworks").glob("*_agent.py")}
    assert agents == set(FRAMEWORKS)


def test_the_calculator() -> None:
    arithmetic = example("frameworks/arithmetic.py")
    assert doctest.testmod(arithmetic).failed == 0
    wrong = "error: not an expression with numbers, + - * / and parentheses"
    for expression, value in {
        "7/2": "3.5",
        "-(0.1+0.2)": "-0.3",
        "1/0": "error: division by zero",
        "1+" * 100 + "1": "error: longer than 200 characters",
        "(" * 100: wrong,
        "six": wrong,
        "": wrong,
    }.items():
        assert arithmetic.evaluate(expression) == value
