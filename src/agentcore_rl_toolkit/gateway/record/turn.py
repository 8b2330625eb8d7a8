"""One model call, packed: the policy's prompt, its sampled tokens, and the version of its weights.

Turns share prefixes. A turn's prompt is the first `keep` tokens of its parent (prompt and sampled together), then
`delta`; so a session's memory is linear in the tokens it sampled and received, at four bytes an id and four more a
logprob. Turns that continue each other share one growing `TokenBuffer`, so that reading a prompt is one copy.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from ...engine.base import IDS, Routes, Sampled, count_version
from ...errors import EngineError

LOGPROBS = "f"
PLAIN = (
    *("keep", "finish", "versions", "masked", "origin", "unbridged", "parse_failures", "tool_calls", "omitted"),
    *("images", "started", "seconds", "uid"),
)
"""The fields of a `Turn` that records and answers hold as they are."""


class PlacedImage(NamedTuple):
    start: int
    """The position of its first placeholder token."""
    length: int
    """The number of its placeholder tokens."""
    sha256: str
    """Of the file that the agent sent."""

    @property
    def end(self) -> int:
        return self.start + self.length


class TokenBuffer:
    """The ids of turns that continue each other, in one array that only grows."""

    __slots__ = ("_before", "_ids", "_start")

    def __init__(self, before: TokenBuffer | None, start: int) -> None:
        """`before` has the first `start` ids."""
        self._before = before
        self._start = start
        self._ids = array(IDS)

    def __len__(self) -> int:
        return len(self._ids)

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
        buffer: TokenBuffer | None = self
        while buffer is not None and end > start:
            if end > buffer._start:
                parts.append(buffer._ids[max(0, start - buffer._start) : end - buffer._start])
                end = buffer._start
            buffer = buffer._before
        whole = array(IDS)
        for part in reversed(parts):
            whole.extend(part)
        return whole


@dataclass(slots=True, eq=False)
class Turn:
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
    """Weight versions with their number of sampled tokens, in order; `""` for tokens of unknown version."""
    masked: str | None = None
    """Why none of it is trained on: one of `reasons`."""
    origin: str = "first"
    """How its prompt came about: `first`, `bridge`, or `render` (a changed history, or one that can't be bridged)."""
    unbridged: str = ""
    """Why its prompt was rendered from scratch: one of `reasons`."""
    routes: Routes | None = None
    """Expert routes of the tokens that the parents' routes don't cover."""
    parse_failures: int = 0
    tool_calls: int = 0
    omitted: dict[str, int] = field(default_factory=dict)
    """New parts of the prompt that the client sent and the model doesn't see, counted by kind."""
    images: tuple[PlacedImage, ...] = ()
    """Images in the part of the prompt that is new."""
    started: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    """Of these, seconds in which the gateway held it back because weights were being updated."""
    uid: str = ""
    """The id of its response, and the start of its tool calls' ids."""
    asked_model: str = ""
    """The model that the agent named, if the session's own answered instead."""
    prompt_length: int = field(init=False)
    length: int = field(init=False)
    """Tokens of prompt and sampled together."""
    buffer: TokenBuffer = field(init=False, repr=False)

    def __post_init__(self, delta_ids: array[int], sampled_ids: array[int]) -> None:
        before = self.parent.buffer if self.parent is not None else None
        # The first turn that continues all of its parent appends to the parent's buffer; others branch off.
        shares = before is not None and self.keep == before.end
        self.buffer = before if before is not None and shares else TokenBuffer(before, self.keep)
        self.buffer.add(delta_ids)
        self.buffer.add(sampled_ids)
        self.prompt_length = self.keep + len(delta_ids)
        self.length = self.prompt_length + len(sampled_ids)

    @property
    def delta(self) -> array[int]:
        """The prompt's tokens after the parent's first `keep`."""
        return self.buffer.tokens(self.keep, self.prompt_length)

    @property
    def sampled(self) -> array[int]:
        return self.buffer.tokens(self.prompt_length, self.length)

    def path(self) -> Iterator[Turn]:
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent

    def continues(self, other: Turn) -> bool:
        """Whether its prompt contains tokens that `other` sampled."""
        kept = self.keep
        for turn in self.path():
            if turn is other and turn is not self:
                return kept > other.prompt_length or (not other.sampled and kept == other.length)
            kept = min(kept, turn.keep)
        return False

    def placed_images(self, end: int | None = None) -> list[PlacedImage]:
        """The images in the first `end` tokens of prompt and sampled together (by default all)."""
        parts, kept = [], self.length if end is None else end
        for turn in self.path():
            parts.append([image for image in turn.images if image.end <= kept])
            kept = min(kept, turn.keep)
        return [image for part in reversed(parts) for image in part]

    def tokens(self, end: int | None = None, start: int = 0) -> array[int]:
        """The ids of prompt and sampled together, from `start` to `end` (by default all)."""
        return self.buffer.tokens(start, self.length if end is None else min(end, self.length))


@dataclass(slots=True)
class Tokens:
    """Sampled tokens for clients that ask for logprobs."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    tops: Sequence[dict[int, float]]


@dataclass(slots=True)
class Draft:
    started: float
    sampled: array[int] = field(default_factory=lambda: array(IDS))
    logprobs: array[float] = field(default_factory=lambda: array(LOGPROBS))
    versions: list[tuple[str, int]] = field(default_factory=list)
    tops: list[dict[int, float]] = field(default_factory=list)
    routes: Routes | None = None
    sent: int = 0

    def add_chunk(self, sampled: Sampled, weight_version: str | None) -> None:
        """Add what an engine sampled; `weight_version` counts where the engine gives none."""
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
            raise EngineError(f"the engine sampled an invalid token id: {error}", sampled_any=True) from None
        try:
            self.logprobs.extend(logprobs)  # type: ignore[arg-type]
        except TypeError:  # some are missing: start over
            del self.logprobs[before:]
            self.logprobs.extend([math.nan if value is None else value for value in logprobs])
        missing = len(self.sampled) - len(self.logprobs)
        if missing > 0:
            self.logprobs.extend([math.nan] * missing)
        elif missing < 0:
            del self.logprobs[missing:]
        count_version(self.versions, version or "", len(ids))

    def known_versions(self) -> tuple[tuple[str, int], ...]:
        """Weight versions by number of tokens; empty if none is known."""
        return tuple(self.versions) if any(version for version, _ in self.versions) else ()

    def take_unsent(self) -> Tokens:
        """The tokens sampled since the last time."""
        start, self.sent = self.sent, len(self.sampled)
        return Tokens(self.sampled[start:], self.logprobs[start:], self.tops[start:])


def count_routed(parent: Turn | None, keep: int) -> int:
    """How many of a prompt's first tokens have routes from the turns before."""
    turn = parent
    while turn is not None and turn.routes is None:
        keep, turn = min(keep, turn.keep), turn.parent
    return min(keep, turn.routes.start + turn.routes.count) if turn is not None and turn.routes is not None else 0
