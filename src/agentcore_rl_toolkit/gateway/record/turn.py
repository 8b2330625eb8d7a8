"""One model call, packed: what the policy was given, what it sampled, and with which weights.

Turns share prefixes. A turn's prompt is the first `keep` tokens of its parent (prompt and sampled together), then
`delta`; so a session's memory is linear in the tokens it sampled and received, at four bytes an id and four more a
logprob. Turns that go on from each other are one `Line`, so that a prompt is read in one piece however many they are.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from ...engine.base import IDS, Routes, Sampled
from ...errors import EngineError

LOGPROBS = "f"

# Why the tokens of a turn are not trained on.
ABORTED = "aborted"  # the client went away while they were sampled
ENGINE_ERROR = "engine_error"  # the engine failed before the turn was whole
UNDELIVERED = "undelivered"  # sampled whole, but the client never received them
TRUNCATED = "truncated"  # cut at the token limit, and the session masks such turns
SIDE_CALL = "side_call"  # the session leaves such calls out of training
NO_LOGPROB = "no_logprob"  # the engine gave no usable logprob (a token, not a turn)


class Line:
    """The ids of turns that go on from each other, in one array. It only ever grows."""

    __slots__ = ("_before", "_ids", "_start")

    def __init__(self, before: Line | None, start: int) -> None:
        """`before` has the first `start` ids."""
        self._before = before
        self._start = start
        self._ids = array(IDS)

    @property
    def end(self) -> int:
        return self._start + len(self._ids)

    def add(self, ids: array[int]) -> None:
        self._ids.extend(ids)

    def tokens(self, start: int, end: int) -> array[int]:
        """A copy of the ids from `start` to `end`."""
        if start >= self._start:
            return self._ids[start - self._start : end - self._start]
        parts: list[array[int]] = []
        line: Line | None = self
        while line is not None and end > start:
            if end > line._start:
                parts.append(line._ids[max(0, start - line._start) : end - line._start])
                end = line._start
            line = line._before
        whole = array(IDS)
        for part in reversed(parts):
            whole.extend(part)
        return whole


@dataclass(slots=True, eq=False)
class Turn:
    """One sampled sequence of a session."""

    index: int
    """Its place in the order in which the session's turns were recorded."""
    parent: Turn | None = field(repr=False)
    keep: int
    delta_ids: InitVar[array[int]]
    sampled_ids: InitVar[array[int]]
    logprobs: array[float] = field(repr=False)
    """One for each sampled token; NaN where the engine gave none."""
    finish: str
    versions: tuple[tuple[str, int], ...] = ()
    """Weight versions and how many sampled tokens each is behind, in order; `""` for tokens of no known version."""
    masked: str | None = None
    """Why none of it is trained on, if so."""
    origin: str = "first"
    """How its prompt came about: `first`, `bridge`, `render` (the history was changed, or could not be bridged)."""
    unbridged: str = ""
    """Why its prompt was rendered anew, if it was: one of `unbridged`."""
    routes: Routes | None = None
    """Expert routes of the tokens that the parents' routes don't cover."""
    parse_failures: int = 0
    tool_calls: int = 0
    omitted: dict[str, int] = field(default_factory=dict)
    """What the client sent and the model was not shown, by kind, as far as it is new in this turn's prompt."""
    started: float = 0.0
    seconds: float = 0.0
    uid: str = ""
    """Names its response and its tool calls."""
    prompt_length: int = field(init=False)
    length: int = field(init=False)
    """Tokens of prompt and sampled together."""
    _line: Line = field(init=False, repr=False)

    def __post_init__(self, delta_ids: array[int], sampled_ids: array[int]) -> None:
        line = self.parent._line if self.parent is not None else None
        # Whoever is first to go on from all of a turn goes on in its line; others branch off.
        if line is None or self.keep != line.end:
            line = Line(line, self.keep)
        self._line = line
        self._line.add(delta_ids)
        self._line.add(sampled_ids)
        self.prompt_length = self.keep + len(delta_ids)
        self.length = self.prompt_length + len(sampled_ids)

    @property
    def delta(self) -> array[int]:
        """What the prompt has beyond the parent's first `keep` tokens."""
        return self._line.tokens(self.keep, self.prompt_length)

    @property
    def sampled(self) -> array[int]:
        return self._line.tokens(self.prompt_length, self.length)

    def path(self) -> Iterator[Turn]:
        """This turn, its parent, and so on to the first."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent

    def goes_on_from(self, other: Turn) -> bool:
        """Whether its prompt has what `other` sampled."""
        kept = self.keep
        for turn in self.path():
            if turn is other and turn is not self:
                return kept > other.prompt_length or (not other.sampled and kept == other.length)
            kept = min(kept, turn.keep)
        return False

    def prompt(self) -> array[int]:
        """The whole prompt's token ids."""
        return self.tokens(self.prompt_length)

    def tokens(self, end: int | None = None, start: int = 0) -> array[int]:
        """The ids of prompt and sampled together, from `start` to `end` (all of them, if not said)."""
        return self._line.tokens(start, self.length if end is None else min(end, self.length))


