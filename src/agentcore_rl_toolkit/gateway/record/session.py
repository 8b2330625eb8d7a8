"""One session: whose calls these are, what they may do, and the turns they led to."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from ...engine.base import Sampling
from ...errors import GatewayFault
from ..call.chat import Reply
from ..call.history import Kept
from ..call.made_calls import MadeCalls
from ..call.side_calls import SideCalls
from ..wire.openai.sampling import SAMPLING, read_sampling
from .tree import Tree
from .turn import Tokens, Turn

_REMEMBERED = 8  # answers kept for clients that ask again
_PLAIN = re.compile(r"[A-Za-z0-9_~:@=-]{1,128}")

_SETTINGS = {
    "session_id": str,
    "sampling": dict,
    "enforced": dict,
    "context_limit": int,
    "group_id": str,
    "input_id": str,
    "model": str,
    "metadata": dict,
    "ttl_seconds": (int, float),
    "mask_truncated": bool,
    "side_calls": dict,
}


@dataclass(frozen=True)
class SessionSettings:
    """What a session was opened with."""

    session_id: str
    sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling settings for calls that don't say."""
    enforced: dict[str, Any] = field(default_factory=dict)
    """Sampling settings whatever calls say."""
    context_limit: int | None = None
    """Most tokens of prompt and reply together."""
    group_id: str | None = None
    input_id: str | None = None
    model: str | None = None
    """The model or adapter to sample from, whatever name calls ask for."""
    metadata: dict[str, Any] = field(default_factory=dict)
    ttl_seconds: float = 86_400.0
    """The session expires when it has not been used for so long."""
    mask_truncated: bool = False
    """Don't train on turns that were cut at the token limit."""
    side_calls: dict[str, Any] | None = None
    """Don't train on calls that a rule matches; None leaves it to the gateway's rules."""


def read_settings(body: dict[str, Any]) -> SessionSettings:
    """The settings of a request to open a session."""
    unknown = sorted(body.keys() - _SETTINGS.keys())
    if unknown:
        raise GatewayFault.invalid(
            f"unknown: {', '.join(unknown)}; a session has {', '.join(_SETTINGS)}", param=unknown[0]
        )
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        kind: Any = _SETTINGS[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise GatewayFault.invalid(f"{name} is {str(value)[:80]!r}, which is of the wrong type", param=name)
    session_id = given.setdefault("session_id", secrets.token_hex(12))
    if not _PLAIN.fullmatch(session_id):
        raise GatewayFault.invalid("session_id is not 1 to 128 letters, digits and - _ ~ : @ =", param="session_id")
    if given.get("context_limit", 1) < 1:
        raise GatewayFault.invalid("context_limit is less than one token", param="context_limit")
    if not 0 < given.get("ttl_seconds", 1.0) < 1e9:
        raise GatewayFault.invalid("ttl_seconds is not above 0 and below 1e9 seconds", param="ttl_seconds")
    for name in ("sampling", "enforced"):
        _check_sampling(name, given.get(name, {}))
    try:
        SideCalls(given.get("side_calls", {}))
    except ValueError as error:
        raise GatewayFault.invalid(str(error), param="side_calls") from None
    return SessionSettings(**given)


def _check_sampling(name: str, sampling: dict[str, Any]) -> None:
    unknown = sorted(sampling.keys() - SAMPLING)
    if unknown:
        raise GatewayFault.invalid(
            f"{name} has no {unknown[0][:80]!r}; it has {', '.join(sorted(SAMPLING))}", param=name
        )
    try:
        read_sampling(sampling)
    except GatewayFault as fault:
        raise GatewayFault.invalid(f"{name}: {fault.message}", param=f"{name}.{fault.param}") from None


@dataclass(slots=True, eq=False)
class Outcome:
    """One choice of an answer."""

    turn: Turn
    reply: Reply
    tops: list[dict[int, float]]
    """The alternatives to each token, where the call asked for them."""
    rest: tuple[str, str, Any] = ("", "", None)
    """What a stream has not passed on yet: reasoning, text, tokens."""

    @property
    def tokens(self) -> Tokens:
        """All that was sampled."""
        return Tokens(self.turn.sampled, self.turn.logprobs, self.tops)


@dataclass(slots=True, eq=False)
class Answer:
    """What one request was answered with, kept for a client that asks again."""

    created: int
    uid: str
    model: str
    request: bytes
    """A print of the request's bytes."""
    choices: int = 1
    prompt_tokens: int = 0
    """How long the prompt is, once it is known."""
    outcomes: list[Outcome] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the request has ended, well or not."""
    lost: bool = False
    """Whole, but the client went away before it had all of it."""

    @property
    def whole(self) -> bool:
        return self.done.is_set() and len(self.outcomes) == self.choices


class Session:
    """A session that is open, or was."""

    def __init__(self, settings: SessionSettings, key: str, created: float) -> None:
        self.settings = settings
        self.key = key
        self.created = created
        self.used = time.monotonic()
        """When it was last used, on a clock that nobody sets."""
        self.tree = Tree()
        self.made_calls = MadeCalls()
        self.result: Any = None
        self.closed = False
        self.gone = False
        """Deleted or expired: calls still in flight are recorded nowhere."""
        self.damaged = False
        """Some of its turns could not be read from the log: these are not all."""
        self.in_flight = 0
        self.answers: OrderedDict[bytes, Answer] = OrderedDict()
        self.texts: list[tuple[int, bytes, int, Turn]] = []
        """Plain completions: length and print of the whole text, prompt and reply; the reply's length; its turn."""
        self.kept: dict[str, Kept] = {}
        """Conversations to go on from, by the id of the turn they ended in."""
        self.enforced = read_sampling(settings.enforced)
        self.defaults = read_sampling(settings.sampling)
        self.side_calls = SideCalls(settings.side_calls) if settings.side_calls is not None else None

    @property
    def id(self) -> str:
        return self.settings.session_id

    @property
    def idle_until_expired(self) -> float:
        """Seconds that are left until it expires; below 0 once it has."""
        return self.used + self.settings.ttl_seconds - time.monotonic()

    def remember(self, answer: Answer) -> None:
        """Keep an answer under the print of its request; the oldest that is finished makes room."""
        self.answers[answer.request] = answer
        self.answers.move_to_end(answer.request)
        while len(self.answers) > _REMEMBERED:
            oldest = next((key for key, kept in self.answers.items() if kept.done.is_set()), None)
            if oldest is None:
                break
            del self.answers[oldest]

    def sampling(self, asked: Sampling) -> Sampling:
        """What a call samples with: enforced, else asked for, else the session's default."""
        if not self.settings.enforced and not self.settings.sampling:
            return asked
        return self.enforced.over(asked.over(self.defaults))
