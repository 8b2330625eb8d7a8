"""What becomes of each rollout and each group: one table for every backend, then checks of the rollout itself. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..errors import ConfigError
from ..types import Status
from .rollout import Action, Group, Rollout
from .signal.credit import TurnCredit, mismatch

NO_REWARD = "no reward"
NO_VARIANCE = "no variance"
UNMATCHED = "rewards don't match turns"

FAILURES: Mapping[Status, Action] = {
    Status.COMPLETED: Action.TRAIN,
    Status.TRUNCATED: Action.MASK,
    Status.TIMEOUT: Action.MASK,
    Status.AGENT_ERROR: Action.MASK,
    Status.REWARD_ERROR: Action.MASK,
    Status.SESSION_LOST: Action.REFILL,
    Status.ENGINE_ERROR: Action.REFILL,
    Status.CANCELLED: Action.REFILL,
}
"""The default: failures of the infrastructure run again, failures of the agent are masked."""


def failure_table(changes: Mapping[str, str] | None = None) -> dict[Status, Action]:
    """The default table with changes, as a configuration file or the command line writes them.

    >>> failure_table({"timeout": "train"})[Status.TIMEOUT].value
    'train'
    """
    table = dict(FAILURES)
    for status, action in (changes or {}).items():
        try:
            table[Status(status)] = Action(action)
        except ValueError:
            statuses, actions = ", ".join(s.value for s in Status), ", ".join(a.value for a in Action)
            hint = f"one of {statuses} = one of {actions}"
            raise ConfigError(f"not a line of the failure table: {status}={action}", hint=hint) from None
    return table


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Decides what is trained on."""

    table: Mapping[Status, Action] = field(default_factory=lambda: FAILURES)
    failed_reward: float = 0.0
    """The reward of a failed rollout that the table trains on."""
    min_trained_ratio: float = 0.0
    """The fidelity gate: the least share of a rollout's sampled tokens that must be trained on."""
    max_rollout_tokens: int | None = None
    max_staleness: int | None = None
    """How many weight updates ago a rollout's oldest token may have been sampled."""
    version: Callable[[], int] = lambda: 0
    """The number of the current weights."""
    dynamic_sampling: bool = False
    """Drop groups whose rewards are all the same: they teach nothing."""
    needs_reward: bool = True
    """False before a complete group is scored."""
    credit: TurnCredit | None = None
    """How rewards by turn are trained on; None if only the last one is."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_trained_ratio <= 1:
            raise ConfigError(f"min_trained_ratio is from 0 to 1, not {self.min_trained_ratio}")

    def rollout(self, rollout: Rollout) -> Rollout:
        """The rollout with its action, and why it is not trained on."""
        action = self.table[rollout.status]
        if action is not Action.TRAIN:
            return replace(rollout, action=action, why=rollout.status.value)
        if rollout.status is not Status.COMPLETED:
            rollout = replace(rollout, rewards=self.failed_reward)
        action, why = self._check(rollout)
        error = mismatch(rollout) if why == UNMATCHED else rollout.error
        return replace(rollout, action=action, why=why, error=error)

    def _check(self, rollout: Rollout) -> tuple[Action, str | None]:
        fidelity = rollout.fidelity
        if rollout.rewards is None and self.needs_reward:
            return Action.MASK, NO_REWARD
        if not fidelity.trained:
            return Action.MASK, "nothing to train on"
        if self.credit is not None and self.needs_reward and mismatch(rollout):
            return Action.MASK, UNMATCHED
        if fidelity.trained < self.min_trained_ratio * fidelity.wanted:
            return Action.MASK, "low fidelity"
        if self.max_rollout_tokens is not None and rollout.tokens > self.max_rollout_tokens:
            return Action.MASK, "too long"
        if self.max_staleness is not None and self._age(rollout) > self.max_staleness:
            return Action.REFILL, "stale"
        return Action.TRAIN, None

    def _age(self, rollout: Rollout) -> int:
        versions = {version for row in rollout.rows for version, _, _ in row.versions}
        try:
            return self.version() - min(map(int, versions), default=self.version())
        except ValueError:
            raise ConfigError(
                f"staleness needs weight versions that are numbers, not {sorted(versions)}",
                hint="name weights by the training step, or leave max_staleness out",
            ) from None

    def group(self, group: Group, n: int) -> Group:
        """The group, with why it is dropped if it is."""
        if len(group.rollouts) < n:
            return replace(group, dropped="incomplete")
        if len(group.trained) < min(2, n):
            return replace(group, dropped="too few to compare")
        if self.dynamic_sampling and not self.teaches(group):
            return replace(group, dropped=NO_VARIANCE)
        return group

    def teaches(self, group: Group) -> bool:
        """Whether the group's rewards give any of its rollouts an advantage."""
        return group.has_variance if self.credit is None else self.credit.teaches(group)
