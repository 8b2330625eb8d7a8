"""Logs on disk, and sessions and turns to write to them."""

from __future__ import annotations

import resource
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit.engine.base import IDS, Routes
from agentcore_rl_toolkit.gateway.call.chat import Reply
from agentcore_rl_toolkit.gateway.record.log import Log
from agentcore_rl_toolkit.gateway.record.session import CallAnswer, Session, read_settings
from agentcore_rl_toolkit.gateway.record.turn import LOGPROBS, Turn


@contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[Log]:
    log = Log(folder, **settings)
    try:
        yield log
    finally:
        log.close()


def new_session(log: Log, session_id: str, **settings: Any) -> Session:
    session = Session(read_settings({"session_id": session_id, **settings}), f"key of {session_id}", 5.0)
    log.write_session(session)
    return session


def add_turn(log: Log, session: Session, **known: Any) -> Turn:
    """A turn with tokens of its own, after the last."""
    turns = session.tree.turns
    parent = turns[-1] if turns else None
    number = len(turns)
    turn = Turn(
        index=number,
        parent=parent,
        keep=parent.length if parent is not None else 0,
        delta_ids=array(IDS, [number, 1]),
        sampled_ids=array(IDS, [number, 2, 3]),
        logprobs=array(LOGPROBS, [-0.5, float("nan"), -0.25]),
        finish="stop",
        versions=(("a", 1), ("b", 2)),
        routes=Routes(0, b"\1\2\3\4", 2),
        uid=f"uid{number}",
        **known,
    )
    end, asked = b"end%d" % number, b"asked"
    session.tree.add(turn, end, asked, Reply("x"))
    answer = CallAnswer(0, "u", "m", b"request%d" % number)
    log.write_turn(session, turn, Reply("x"), answer, end=end, asked=asked, text=None, messages=[])
    return turn


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that takes no more: half of the write that goes beyond, and nothing after it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def turns_of(log: Log, session_id: str) -> int:
    """How many turns of a session can be read."""
    session = log.load(session_id)
    assert session is not None
    return len(session.tree.turns)


def contents(folder: Path) -> dict[str, bytes]:
    """The segments of a log, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.turns"))}
