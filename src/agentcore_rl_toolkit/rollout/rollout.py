"""`Rollout`, the unit that is handed to training, and `Group`, the samples of one data row. Values, nothing else."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from ..gateway.record.trajectory import Fidelity, Row
from ..types import Status
from .failure_table import Action

NOT_NEEDED = "no longer needed"
"""Why a rollout was given up of which there were enough without it."""

NOTHING = Fidelity(sampled=0, trained=0, masked={}, rows=0, turns=0, bridges=0, renders=0, parse_failures=0)
"""The fidelity of a rollout that never reached a model."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """Result and trajectories of one session."""

    input_id: str
    session_id: str | None
    """None if it was given up before it had one."""
    sample: int
    """Which sample of its data row it is, counted from 0 in the order they were started."""
    status: Status
    action: Action
    """What becomes of it: `train`, or why not is in `why`."""
    why: str | None
    payload: dict[str, Any]
    """The data row."""
    result: dict[str, Any] | None
    """The stored result; None if there is none."""
    error: str | None
    """What went wrong, if something did."""
    rewards: float | list[float] | None
    """As the agent returned them, one or one for each turn."""
    rows: tuple[Row, ...] = ()
    fidelity: Fidelity = NOTHING
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each station of the path took: `open`, `invoke`, `session` (of it, in model calls: `model`), `fold`."""

    @property
    def reward(self) -> float | None:
        """What it is trained on; with one reward for each turn, the last."""
        return self.rewards[-1] if isinstance(self.rewards, list) else self.rewards

    @property
    def tokens(self) -> int:
        """Tokens of all its rows."""
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def trained(self) -> bool:
        return self.action is Action.TRAIN

    @property
    def failed(self) -> bool:
        """Whether it came to no good end of its own; one that was given up may have."""
        return self.status is not Status.COMPLETED and self.why != NOT_NEEDED


@dataclass(frozen=True, eq=False)
class Group:
    """The samples of one data row."""

    index: int
    """The row's place among those that were asked for."""
    input_id: str
    payload: dict[str, Any]
    rollouts: tuple[Rollout, ...]
    """As many as were asked for: those to train on, and the masked ones that take a place beside them."""
    others: tuple[Rollout, ...] = ()
    """What else ran: refilled, given up, or more than were needed."""
    dropped: str | None = None
    """Why the group is not trained on, if so."""

    @property
    def trained(self) -> list[Rollout]:
        """Those that are trained on, and make up the group's mean."""
        return [rollout for rollout in self.rollouts if rollout.trained]

    @property
    def rewards(self) -> list[float]:
        return [rollout.reward for rollout in self.trained if rollout.reward is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.rewards) if self.rewards else None

    @property
    def has_variance(self) -> bool:
        """Whether there is anything to learn from it."""
        return len(set(self.rewards)) > 1

    @property
    def tokens(self) -> int:
        return sum(rollout.tokens for rollout in self.rollouts)
