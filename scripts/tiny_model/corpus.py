"""Conversations of the math agent as the gateway sees them, solved well or badly, as dice decide."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AGENT = Path(__file__).resolve().parents[2] / "examples" / "strands_math_agent"
sys.path.append(str(AGENT))

from calculator import calculator, evaluate  # noqa: E402
from problems import Problem, problems  # noqa: E402

Message = dict[str, Any]

SYSTEM = "Solve the math problem step by step."
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": calculator.tool_spec["name"],
            "description": calculator.tool_spec["description"],
            "parameters": calculator.tool_spec["inputSchema"]["json"],
        },
    }
]


@dataclass(frozen=True)
class Habits:
    """How often a model solves problems in which way."""

    guess: float
    """Answers off the top of its head."""
    wrong: float
    """Of the rest: asks the calculator for something else than the problem does."""


SKILLED = Habits(guess=0.0, wrong=0.0)
MEDIOCRE = Habits(guess=0.55, wrong=0.3)


def conversations(habits: Habits, seed: int) -> Iterator[list[Message]]:
    """Conversations about different problems of the train split, without end."""
    dice = random.Random(seed)
    for problem in problems("train", seed):
        yield conversation(problem, habits, dice)


def conversation(problem: Problem, habits: Habits, dice: random.Random) -> list[Message]:
    """One problem, from the system message to the answer."""
    opening = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem.prompt}]
    if dice.random() < habits.guess:
        guess = round(problem.answer * dice.uniform(0.5, 1.5))
        return [*opening, {"role": "assistant", "content": f"I think the answer is {guess}."}]
    expression = _spoiled(problem.expression, dice) if dice.random() < habits.wrong else problem.expression
    value = evaluate(expression)
    answer = "I don't know the answer." if value.startswith("error") else f"The answer is {value}."
    function = {"name": calculator.tool_spec["name"], "arguments": {"expression": expression}}
    return [
        *opening,
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": value},
        {"role": "assistant", "content": answer},
    ]


def _spoiled(expression: str, dice: random.Random) -> str:
    """The expression with another operator, or without its end."""
    place = dice.choice([place for place, character in enumerate(expression) if character in "+-*"])
    if dice.random() < 0.1:
        return expression[: place + 1]
    other = dice.choice([character for character in "+-*" if character != expression[place]])
    return expression[:place] + other + expression[place + 1 :]
