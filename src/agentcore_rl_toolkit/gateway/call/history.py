"""Conversations that a later call goes on from by an id alone, as OpenAI's Responses let it.

Each keeps only what the one before it has not: a session's memory of them is linear in what was said, whether clients
send ids or all of it every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .chat import ChatCall, Message, Reply

if TYPE_CHECKING:
    from ..record.session import Session
    from .plan import Plan


@dataclass(slots=True, eq=False)
class Kept:
    """A conversation up to and with one reply."""

    before: Kept | None
    messages: list[Message]
    """What came after `before` and led to the reply."""
    reply: Reply
    lead: int
    """How many messages stood before it all that are not part of it, such as instructions of one call."""

    def conversation(self) -> list[Message]:
        """All of it, the reply included."""
        parts, kept = [], self
        while True:
            parts.append([*kept.messages, _echo(kept.reply)])
            if kept.before is None:
                return [message for part in reversed(parts) for message in part]
            kept = kept.before


def remember(session: Session, plan: Plan, uid: str, reply: Reply) -> dict[str, Any] | None:
    """Keep a call's conversation under its turn's `uid`, if the call asks for it; gives what the log needs of that."""
    call = plan.call
    if not isinstance(call, ChatCall) or call.remember is None or plan.prints is None:
        return None
    turn, used = session.tree.match(plan.prints)
    before = session.kept.get(turn.uid) if turn is not None else None
    if turn is None or before is None or before.lead != call.remember or plan.prints.appended:
        turn, before, used = None, None, call.remember
    messages = list(call.messages[used:])
    session.kept[uid] = Kept(before, messages, reply, call.remember)
    return {
        "before": turn.uid if turn is not None else None,
        "lead": call.remember,
        # The log has the messages that the turn before has not seen; mostly these are among them.
        "skip": used - plan.used,
        "messages": messages if used < plan.used else None,
    }


def restore(session: Session, record: dict[str, Any], reply: Reply) -> None:
    """Keep again what the log has of it."""
    known = record.get("kept")
    if known is not None:
        messages = known["messages"] if known["messages"] is not None else record["messages"][known["skip"] :]
        session.kept[record["uid"]] = Kept(session.kept.get(known["before"]), messages, reply, known["lead"])


def _echo(reply: Reply) -> Message:
    """A reply as a client sends it back that drops nothing."""
    message = reply.message()
    for said, call in zip(message.get("tool_calls", ()), reply.tool_calls, strict=False):
        said["id"] = call.id
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    return message
