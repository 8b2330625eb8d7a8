"""Turns folded into training rows. A pure function of turns.

A row is one path through the session's tree, from the first turn to one that no trainable turn continues. Every
sampled token is trained in exactly one row, or masked, with the reason counted. A session that folds into several rows
(sub-agents, compaction, retries) counts once: the rows' weights are their shares of the trained tokens and add up to 1.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ...common.object_repr import object_repr
from .conversation import NOTHING_SAID, Transcript
from .reasons import CHANGED, NO_LOGPROB, SIDE_CALL, TRUNCATED, UNAVOIDABLE, UNDELIVERED
from .turn import PlacedImage, Turn


@dataclass(frozen=True)
class TurnSpan:
    """A turn's sampled tokens within a row."""

    turn: int
    start: int
    end: int
    trained: bool
    finish: str


@dataclass(frozen=True)
class RouteTable:
    """Expert routes of a row's tokens: `width` numbers a token. Where `known` is 0, the engine reported none."""

    data: npt.NDArray[np.int32]
    known: npt.NDArray[np.uint8]


@dataclass(frozen=True, repr=False)
class Row:
    """One sequence to train on."""

    token_ids: array[int]
    loss_mask: npt.NDArray[np.uint8]
    """1 for tokens to train on: sampled by the policy, received by the agent, with a logprob."""
    logprobs: npt.NDArray[np.float32]
    """What the policy gave each sampled token; NaN for all others."""
    weight: float
    prompt_length: int
    """Tokens before the first sampled one."""
    spans: tuple[TurnSpan, ...]
    versions: tuple[tuple[str, int, int], ...]
    """Weight version, start and end of each stretch of sampled tokens that has one."""
    routes: RouteTable | None = None
    images: tuple[PlacedImage, ...] = ()
    """The images that the policy saw, where their placeholder tokens are."""

    def __repr__(self) -> str:
        return object_repr(self, tokens=len(self.token_ids), trained=self.trained, weight=self.weight)

    @property
    def trained(self) -> int:
        return int(self.loss_mask.sum())


@dataclass(frozen=True)
class Fidelity:
    """How much of what the policy sampled can be trained on, and why not all of it."""

    sampled: int
    trained: int
    masked: dict[str, int]
    """Tokens by reason; `sampled` is `trained` and all of these."""
    rows: int
    turns: int
    bridges: int
    """Prompts that continued the exact ids of the turn before."""
    renders: int
    """Prompts rendered from scratch in a session that had turns: the history changed, or could not be bridged."""
    parse_failures: int
    tool_calls: int = 0
    unbridged: dict[str, int] = field(default_factory=dict)
    """Why prompts were rendered from scratch, and how many: together they are `renders`."""
    damaged: bool = False
    """Some turns could not be read from the log: there were more of them than these."""
    omitted: dict[str, int] = field(default_factory=dict)
    """What agents sent and the model was not shown, by kind: images, documents, and tools of the API's own servers."""

    @property
    def wanted(self) -> int:
        """Tokens that are meant for training: all but those of side calls."""
        return self.sampled - self.masked.get(SIDE_CALL, 0)

    @property
    def split(self) -> dict[str, int]:
        """Those of `unbridged` where the conversation continued but its row did not."""
        return {reason: count for reason, count in self.unbridged.items() if reason not in UNAVOIDABLE}


@dataclass(frozen=True, repr=False)
class Trajectories:
    """A session's turns, folded."""

    rows: tuple[Row, ...]
    fidelity: Fidelity
    model_seconds: float = 0.0
    """How long its model calls took, all together."""
    transcript: Transcript = NOTHING_SAID
    """The same turns as text."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """The files of the rows' images, by their SHA-256."""

    def __repr__(self) -> str:
        return object_repr(self, rows=self.rows, turns=self.fidelity.turns)


def fold(turns: Sequence[Turn], *, mask_truncated: bool = False, damaged: bool = False) -> Trajectories:
    """Fold `turns` into rows.

    `mask_truncated` leaves out turns that were cut at the token limit; `damaged`: some turns are missing.
    """
    reasons = mask_reasons(turns, mask_truncated=mask_truncated)
    masked: Counter[str] = Counter()
    for turn in turns:
        reason = reasons.get(turn)
        if reason is not None:
            masked[reason] += len(turn.sampled)
        else:
            masked[NO_LOGPROB] += len(turn.sampled) - _usable(turn)
    rows = [_row(path, trained) for path, trained in _paths(turns, reasons)]
    total = sum(row.trained for row in rows)
    rows = [replace(row, weight=row.trained / total) for row in rows]
    sampled = sum(len(turn.sampled) for turn in turns)
    origins = Counter(turn.origin for turn in turns)
    return Trajectories(
        tuple(rows),
        Fidelity(
            sampled=sampled,
            trained=total,
            masked={reason: count for reason, count in sorted(masked.items()) if count},
            rows=len(rows),
            turns=len(turns),
            bridges=origins["bridge"],
            renders=origins["render"],
            parse_failures=sum(turn.parse_failures for turn in turns),
            tool_calls=sum(turn.tool_calls for turn in turns),
            unbridged=_unbridged(turns),
            damaged=damaged,
            omitted=dict(sum((Counter(turn.omitted) for turn in turns if turn.omitted), Counter())),
        ),
        sum(turn.seconds for turn in turns),
    )


