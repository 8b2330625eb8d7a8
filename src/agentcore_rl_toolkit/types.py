"""`Status` and `RolloutId`: the values that cross process boundaries, and the rules for keys."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from .errors import KeyInvalid

SCHEMA_VERSION = 1
"""Version of the result documents this package writes; readers accept this one and older."""

LARGEST_RESULT = 100_000_000
"""The most bytes that a result's JSON may have. The app stores a failure instead of a larger one."""


class Status(str, enum.Enum):
    """How a rollout ended; results, retries and training all use this table.

    >>> Status("agent_error").status_code
    500
    """

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    AGENT_ERROR = "agent_error"
    REWARD_ERROR = "reward_error"
    SESSION_LOST = "session_lost"
    ENGINE_ERROR = "engine_error"
    CANCELLED = "cancelled"

    @property
    def status_code(self) -> int:
        """200 for a completed rollout, 500 for any other."""
        return 200 if self is Status.COMPLETED else 500

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return _MEANINGS[self]


_MEANINGS = {
    Status.COMPLETED: "The function returned a result.",
    Status.TRUNCATED: "The model ran out of tokens or context before the agent was done.",
    Status.TIMEOUT: "The rollout ran past its time limit.",
    Status.AGENT_ERROR: "The agent's own code failed, or returned what cannot be stored.",
    Status.REWARD_ERROR: "The reward could not be computed, or is not a finite number.",
    Status.SESSION_LOST: "The session ended before the function did.",
    Status.ENGINE_ERROR: "The model could not be reached, or failed.",
    Status.CANCELLED: "The run was cancelled.",
}

INFRASTRUCTURE = frozenset({Status.SESSION_LOST, Status.ENGINE_ERROR, Status.CANCELLED})
"""Failures that the agent did not cause: they are retried, and a resumed batch runs them again."""

UNMEASURED = INFRASTRUCTURE | {Status.REWARD_ERROR}
"""Failures that say nothing of the policy: an evaluation leaves these rollouts out of its mean, and counts them."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")


def check_segment(value: object, name: str) -> str:
    """Return `value` if it can be one segment of a key, else raise `KeyInvalid`.

    >>> check_segment("row-17", "input_id")
    'row-17'
    >>> check_segment("..", "input_id")
    Traceback (most recent call last):
        ...
    agentcore_rl_toolkit.errors.KeyInvalid: input_id '..' starts with a dot
    hint: use letters, digits, '-' and '_'
    """
    hint = "use letters, digits, '-' and '_'"
    if not isinstance(value, str):
        raise KeyInvalid(f"{name} must be a string, not {type(value).__name__} ({value!r})", hint=hint)
    if not value.strip():
        raise KeyInvalid(f"{name} is empty", hint=hint)
    if value.startswith("."):
        raise KeyInvalid(f"{name} {value!r} starts with a dot", hint=hint)
    if "/" in value:
        raise KeyInvalid(f"{name} {value!r} contains a slash", hint=hint)
    if _FORBIDDEN.search(value):
        raise KeyInvalid(f"{name} {value!r} contains a control character or a backslash", hint=hint)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise KeyInvalid(f"{name} {value!r} is not valid Unicode", hint=hint) from None
    if size > 255:
        raise KeyInvalid(f"{name} is {size} bytes long; a file name holds at most 255", hint=hint)
    return value


def check_key(key: str) -> str:
    """Return `key` if every segment is valid and S3 accepts its length, else raise `KeyInvalid`."""
    if not isinstance(key, str):
        raise KeyInvalid(f"key must be a string, not {type(key).__name__}")
    for segment in key.split("/"):
        check_segment(segment, f"a segment of key {key!r}")
    if len(key.encode()) > 1000:
        raise KeyInvalid(f"key {key[:60]!r}… is {len(key.encode())} bytes long; S3 takes at most 1024")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if a valid key can start with it (its last segment may be partial), else raise `KeyInvalid`."""
    folder, _, last = prefix.rpartition("/")
    if folder or prefix.startswith("/"):
        check_key(folder)
    if last:
        check_segment(last, f"the end of prefix {prefix!r}")
    return prefix


@dataclass(frozen=True)
class RolloutId:
    """The ids of one rollout, which make up the key of its result.

    >>> RolloutId("exp1", "row-17", "0f3c").result_key
    'exp1/row-17/0f3c.json'
    """

    exp_id: str
    """The experiment. May contain slashes; each part is one segment of the key."""
    input_id: str
    """The data row. Samples of one row share it."""
    session_id: str
    """The session that ran it."""

    def __post_init__(self) -> None:
        if not isinstance(self.exp_id, str):
            raise KeyInvalid(f"exp_id must be a string, not {type(self.exp_id).__name__} ({self.exp_id!r})")
        for part in self.exp_id.split("/"):
            check_segment(part, "exp_id" if part == self.exp_id else f"a part of exp_id {self.exp_id!r}")
        check_segment(self.input_id, "input_id")
        check_segment(self.session_id, "session_id")
        check_key(self.result_key)

    @property
    def result_key(self) -> str:
        """`{exp_id}/{input_id}/{session_id}.json`"""
        return f"{self.exp_id}/{self.input_id}/{self.session_id}.json"

    @classmethod
    def from_key(cls, key: str) -> RolloutId:
        """The inverse of `result_key`.

        >>> RolloutId.from_key("team/exp1/row-17/0f3c.json").exp_id
        'team/exp1'
        """
        parts = key.rsplit("/", 2)
        if len(parts) != 3 or not key.endswith(".json"):
            raise KeyInvalid(f"{key!r} is not a result key", hint="expected {exp_id}/{input_id}/{session_id}.json")
        return cls(parts[0], parts[1], parts[2].removesuffix(".json"))
