"""One session: its settings, its turns, and the answers it remembers."""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Annotated, Any, get_type_hints

import msgspec
import xxhash

from ...common.seeds import mix_seed
from ...engine.base import Sampling
from ...errors import GatewayFault
from ..call.chat import Reply
from ..call.side_calls import SideCalls
from ..images.session_images import SessionImages
from ..wire.openai.sampling import SAMPLING, read_sampling
from .conversation import StoredConversation, TranscriptKeeper
from .tree import MadeCalls, Tree
from .turn import Tokens, Turn

_REMEMBERED = 8  # answers kept for clients that ask again


class SessionSettings(msgspec.Struct, frozen=True):
    """The settings that a session is opened with."""

    session_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_~:@=-]{1,128}\Z")]
    sampling: dict[str, Any] = {}
    """Sampling settings for calls that don't set them."""
    enforced: dict[str, Any] = {}
    """Sampling settings that override those of calls."""
    seed: int | None = None
    """Seeds every call by its prompt, and overrides a call's own seed; None leaves seeds to the calls."""
    context_limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Most tokens of prompt and reply together."""
    group_id: str | None = None
    input_id: str | None = None
    model: str | None = None
    """The model or adapter to sample from; overrides the name that a call asks for."""
    metadata: dict[str, Any] = {}
    ttl_seconds: Annotated[float, msgspec.Meta(gt=0, lt=1e9)] = 86_400.0
    """The session expires after this time without use."""
    mask_truncated: bool = False
    """Don't train on turns that were cut at the token limit."""
    side_calls: dict[str, Any] | None = None
    """Don't train on calls that a rule matches; None uses the gateway's rules."""


_TYPES = get_type_hints(SessionSettings, include_extras=True)


def read_settings(body: dict[str, Any]) -> SessionSettings:
    unknown = sorted(body.keys() - _TYPES.keys())
    if unknown:
        raise GatewayFault.invalid(
            f"unknown: {', '.join(unknown)}; a session has {', '.join(_TYPES)}", param=unknown[0]
        )
    given = {name: value for name, value in body.items() if value is not None}
    given.setdefault("session_id", secrets.token_hex(12))
    for name, value in given.items():
        try:
            given[name] = msgspec.convert(value, _TYPES[name])
        except msgspec.ValidationError as error:
            raise GatewayFault.invalid(f"{name} is {str(value)[:80]!r}: {error}", param=name) from None
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
class ChoiceOutcome:
    turn: Turn
    reply: Reply
    tops: list[dict[int, float]]
    """The alternatives to each token, where the call asked for them."""
    rest: tuple[str, str, Any] = ("", "", None)
    """The reasoning, text and tokens that a stream has not passed on yet."""

    @property
    def tokens(self) -> Tokens:
        return Tokens(self.turn.sampled, self.turn.logprobs, self.tops)


@dataclass(slots=True, eq=False)
class CallAnswer:
    """The answer to one request, kept for a client that asks again."""

    created: int
    uid: str
    model: str
    request: bytes
    """A hash of the request's bytes."""
    choices: int = 1
    prompt_tokens: int = 0
    """The length of the prompt, once planned."""
    outcomes: list[ChoiceOutcome] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the request has ended, well or not."""
    lost: bool = False
    """Complete, but the client went away before it had all of it."""

    @property
    def whole(self) -> bool:
        return self.done.is_set() and len(self.outcomes) == self.choices


class Session:
    def __init__(self, settings: SessionSettings, key: str, created: float) -> None:
        self.settings = settings
        self.key = key
        self.created = created
        self.used = time.monotonic()
        self.tree = Tree()
        self.made_calls = MadeCalls()
        self.result: Any = None
        self.result_changed = asyncio.Event()
        self.closed = False
        self.gone = False
        """Deleted or expired: calls still in flight are not recorded."""
        self.damaged = False
        """Some of its turns could not be read from the log."""
        self.in_flight = 0
        self.answers: OrderedDict[bytes, CallAnswer] = OrderedDict()
        self.texts: list[tuple[int, bytes, int, Turn]] = []
        """Plain completions: length and hash of prompt and reply together, the reply's length, the turn."""
        self.conversations: dict[str, StoredConversation] = {}
        """Conversations that calls can continue by id, by the id of the turn they ended in."""
        self.transcript = TranscriptKeeper()
        self._prompts_seeded: Counter[int] = Counter()
        self.images = SessionImages()
        self.enforced = read_sampling(settings.enforced)
        self.defaults = read_sampling(settings.sampling)
        self.side_calls = SideCalls(settings.side_calls) if settings.side_calls is not None else None

    @property
    def id(self) -> str:
        return self.settings.session_id

    @property
    def idle_until_expired(self) -> float:
        """Seconds until it expires; below 0 once it has."""
        return self.used + self.settings.ttl_seconds - time.monotonic()

    def remember_answer(self, answer: CallAnswer) -> None:
        """Keep an answer under the hash of its request, in place of the oldest that is finished."""
        self.answers[answer.request] = answer
        self.answers.move_to_end(answer.request)
        while len(self.answers) > _REMEMBERED:
            oldest = next((key for key, kept in self.answers.items() if kept.done.is_set()), None)
            if oldest is None:
                break
            del self.answers[oldest]

    def sampling(self, asked: Sampling) -> Sampling:
        """The sampling settings of a call: enforced, else asked for, else the session's default."""
        if not self.settings.enforced and not self.settings.sampling:
            return asked
        return self.enforced.with_defaults(asked.with_defaults(self.defaults))

    def next_seed(self, prompt: array[int]) -> int | None:
        """The seed of a call; None if the session has none.

        It follows from the prompt and from how often the session has asked it, so calls at the same time get the same
        seeds in any order, and a repeated prompt gets another seed.
        """
        if self.settings.seed is None:
            return None
        asked = xxhash.xxh3_64_intdigest(prompt)
        self._prompts_seeded[asked] += 1
        return mix_seed(self.settings.seed, asked, self._prompts_seeded[asked])
