"""A decision process small enough to list every trajectory, and the gradient of a softmax policy in it by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

STATES, ACTIONS, TURNS, STOP = 2, 3, 3, 2
Weigh = Callable[[list[list[float]]], Sequence[Any]]
"""The rewards by turn of a group's rollouts → the advantages of their turns."""


@dataclass(frozen=True)
class Path:
    """One trajectory: what was seen and done, turn by turn."""

    steps: tuple[tuple[int, int], ...]
    rewards: list[float]
    chance: float = 1.0
    gradients: list[Any] = field(default_factory=list)
    """Of the log probability of each action, by the policy's weights."""


class Mdp:
    """Two states, three actions, at most three turns; the third action stops, sometimes for a reward."""

    def __init__(self, seed: int = 0, turns: int = TURNS) -> None:
        self.turns = turns
        dice = np.random.default_rng(seed)
        self.weights = dice.normal(size=(STATES, ACTIONS))
        self.rewards = dice.normal(size=(TURNS, STATES, ACTIONS)).round(2)
        self.moves = dice.uniform(0.2, 0.8, size=(STATES, ACTIONS))
        """The chance that an action leads to state 1."""
        shifted = np.exp(self.weights - self.weights.max(axis=1, keepdims=True))
        self.policy = shifted / shifted.sum(axis=1, keepdims=True)

    def paths(self, start: Path | None = None, state: int = 0) -> Iterator[Path]:
        """Every trajectory with its probability."""
        path = start or Path((), [])
        turn = len(path.steps)
        for action in range(ACTIONS):
            further = self.after(path, state, action, float(self.policy[state, action]))
            if action == STOP or turn + 1 == self.turns:
                yield further
                continue
            for following, chance in ((1, self.moves[state, action]), (0, 1 - self.moves[state, action])):
                yield from self.paths(self.scaled(further, float(chance)), following)

    def sample(self, dice: np.random.Generator) -> Path:
        path, state = Path((), []), 0
        while True:
            action = int(dice.choice(ACTIONS, p=self.policy[state]))
            path = self.after(path, state, action, 1.0)
            if action == STOP or len(path.steps) == self.turns:
                return path
            state = int(dice.random() < self.moves[state, action])

    def after(self, path: Path, state: int, action: int, chance: float) -> Path:
        gradient = np.zeros((STATES, ACTIONS))
        gradient[state] = -self.policy[state]
        gradient[state, action] += 1
        return Path(
            (*path.steps, (state, action)),
            [*path.rewards, float(self.rewards[len(path.steps), state, action])],
            path.chance * chance,
            [*path.gradients, gradient],
        )

    @staticmethod
    def scaled(path: Path, chance: float) -> Path:
        return Path(path.steps, path.rewards, path.chance * chance, path.gradients)

    def gradient(self, discount: float = 1.0, process: float = 1.0) -> Any:
        """Of the expected return, by listing every trajectory: each turn's gradient times its return-to-go."""
        total = np.zeros((STATES, ACTIONS))
        for path in self.paths():
            for turn, gradient in enumerate(path.gradients):
                last = len(path.rewards) - 1
                to_go = sum(
                    discount ** (k - turn) * path.rewards[k] * (1.0 if k == last else process)
                    for k in range(turn, last + 1)
                )
                total += path.chance * to_go * gradient
        return total


def estimate(group: Sequence[Path], weigh: Weigh) -> Any:
    """A group's estimate of the gradient: the mean over rollouts of advantage × gradient, summed over turns."""
    advantages = weigh([path.rewards for path in group])
    parts = (
        value * gradient
        for path, own in zip(group, advantages, strict=True)
        for value, gradient in zip(own, path.gradients, strict=True)
    )
    return sum(parts, np.zeros((STATES, ACTIONS))) / len(group)
