"""Sessions from the records that a log has of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from ...engine.base import IDS, Routes
from ..call.chat import Reply, ToolCall
from ..call.history import restore
from .clock import recall
from .session import Answer, Outcome, Session, SessionSettings
from .turn import LOGPROBS, SIDE_CALL, Turn

SCHEMA = 1


def build_session(records: Iterator[dict[str, Any]]) -> Session | None:
    """A session from its records; None if there is not even the one that opened it, or another version wrote it."""
    session: Session | None = None
    for record in records:
        kind = record["kind"]
        if kind == "session":
            if record["schema"] != SCHEMA:
                return None
            known = SessionSettings.__dataclass_fields__.keys()
            settings = {name: value for name, value in record["settings"].items() if name in known}
            session = Session(SessionSettings(**settings), record["key"], record["created"])
        if session is None:
            return None
        session.used = recall(record.get("clock"))
        if kind == "turn":
            _replay(session, record)
        elif kind == "masked":
            session.tree.turns[record["index"]].masked = record["reason"]
        elif kind == "result":
            session.result = record["result"]
        elif kind == "closed":
            session.closed = True
    if session is not None:
        _doubt(session)
    return session


def _doubt(session: Session) -> None:
    """Nobody knows whether an answer arrived that nothing goes on from: whoever asks for the same gets it again."""
    parents = ((turn, turn.parent) for turn in session.tree.turns if turn.parent is not None)
    gone_on_from = {parent.index for turn, parent in parents if turn.goes_on_from(parent)}
    for answer in session.answers.values():
        answer.lost = all(outcome.turn.index not in gone_on_from for outcome in answer.outcomes)


def _replay(session: Session, record: dict[str, Any]) -> None:
    turns = session.tree.turns
    routes = record["routes"]
    turn = Turn(
        index=record["index"],
        parent=turns[record["parent"]] if record["parent"] is not None else None,
        keep=record["keep"],
        delta_ids=_array(IDS, record["delta"]),
        sampled_ids=_array(IDS, record["sampled"]),
        logprobs=_array(LOGPROBS, record["logprobs"]),
        finish=record["finish"],
        versions=tuple((version, count) for version, count in record["versions"]),
        masked=record["masked"],
        origin=record["origin"],
        unbridged=record.get("unbridged", ""),
        routes=Routes(*routes) if routes is not None else None,
        parse_failures=record["parse_failures"],
        tool_calls=record.get("tool_calls", 0),
        omitted=record.get("omitted", {}),
        started=record["started"],
        seconds=record["seconds"],
        uid=record["uid"],
    )
    reply = Reply(**record["reply"] | {"tool_calls": [ToolCall(**call) for call in record["reply"]["tool_calls"]]})
    session.tree.add(turn, record["end"], record.get("asked", b""), reply if record["end"] else None)
    if record["text"] is not None:
        session.texts.append((*record["text"], turn))
    if turn.masked in (None, SIDE_CALL):
        _remember(session, turn, record, reply)


def _remember(session: Session, turn: Turn, record: dict[str, Any], reply: Reply) -> None:
    """A client that was cut off by a kill asks again, and gets what was recorded."""
    request, uid, created, model, choices = record["answer"]
    answer = session.answers.get(request)
    if answer is None or answer.uid != uid:
        answer = Answer(created, uid, model, request, choices)
        answer.done.set()
        session.remember(answer)
    session.made_calls.add(reply.tool_calls)
    answer.outcomes.append(Outcome(turn, reply, record.get("tops") or []))
    restore(session, record, reply)


def _array(code: str, data: bytes) -> Any:
    packed = array(code)
    packed.frombytes(data)
    return packed
