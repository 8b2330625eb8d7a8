"""The parts of the math agent: its tool, its reward, its problems, and the diff its README shows."""

from __future__ import annotations

import difflib
import doctest
import json
import subprocess
import sys
from itertools import islice

import pytest

from support.example import MATH_AGENT, example
from support.process import clean_env


@pytest.mark.parametrize("name", ["calculator", "problems", "reward"])
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(example(f"strands_math_agent/{name}.py")).failed == 0


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("612+48", "660"),
        (" 7 * (3 - 5) ", "-14"),
        ("-3.5*2", "-7"),
        ("0.1+0.2", "0.3"),
        ("1/3", "0.3333333333"),
        ("1/0", "error: division by zero"),
        ("2**9", "error: only numbers, + - * / and parentheses"),
        ("__import__('os')", "error: only numbers, + - * / and parentheses"),
        ("True+1", "error: only numbers, + - * / and parentheses"),
        ("12*", "error: not an arithmetic expression"),
        ("", "error: not an arithmetic expression"),
        ("(" * 150, "error: not an arithmetic expression"),
        ("1e999", "error: the numbers are too large"),
        ("*".join(["1e308"] * 30), "error: the numbers are too large"),
        ("1+" * 100 + "1", "error: longer than 200 characters"),
    ],
)
def test_the_calculator(expression: str, value: str) -> None:
    assert example("strands_math_agent/calculator.py").calculator(expression) == value


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("The answer is 1,234.", 1.0),
        ("12 and 3 make 1234", 1.0),
        ("1234.0", 1.0),
        ("-1234", 0.0),
        ("The answer is 1234, or 5.", 0.0),
        ("no idea", 0.0),
        ("", 0.0),
        ("9" * 5000, 0.0),
    ],
)
def test_the_reward_is_about_the_last_number(text: str, reward: float) -> None:
    reward_fn = example("strands_math_agent/reward.py").MathReward()
    assert reward_fn(response_text=text, ground_truth="1234") == reward
    assert reward_fn(response_text=text, ground_truth=1234) == reward


def test_problems_are_solved_by_their_expression() -> None:
    evaluate = example("strands_math_agent/calculator.py").evaluate
    for problem in islice(example("strands_math_agent/problems.py").problems("train", 3), 500):
        assert evaluate(problem.expression) == str(problem.answer) == problem.row["answer"]
        assert problem.answer > 0


def test_train_and_held_out_problems_are_disjoint() -> None:
    problems = example("strands_math_agent/problems.py").problems
    seen = {
        split: [problem.prompt for seed in range(3) for problem in islice(problems(split, seed), 1000)]
        for split in ("train", "held-out")
    }
    assert not set(seen["train"]) & set(seen["held-out"])
    assert len(set(seen["train"][:1000])) == 1000
    assert seen["train"][:1000] != seen["train"][1000:2000]


def test_problems_as_a_data_file() -> None:
    command = [sys.executable, str(MATH_AGENT / "problems.py"), "held-out", "5", "--seed", "4"]
    out = [subprocess.run(command, capture_output=True, check=True, env=clean_env()).stdout for _ in range(2)]
    assert out[0] == out[1]
    rows = [json.loads(line) for line in out[0].splitlines()]
    assert [set(row) for row in rows] == [{"prompt", "answer"}] * 5


def test_the_readme_shows_the_diff_of_the_apps() -> None:
    shown = (MATH_AGENT / "README.md").read_text().split("```diff\n")[1].split("```")[0].splitlines()
    before, after = ((MATH_AGENT / name).read_text().splitlines()[2:] for name in ("basic_app.py", "rl_app.py"))
    real = list(difflib.unified_diff(before, after, n=99, lineterm=""))[3:]
    assert shown == [line.rstrip() for line in real]
