"""Sessions from the records that a log has of them."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...engine.base import IDS, Routes
from ..call.chat import Reply, ToolCall
from ..images.image_file import SessionImage
from .conversation import restore_conversation
from .reasons import SIDE_CALL
from .session import CallAnswer, ChoiceOutcome, Session, SessionSettings
from .turn import LOGPROBS, PLAIN, PlacedImage, Turn

SCHEMA = 1
_STARTED = time.monotonic()


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


_BOOT = _read_boot_id()


def stamp_clock() -> tuple[str, float]:
    """The current time for a record: idle time must survive a restart and a change of the wall clock.

    On Linux, all processes since the machine booted share one monotonic clock.
    """
    return _BOOT, time.monotonic()


def _read_clock(stamp: Any) -> float:
    """A record's time on this process's monotonic clock; of another boot, the time this process started."""
    if _BOOT and isinstance(stamp, (list, tuple)) and len(stamp) == 2 and stamp[0] == _BOOT:
        return min(float(stamp[1]), time.monotonic())
    return _STARTED


def build_session(records: Iterator[dict[str, Any]]) -> Session | None:
    """A session from its records; None if the first one is missing or from another version."""
    session: Session | None = None
    for record in records:
        kind = record["kind"]
        if kind == "session":
            if record["schema"] != SCHEMA:
                return None
            session = Session(msgspec.convert(record["settings"], SessionSettings), record["key"], record["created"])
        if session is None:
            return None
        session.used = _read_clock(record.get("clock"))
        if kind == "turn":
            _replay_turn(session, record)
        elif kind == "image":
            session.images.restore(SessionImage(record["sha256"], record["data"]))
        elif kind == "masked":
            session.tree.turns[record["index"]].masked = record["reason"]
        elif kind == "result":
            session.result = record["result"]
        elif kind == "closed":
            session.closed = True
    if session is not None:
        _doubt_delivery(session)
    return session


def _doubt_delivery(session: Session) -> None:
    """Treat answers that no turn continues as lost: a client that repeats its request gets the recorded answer."""
    parents = ((turn, turn.parent) for turn in session.tree.turns if turn.parent is not None)
    continued = {parent.index for turn, parent in parents if turn.continues(parent)}
    for answer in session.answers.values():
        answer.lost = all(outcome.turn.index not in continued for outcome in answer.outcomes)


def _replay_turn(session: Session, record: dict[str, Any]) -> None:
    turns = session.tree.turns
    routes = record["routes"]
    record["versions"] = tuple((version, count) for version, count in record["versions"])
    record["images"] = tuple(PlacedImage(*image) for image in record.get("images", ()))
    turn = Turn(
        index=record["index"],
        parent=turns[record["parent"]] if record["parent"] is not None else None,
        delta_ids=_unpack(IDS, record["delta"]),
        sampled_ids=_unpack(IDS, record["sampled"]),
        logprobs=_unpack(LOGPROBS, record["logprobs"]),
        routes=Routes(*routes) if routes is not None else None,
        waited=record.get("waited", 0.0),
        asked_model=record.get("asked_model", ""),
        **{name: record[name] for name in PLAIN},
    )
    reply = Reply(**record["reply"] | {"tool_calls": [ToolCall(**call) for call in record["reply"]["tool_calls"]]})
    session.tree.add(turn, record["end"], record["asked"], reply if record["end"] else None)
    before = turn.parent if turn.origin == "bridge" else None
    session.transcript.add(turn, before, record["messages"], reply, record.get("tools", ()))
    if record["text"] is not None:
        session.texts.append((*record["text"], turn))
    if turn.masked in (None, SIDE_CALL):
        _replay_answer(session, turn, record, reply)


def _replay_answer(session: Session, turn: Turn, record: dict[str, Any], reply: Reply) -> None:
    request, uid, created, model, choices = record["answer"]
    answer = session.answers.get(request)
    if answer is None or answer.uid != uid:
        answer = CallAnswer(created, uid, model, request, choices)
        answer.done.set()
        session.remember_answer(answer)
    session.made_calls.add(reply.tool_calls)
    answer.outcomes.append(ChoiceOutcome(turn, reply, record.get("tops") or []))
    restore_conversation(session.conversations, record, reply)


def _unpack(code: str, data: bytes) -> Any:
    packed = array(code)
    packed.frombytes(data)
    return packed
