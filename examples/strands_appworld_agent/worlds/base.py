"""`World`: what an agent can do in a world of apps, and how well it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Evaluation:
    """What became of the world, requirement by requirement."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]

    @property
    def success(self) -> bool:
        """Whether the task is done: everything that was required, and nothing that was not."""
        return bool(self.passed) and not self.failed

    @property
    def score(self) -> float:
        """The share of requirements that are met."""
        return len(self.passed) / max(1, len(self.passed) + len(self.failed))


class World(Protocol):
    """A task in a world of apps. Code that runs in it calls `apis.<app>.<api>(…)`, and its variables stay."""

    instruction: str
    """What the task's supervisor wants."""

    def execute(self, code: str) -> str:
        """Run code; gives what it printed, or its traceback."""
        ...

    def completed(self) -> bool:
        """Whether the code has said that the task is complete."""
        ...

    def evaluate(self) -> Evaluation:
        """Judge the state that the apps are in."""
        ...

    def close(self) -> None:
        """Give back what the world uses."""
        ...

    def __enter__(self) -> World: ...

    def __exit__(self, *_: object) -> None: ...
