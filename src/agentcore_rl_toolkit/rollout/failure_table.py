"""What each way a rollout can end does to training: one table, the same for every backend, and yours to change."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ..errors import ConfigError
from ..types import Status


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
"""The default: what the infrastructure did is run again, what the agent did is shown to nobody."""


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
