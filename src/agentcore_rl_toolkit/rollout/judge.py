"""What becomes of one rollout, and of a group. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import ConfigError
from ..types import Status
from .failure_table import FAILURES, Action
from .rollout import Group, Rollout

NO_REWARD = "no reward"


@dataclass(frozen=True, kw_only=True)
class Judge:
    """What may be trained on."""

    table: Mapping[Status, Action] = field(default_factory=lambda: FAILURES)
    failed_reward: float = 0.0
    """The reward of a failed rollout that the table trains on."""
    min_trained_ratio: float = 0.0
    """The fidelity gate: of what a rollout sampled, at least this share has to be trained on."""
    max_rollout_tokens: int | None = None
    max_staleness: int | None = None
    """How many weight updates ago a rollout's oldest token may have been sampled."""
    version: Callable[[], int] = lambda: 0
    """The number of the current weights."""
    dynamic_sampling: bool = False
    """Drop groups in which all rewards are the same: there is nothing to learn from them."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_trained_ratio <= 1:
            raise ConfigError(f"min_trained_ratio is from 0 to 1, not {self.min_trained_ratio}")

    def rollout(self, rollout: Rollout) -> Rollout:
        """The rollout, with what becomes of it."""
        action = self.table[rollout.status]
        if action is not Action.TRAIN:
            return replace(rollout, action=action, why=rollout.status.value)
        if rollout.status is not Status.COMPLETED:
            rollout = replace(rollout, rewards=self.failed_reward)
        for action, why in self._objections(rollout):
            return replace(rollout, action=action, why=why)
        return replace(rollout, action=Action.TRAIN, why=None)

    def _objections(self, rollout: Rollout) -> list[tuple[Action, str]]:
        known = rollout.fidelity
        found = []
        if rollout.rewards is None:
            found.append((Action.MASK, NO_REWARD))
        if not known.trained:
            found.append((Action.MASK, "nothing to train on"))
        if known.trained < self.min_trained_ratio * known.wanted:
            found.append((Action.MASK, "low fidelity"))
        if self.max_rollout_tokens is not None and rollout.tokens > self.max_rollout_tokens:
            found.append((Action.MASK, "too long"))
        if self.max_staleness is not None and self._age(rollout) > self.max_staleness:
            found.append((Action.REFILL, "stale"))
        return found

    def _age(self, rollout: Rollout) -> int:
        versions = {version for row in rollout.rows for version, _, _ in row.versions}
        try:
            return self.version() - min(map(int, versions), default=self.version())
        except ValueError:
            raise ConfigError(
                f"weight versions {sorted(versions)} are no numbers, so staleness can't be told",
                hint="name weights by the training step, or leave max_staleness out",
            ) from None

    def group(self, group: Group, n: int) -> Group:
        """The group, with why it is dropped if it is."""
        short = n - len(group.rollouts)
        if short > 0:
            return replace(group, dropped="incomplete")
        if len(group.trained) < min(2, n):
            return replace(group, dropped="too few to compare")
        if self.dynamic_sampling and not group.has_variance:
            return replace(group, dropped="no variance")
        return group


def reasons(rollouts: Sequence[Rollout]) -> dict[str, int]:
    """How many are not trained on, by reason."""
    counts: dict[str, int] = {}
    for rollout in rollouts:
        if rollout.why is not None:
            counts[rollout.why] = counts.get(rollout.why, 0) + 1
    return counts
