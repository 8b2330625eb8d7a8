"""`Rollout`, the unit of training, and `Group`, the samples of one data row. Values only."""

from __future__ import annotations

import enum
import statistics
from dataclasses import dataclass, field
from typing import Any

from ..common.object_repr import object_repr
from ..gateway.record.conversation import NOTHING_SAID, Transcript
from ..gateway.record.trajectory import Fidelity, Row
from ..types import Status

NOT_NEEDED = "no longer needed"
"""Why a rollout was cancelled after its group was complete."""

NOTHING = Fidelity(sampled=0, trained=0, masked={}, rows=0, turns=0, bridges=0, renders=0, parse_failures=0)
"""The fidelity of a rollout that never reached a model."""


SplitRow = tuple[list[int], list[int], list[float], list[int]]
"""A row's prompt and completion, and the completion's logprobs and mask."""


def split_row(row: Row) -> SplitRow:
    """Split a row as trainers take it. Untrained tokens get the logprob 0.0."""
    cut, ids = row.prompt_length, row.token_ids.tolist()
    mask = [int(bit) for bit in row.loss_mask[cut:]]
    logprobs = [float(value) if bit else 0.0 for value, bit in zip(row.logprobs[cut:], mask, strict=True)]
    return ids[:cut], ids[cut:], logprobs, mask


class Action(str, enum.Enum):
    """What becomes of a rollout."""

    TRAIN = "train"
    """It is trained on and counts in its group's mean; if it failed, with `failed_reward`."""
    MASK = "mask"
    """It takes its place in the group, but is not trained on and counts in no mean."""
    REFILL = "refill"
    """It is left out, and another sample takes its place."""
    STOP = "stop"
    """The run ends."""


@dataclass(frozen=True, eq=False, repr=False)
class Rollout:
    """Result and trajectories of one session."""

    input_id: str
    session_id: str | None
    """None if the rollout was cancelled before it had a session."""
    sample: int
    """Counts the samples of a data row from 0, in the order they were started."""
    status: Status
    action: Action
    why: str | None
    """Why it is not trained on; None if it is."""
    payload: dict[str, Any]
    """The data row."""
    result: dict[str, Any] | None
    """The stored result, if there is one."""
    error: str | None
    rewards: float | list[float] | None
    """As the agent returned them: one, or one for each turn."""
    rows: tuple[Row, ...] = ()
    fidelity: Fidelity = NOTHING
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each station of the path took: `open`, `invoke`, `session` (of it, in model calls: `model`), `fold`."""
    group: int | None = None
    """The place of its row in the input of its step."""
    transcript: Transcript = NOTHING_SAID
    """Its turns as text."""
    printed: str | None = None
    """The end of what its session printed; None where the runtime doesn't say."""

    def __repr__(self) -> str:
        shown: dict[str, Any] = {"reward": self.reward} if self.error is None else {"error": self.error}
        shown |= {"turns": self.fidelity.turns, "rows": len(self.rows), "tokens": self.tokens}
        return object_repr(self, self.input_id, self.status.value, action=self.action.value, **shown)

    @property
    def reward(self) -> float | None:
        """The reward; the last one, if there is one for each turn."""
        return self.rewards[-1] if isinstance(self.rewards, list) else self.rewards

    @property
    def tokens(self) -> int:
        """Tokens of all its rows."""
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def trained(self) -> bool:
        return self.action is Action.TRAIN

    @property
    def truncated(self) -> bool:
        """Whether it ended, or a turn of it was cut, at a limit of tokens."""
        cut = any(turn.finish == "length" for turn in self.transcript.turns)
        return cut or self.status is Status.TRUNCATED

    @property
    def failed(self) -> bool:
        """Whether it did not complete, for another reason than that it was no longer needed."""
        return self.status is not Status.COMPLETED and self.why != NOT_NEEDED


@dataclass(frozen=True, eq=False, repr=False)
class Group:
    """The samples of one data row."""

    index: int
    """The row's place in the input."""
    input_id: str
    payload: dict[str, Any]
    rollouts: tuple[Rollout, ...]
    """`n` rollouts: those to train on, then masked ones."""
    others: tuple[Rollout, ...] = ()
    """Everything else that ran: refilled, cancelled, or more than `n`."""
    dropped: str | None = None
    """Why the group is not trained on; None if it is."""

    def __repr__(self) -> str:
        shown = {"dropped": self.dropped} if self.dropped else {}
        return object_repr(self, self.input_id, trained=len(self.trained), rewards=self.rewards, **shown)

    @property
    def trained(self) -> list[Rollout]:
        """The rollouts that are trained on and make up the group's mean."""
        return [rollout for rollout in self.rollouts if rollout.trained]

    @property
    def rewards(self) -> list[float]:
        return [rollout.reward for rollout in self.trained if rollout.reward is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.rewards) if self.rewards else None

    @property
    def has_variance(self) -> bool:
        """Whether its rewards differ."""
        return len(set(self.rewards)) > 1

    @property
    def tokens(self) -> int:
        return sum(rollout.tokens for rollout in self.rollouts)
