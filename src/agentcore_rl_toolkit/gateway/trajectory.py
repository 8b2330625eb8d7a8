"""Turns folded into training rows. A pure function of turns.

A row is one path through the session's tree, from the first turn to one that nothing goes on from. Every sampled token
is trained in exactly one row, or masked, with the reason counted. A session that folds into several rows (sub-agents,
compaction, retries) counts once: the rows' weights are their shares of the trained tokens and add up to 1.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .turn import NO_LOGPROB, TRUNCATED, UNDELIVERED, Turn


@dataclass(frozen=True)
class Span:
    """A turn's sampled tokens within a row."""

    turn: int
    start: int
    end: int
    trained: bool
    finish: str


@dataclass(frozen=True)
class RouteTable:
    """Expert routes of a row's tokens: `width` numbers a token. Where `known` is 0 nothing was reported."""

    data: npt.NDArray[np.int32]
    known: npt.NDArray[np.uint8]


@dataclass(frozen=True)
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
    spans: tuple[Span, ...]
    versions: tuple[tuple[str, int, int], ...]
    """Weight version, start and end of each stretch of sampled tokens that has one."""
    routes: RouteTable | None = None

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
    """Prompts that went on from the exact ids of the turn before."""
    renders: int
    """Prompts rendered anew although the session had turns: a changed history, or one that could not be bridged."""
    parse_failures: int


@dataclass(frozen=True)
class Trajectories:
    """What a session's turns come to."""

    rows: tuple[Row, ...]
    fidelity: Fidelity


@dataclass
class _Draft:
    """A row while it is put together."""

    leaf: Turn
    path: list[tuple[Turn, bool]] = field(default_factory=list)
    """Turns whose sampled tokens are all in the row, first to last, and whether they are trained in it."""


def fold(turns: Sequence[Turn], *, mask_truncated: bool = False) -> Trajectories:
    """The rows that `turns` come to.

    `mask_truncated` leaves out turns that were cut at the token limit.
    """
    reasons = _reasons(turns, mask_truncated)
    masked: Counter[str] = Counter()
    for turn in turns:
        reason = reasons.get(turn)
        unusable = int(np.isnan(_floats(turn)).sum())
        if reason is not None:
            masked[reason] += len(turn.sampled)
        elif unusable:
            masked[NO_LOGPROB] += unusable
    drafts = _drafts(turns, reasons)
    built = [_build(draft) for draft in drafts]
    rows = [row for row in built if row.trained]
    total = sum(row.trained for row in rows)
    rows = [_weighed(row, row.trained / total) for row in rows]
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
        ),
    )


def _reasons(turns: Sequence[Turn], mask_truncated: bool) -> dict[Turn, str]:
    """Why a turn is masked, for those that are."""
    # Whoever goes on from a reply has received it.
    received = {turn.parent for turn in turns if turn.parent is not None and turn.keep > turn.parent.prompt_length}
    reasons: dict[Turn, str] = {}
    for turn in turns:
        if turn.masked is not None and not (turn.masked == UNDELIVERED and turn in received):
            reasons[turn] = turn.masked
        elif mask_truncated and turn.finish == "length":
            reasons[turn] = TRUNCATED
    return reasons


def _drafts(turns: Sequence[Turn], reasons: dict[Turn, str]) -> list[_Draft]:
    """A row for each turn that no other goes on from in full; each turn trained in the first row that has it."""
    gone_on = {turn.parent for turn in turns if turn.parent is not None and turn.keep >= turn.parent.length}
    leaves = [turn for turn in turns if turn not in gone_on]
    leaves.sort(key=lambda leaf: leaf in reasons)  # a masked end must not claim the turns before it for its own row
    placed: set[Turn] = set()
    drafts = []
    for leaf in leaves:
        draft, included = _Draft(leaf), leaf.length
        for turn in leaf.path():
            if included >= turn.length:
                draft.path.append((turn, turn not in placed and turn not in reasons))
                placed.add(turn)
            included = min(included, turn.keep)
        draft.path.reverse()
        drafts.append(draft)
    return sorted(drafts, key=lambda draft: draft.leaf.index)


def _build(draft: _Draft) -> Row:
    trained = [turn for turn, train in draft.path if train and len(turn.sampled)]
    length = trained[-1].length if trained else 0  # nothing after the last trained token is of use
    ids = draft.leaf.tokens(length)
    mask = np.zeros(length, np.uint8)
    logprobs = np.full(length, np.nan, np.float32)
    spans, versions = [], []
    for turn, train in draft.path:
        start, end = turn.prompt_length, turn.length
        if end > length:
            break
        values = _floats(turn)
        logprobs[start:end] = values
        if train:
            mask[start:end] = ~np.isnan(values)
        spans.append(Span(turn.index, start, end, train, turn.finish))
        place = start
        for version, count in turn.versions:
            versions.append((version, place, place + count))
            place += count
    first = next((turn.prompt_length for turn, _ in draft.path), 0)
    return Row(ids, mask, logprobs, 0.0, first, tuple(spans), tuple(versions), _routes(draft, length))


def _routes(draft: _Draft, length: int) -> RouteTable | None:
    """Routes of the row's tokens, each from the turn that first ran it through the model."""
    table: RouteTable | None = None
    included = draft.leaf.length
    for turn in draft.leaf.path():
        routes = turn.routes
        if routes is not None:
            if table is None:
                table = RouteTable(np.zeros((length, routes.width), np.int32), np.zeros(length, np.uint8))
            end = min(routes.start + routes.count, included, length)
            if end > routes.start and routes.width == table.data.shape[1]:
                numbers = np.frombuffer(routes.data, np.dtype(f"<u{routes.itemsize}"))
                rows = numbers.reshape(-1, routes.width)[: end - routes.start]
                table.data[routes.start : end] = rows
                table.known[routes.start : end] = 1
        included = min(included, turn.keep)
    return table


def _weighed(row: Row, weight: float) -> Row:
    return Row(
        row.token_ids, row.loss_mask, row.logprobs, weight, row.prompt_length, row.spans, row.versions, row.routes
    )


def _floats(turn: Turn) -> npt.NDArray[np.float32]:
    return np.frombuffer(turn.logprobs, np.float32) if turn.logprobs else np.zeros(0, np.float32)
