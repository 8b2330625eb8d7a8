"""Conversations that a later call continues by an id alone, as OpenAI's Responses API allows.

Each stores only the messages that its predecessor lacks, so a session's memory is linear in the number of messages,
whether clients send ids or the whole history every time. The log keeps the same messages with the turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..call.chat import ChatCall, Message, Reply
from .tree import TurnMatch


@dataclass(slots=True, eq=False)
class StoredConversation:
    """A conversation up to one reply, that included."""

    before: StoredConversation | None
    messages: list[Message]
    """What came after `before` and led to the reply."""
    reply: Reply
    lead: int
    """How many messages of the call are not part of it, such as the instructions of one call."""

    def conversation(self) -> list[Message]:
        """All its messages, the reply included."""
        parts, stored = [], self
        while True:
            parts.append([*stored.messages, _echo(stored.reply)])
            if stored.before is None:
                return [message for part in reversed(parts) for message in part]
            stored = stored.before


def store_conversation(
    stored: dict[str, StoredConversation], uid: str, call: ChatCall, reply: Reply, match: TurnMatch, logged: int
) -> dict[str, Any] | None:
    """Store a call's conversation under its turn's `uid`, if the call asks for it; gives the fields for the log.

    The log has the call's messages after the first `logged` anyway.
    """
    if call.remember is None:
        return None
    turn, used, appended = match
    before = stored.get(turn.uid) if turn is not None else None
    if turn is None or before is None or before.lead != call.remember or appended:
        turn, before, used = None, None, call.remember
    messages = call.messages[used:]
    stored[uid] = StoredConversation(before, messages, reply, call.remember)
    return {
        "before": turn.uid if turn is not None else None,
        "lead": call.remember,
        "skip": used - logged,
        "messages": messages if used < logged else None,
    }


def restore_conversation(stored: dict[str, StoredConversation], record: Mapping[str, Any], reply: Reply) -> None:
    """Store the conversation that a turn's record in the log describes, if it does."""
    fields = record.get("kept")
    if fields is not None:
        messages = fields["messages"] if fields["messages"] is not None else record["messages"][fields["skip"] :]
        stored[record["uid"]] = StoredConversation(stored.get(fields["before"]), messages, reply, fields["lead"])


def _echo(reply: Reply) -> Message:
    """A reply as a client sends it back that drops nothing."""
    message = reply.message()
    for echoed, call in zip(message.get("tool_calls", ()), reply.tool_calls, strict=False):
        echoed["id"] = call.id
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    return message
