"""The built-in tasks: office work on made-up files, from a seed, each with a way to solve it and a way to get it wrong.

A task is in the held-out split if a hash of its text and files says so. Whatever the seed, the splits share no task.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, Literal

Split = Literal["train", "held-out"]
Call = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""

_NAMES = "Ada Ben Carla Dan Emma Finn Grace Hugo Iris Jack Kate Leo Maya Noah Olga Paul Rosa Sam Tina Vera"


@dataclass(frozen=True)
class Desk:
    """Whose desk it is, when, and the dice for everything else."""

    dice: random.Random
    user: str
    today: date

    @classmethod
    def draw(cls, dice: random.Random) -> Desk:
        """A user and a day."""
        return cls(dice, dice.choice(_NAMES.split()), date(2025, 1, 6) + timedelta(days=dice.randrange(500)))

    def people(self, count: int) -> list[str]:
        """Other people."""
        return self.dice.sample([name for name in _NAMES.split() if name != self.user], count)

    def day(self) -> date:
        """A working day in the next weeks."""
        day = self.today + timedelta(days=self.dice.randint(2, 40))
        return day - timedelta(days=max(0, day.weekday() - 4))


@dataclass(frozen=True)
class Task:
    """A request, the files it is about, what has to come of it, and two ways to go about it."""

    apps: tuple[str, ...]
    prompt: str
    files: dict[str, Any]
    checks: list[dict[str, Any]]
    solution: list[Call]
    wrong: list[Call]
    """Plausible, and failing a check."""
    desk: Desk
    references: dict[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """What makes it another task."""
        return json.dumps([self.prompt, self.files], sort_keys=True)

    @property
    def split(self) -> Split:
        """Where it belongs."""
        return "held-out" if zlib.crc32(self.identity.encode()) % 5 == 0 else "train"

    @property
    def row(self) -> dict[str, Any]:
        """What is in a data file; the ways to go about it are not."""
        today = self.desk.today
        row = {
            "prompt": self.prompt,
            "username": self.desk.user,
            "date": str(today),
            "weekday": f"{today:%A}",
            "time": "9:00",
            "apps": list(self.apps),
            "files": self.files,
            "checks": self.checks,
        }
        return row | ({"references": self.references} if self.references else {})


Kind = Callable[[Desk], Task]


def tasks(split: Split, seed: int = 0) -> Iterator[Task]:
    """Different tasks without end, every kind in turn; the same ones for the same seed.

    >>> next(tasks("train", seed=1)).apps
    ('calendar',)
    """
    from .kinds import KINDS

    dice, seen = random.Random(seed), set[str]()
    while True:
        for kind in KINDS:
            yield _draw(kind, dice, split, seen)


def _draw(kind: Kind, dice: random.Random, split: Split, seen: set[str]) -> Task:
    while True:
        task = kind(Desk.draw(dice))
        if task.split == split and task.identity not in seen:
            seen.add(task.identity)
            return task