def _unbridged(turns: Sequence[Turn]) -> dict[str, int]:
    # A log of an earlier version gives no reason.
    counts = Counter(turn.unbridged or CHANGED for turn in turns if turn.origin == "render")
    return dict(sorted(counts.items()))


def mask_reasons(turns: Sequence[Turn], *, mask_truncated: bool = False) -> dict[Turn, str]:
    """Why a turn is masked, for those that are."""
    # A client that continues a reply has received it. A prompt that only begins with some of the same tokens doesn't
    # continue it, and neither does another choice of the same call, which shares its prompt.
    received = {
        turn.parent
        for turn in turns
        if turn.parent is not None
        and (turn.keep >= turn.parent.length or (turn.origin == "bridge" and turn.keep > turn.parent.prompt_length))
    }
    reasons: dict[Turn, str] = {}
    for turn in turns:
        if turn.masked is not None and not (turn.masked == UNDELIVERED and turn in received):
            reasons[turn] = turn.masked
        elif mask_truncated and turn.finish == "length":
            reasons[turn] = TRUNCATED
    return reasons


def _paths(turns: Sequence[Turn], reasons: dict[Turn, str]) -> Iterator[tuple[list[Turn], set[Turn]]]:
    """For each row its turns, first to last, and those trained in it: each in the first row that has it.

    A row ends in a turn that has something to train on and that no other such turn continues.
    """
    ends: list[Turn] = []
    continued: set[Turn] = set()
    for turn in reversed(turns):
        trains = turn not in reasons and _usable(turn) > 0
        if trains and turn not in continued:
            ends.append(turn)
        before = _before(turn) if trains or turn in continued else None
        if before is not None:
            continued.add(before)
    placed = set(reasons)
    for end in reversed(ends):
        path = list(_chain(end))
        path.reverse()
        yield path, {turn for turn in path if turn not in placed}
        placed.update(path)


def _chain(end: Turn) -> Iterator[Turn]:
    turn: Turn | None = end
    while turn is not None:
        yield turn
        turn = _before(turn)


def _before(turn: Turn) -> Turn | None:
    """The last turn whose sampled tokens are all part of the turn's prompt."""
    kept = turn.keep
    for before in turn.path():
        if before is not turn and kept >= before.length:
            return before
        kept = min(kept, before.keep)
    return None


def _row(path: list[Turn], trained: set[Turn]) -> Row:
    ids = path[-1].tokens()
    mask = np.zeros(len(ids), np.uint8)
    logprobs = np.full(len(ids), np.nan, np.float32)
    spans, versions = [], []
    for turn in path:
        place, end = turn.prompt_length, turn.length
        values = _floats(turn)
        logprobs[place:end] = values
        if turn in trained:
            mask[place:end] = np.isfinite(values)
        spans.append(TurnSpan(turn.index, place, end, turn in trained, turn.finish))
        for version, count in turn.versions:
            if version:
                versions.append((version, place, place + count))
            place += count
    first = next(turn.prompt_length for turn in path if turn.sampled)
    return Row(ids, mask, logprobs, 0.0, first, tuple(spans), tuple(versions), _routes(path[-1]), _images(path[-1]))


def _routes(end: Turn) -> RouteTable | None:
    """Routes of the row's tokens, each from the turn that first ran it through the model."""
    table: RouteTable | None = None
    length = included = end.length
    for turn in end.path():
        routes = turn.routes
        if routes is not None:
            if table is None:
                table = RouteTable(np.zeros((length, routes.width), np.int32), np.zeros(length, np.uint8))
            stop = min(routes.start + routes.count, included)
            if stop > routes.start and routes.width == table.data.shape[1]:
                numbers = np.frombuffer(routes.data, np.dtype(f"<u{routes.itemsize}"))
                table.data[routes.start : stop] = numbers.reshape(-1, routes.width)[: stop - routes.start]
                table.known[routes.start : stop] = 1
        included = min(included, turn.keep)
    return table


def _images(end: Turn) -> tuple[PlacedImage, ...]:
    return tuple(end.placed_images()) if any(turn.images for turn in end.path()) else ()


def _usable(turn: Turn) -> int:
    """How many of its sampled tokens have a logprob that can be trained on."""
    return int(np.isfinite(_floats(turn)).sum())


def _floats(turn: Turn) -> npt.NDArray[np.float32]:
    return np.frombuffer(turn.logprobs, np.float32) if turn.logprobs else np.zeros(0, np.float32)