@dataclass(slots=True)
class Tokens:
    """Some sampled tokens, as clients that ask for logprobs get them."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    tops: Sequence[dict[int, float]]


@dataclass(slots=True)
class Draft:
    """What of a turn has been sampled so far."""

    started: float
    sampled: array[int] = field(default_factory=lambda: array(IDS))
    logprobs: array[float] = field(default_factory=lambda: array(LOGPROBS))
    versions: list[list[Any]] = field(default_factory=list)
    tops: list[dict[int, float]] = field(default_factory=list)
    routes: Routes | None = None
    sent: int = 0

    def take(self, sampled: Sampled, weight_version: str | None) -> None:
        self.add(sampled.token_ids, sampled.logprobs, sampled.weight_version or weight_version)
        if sampled.top_logprobs is not None:
            self.tops.extend(sampled.top_logprobs)
        if sampled.routes is not None:
            self.routes = sampled.routes

    def add(self, ids: Sequence[int], logprobs: Sequence[float | None], version: str | None) -> None:
        if not ids:
            return
        before = len(self.sampled)
        try:
            self.sampled.extend(ids)
        except (OverflowError, TypeError) as error:
            del self.sampled[before:]
            raise EngineError(f"the engine sampled what is no token id: {error}", sampled_any=True) from None
        try:
            self.logprobs.extend(logprobs)  # type: ignore[arg-type]
        except TypeError:  # some are missing; what was taken in before the first of them is taken back
            del self.logprobs[before:]
            self.logprobs.extend([math.nan if value is None else value for value in logprobs])
        missing = len(self.sampled) - len(self.logprobs)
        if missing > 0:
            self.logprobs.extend([math.nan] * missing)
        elif missing < 0:
            del self.logprobs[missing:]
        version = version or ""
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1][1] += len(ids)
        else:
            self.versions.append([version, len(ids)])

    def known_versions(self) -> tuple[tuple[str, int], ...]:
        """Weight versions by number of tokens; nothing if none is known."""
        spans = tuple((version, count) for version, count in self.versions)
        return spans if any(version for version, _ in spans) else ()

    def unsent(self) -> Tokens:
        start, self.sent = self.sent, len(self.sampled)
        return Tokens(self.sampled[start:], self.logprobs[start:], self.tops[start:])


def new_routes(routes: Routes | None, parent: Turn | None, keep: int) -> Routes | None:
    """The part of an engine's routes that the turns before don't have."""
    return routes.since(covered(parent, keep)) if routes is not None else None


def covered(parent: Turn | None, keep: int) -> int:
    """Up to where the routes of a prompt's tokens are known, from the turns before."""
    turn = parent
    while turn is not None and turn.routes is None:
        keep, turn = min(keep, turn.keep), turn.parent
    return min(keep, turn.routes.start + turn.routes.count) if turn is not None and turn.routes is not None else 0
