"""The parts of the math agent: its tool, its reward, its problems, and the diff its README shows."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pyarrow.parquet
import pytest

from support.example import MATH_AGENT, example
from support.process import clean_env


@pytest.mark.parametrize("name", ["calculator", "prepare_gsm8k", "problems", "question", "reward"])
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


def test_the_rows_that_come_with_the_agent() -> None:
    command = [sys.executable, str(MATH_AGENT / "problems.py"), "held-out", "64"]
    made = subprocess.run(command, capture_output=True, check=True, env=clean_env())
    assert made.stdout == (MATH_AGENT / "rows.jsonl").read_bytes()


def gsm8k(*args: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(MATH_AGENT / "prepare_gsm8k.py"), *args]
    env = clean_env() | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env)


def test_gsm8k_as_rows(tmp_path: Path) -> None:
    """A folder as GSM8K's is on the hub: a configuration by name, a Parquet file for each split."""
    folder = tmp_path / "gsm8k"
    (folder / "main").mkdir(parents=True)
    files = [{"split": split, "path": f"main/{split}-*"} for split in ("train", "test")]
    about = {"configs": [{"config_name": "main", "data_files": files}]}
    (folder / "README.md").write_text(f"---\n{json.dumps(about)}\n---\n")
    for split, number in (("train", "1,024"), ("test", "-7.5")):
        entries = [
            {"question": f" How many in {split}? ", "answer": f"It is <<1+1=2>>2, #### no,\n#### {number}"},
            {"question": "And then?", "answer": "#### 3"},
        ]
        table = pyarrow.Table.from_pylist(entries)
        pyarrow.parquet.write_table(table, folder / f"main/{split}-00000-of-00001.parquet")
    made = gsm8k("train", "--dataset", str(folder), home=tmp_path)
    assert [json.loads(line) for line in made.stdout.splitlines()] == [
        {"idx": 0, "prompt": "How many in train?", "answer": "1024", "data_source": "gsm8k"},
        {"idx": 1, "prompt": "And then?", "answer": "3", "data_source": "gsm8k"},
    ], made.stderr
    made = gsm8k("test", "--dataset", str(folder), "--limit", "1", home=tmp_path)
    (row,) = [json.loads(line) for line in made.stdout.splitlines()]
    reward_fn = example("strands_math_agent/reward.py").MathReward()
    assert reward_fn(response_text="So it is -7.5.", ground_truth=row["answer"]) == 1.0


def test_gsm8k_that_is_not_there(tmp_path: Path) -> None:
    made = gsm8k("train", "--dataset", str(tmp_path / "nothing"), home=tmp_path)
    assert (made.returncode, made.stdout) == (1, "")
    assert "hint: --dataset takes a folder, too" in made.stderr
    with pytest.raises(ValueError, match="an answer without ####"):
        example("strands_math_agent/prepare_gsm8k.py").final_answer("42")
