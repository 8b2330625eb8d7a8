"""Arithmetic word problems, from a seed: `python problems.py train 256 > train.jsonl`.

A problem is in the held-out split if a hash of its text says so. Whatever the seed, the splits share no problem.
"""

import argparse
import json
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "held-out"]
Numbers = tuple[int, ...]

_NAMES = "Ada Ben Carla Dan Emma Finn Grace Hugo Iris Jack Kate Leo Maya Noah Olga Paul Rosa Sam Tina Vera"
_THINGS = "apples books coins cards eggs flowers marbles pencils pears shells stamps stickers"


@dataclass(frozen=True)
class Problem:
    """A word problem and how to solve it."""

    prompt: str
    expression: str
    answer: int

    @property
    def row(self) -> dict[str, str]:
        """What is in a data file; the way to solve it is not."""
        return {"prompt": self.prompt, "answer": str(self.answer)}


@dataclass(frozen=True)
class _Kind:
    expression: str
    solve: Callable[..., int]
    numbers: Callable[[random.Random], Numbers]
    texts: tuple[str, ...]


_KINDS = (
    _Kind(
        "{0}+{1}",
        lambda a, b: a + b,
        lambda dice: (dice.randint(12, 899), dice.randint(12, 899)),
        (
            "{name} has {0} {thing} and buys {1} more. How many {thing} does {name} have now?",
            "{name} found {0} {thing} and {other} found {1}. How many {thing} did they find together?",
            "A shop sold {0} {thing} on Monday and {1} on Tuesday. How many {thing} did it sell in all?",
        ),
    ),
    _Kind(
        "{0}-{1}",
        lambda a, b: a - b,
        lambda dice: (dice.randint(300, 999), dice.randint(12, 289)),
        (
            "{name} had {0} {thing} and gave {1} to {other}. How many {thing} are left?",
            "A box holds {0} {thing}. {name} takes out {1}. How many {thing} are still in the box?",
            "{name} needs {0} {thing} and has {1}. How many {thing} are missing?",
        ),
    ),
    _Kind(
        "{0}*{1}",
        lambda a, b: a * b,
        lambda dice: (dice.randint(12, 99), dice.randint(12, 39)),
        (
            "{name} has {0} boxes with {1} {thing} in each. How many {thing} does {name} have?",
            "Each of {0} children brings {1} {thing}. How many {thing} do they bring?",
            "{name} packs {0} {thing} a day. How many {thing} does {name} pack in {1} days?",
        ),
    ),
    _Kind(
        "({0}+{1})*{2}",
        lambda a, b, c: (a + b) * c,
        lambda dice: (dice.randint(12, 99), dice.randint(12, 99), dice.randint(3, 19)),
        (
            "A bag holds {0} red and {1} blue {thing}. How many {thing} are in {2} such bags?",
            "Each day {name} collects {0} {thing} and {other} collects {1}. How many {thing} is that in {2} days?",
        ),
    ),
    _Kind(
        "{0}*{1}+{2}",
        lambda a, b, c: a * b + c,
        lambda dice: (dice.randint(12, 99), dice.randint(3, 29), dice.randint(12, 499)),
        (
            "{name} buys {0} packs of {1} {thing} and finds {2} more. How many {thing} does {name} have?",
            "There are {0} shelves with {1} {thing} each, and {2} on the floor. How many {thing} are there?",
        ),
    ),
    _Kind(
        "{0}*{1}-{2}",
        lambda a, b, c: a * b - c,
        lambda dice: (dice.randint(30, 99), dice.randint(12, 29), dice.randint(12, 299)),
        (
            "{name} fills {0} bags with {1} {thing} each and then loses {2}. How many {thing} are left?",
            "A farm packs {0} crates of {1} {thing} and sells {2}. How many {thing} remain?",
        ),
    ),
)


def problems(split: Split, seed: int = 0) -> Iterator[Problem]:
    """Different problems without end; the same ones for the same seed.

    >>> next(problems("train", seed=7)).row
    {'prompt': 'Ben packs 31 books a day. How many books does Ben pack in 24 days?', 'answer': '744'}
    """
    dice, seen = random.Random(seed), set[str]()
    while True:
        problem = _draw(dice)
        if _split(problem.prompt) == split and problem.prompt not in seen:
            seen.add(problem.prompt)
            yield problem


def _draw(dice: random.Random) -> Problem:
    kind = dice.choice(_KINDS)
    numbers = kind.numbers(dice)
    name, other = dice.sample(_NAMES.split(), 2)
    text = dice.choice(kind.texts).format(*numbers, name=name, other=other, thing=dice.choice(_THINGS.split()))
    return Problem(text, kind.expression.format(*numbers), kind.solve(*numbers))


def _split(prompt: str) -> Split:
    return "held-out" if zlib.crc32(prompt.encode()) % 5 == 0 else "train"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("split", choices=("train", "held-out"))
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for _, problem in zip(range(args.count), problems(args.split, args.seed), strict=False):
        print(json.dumps(problem.row))


if __name__ == "__main__":
    main()
