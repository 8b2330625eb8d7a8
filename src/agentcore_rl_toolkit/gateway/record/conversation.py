"""A session as text: conversations that a later call continues by an id alone, as OpenAI's Responses
API allows, and the transcript for people to read.

Each stores only the messages that its predecessor lacks, so a session's memory is linear in the number of messages,
whether clients send ids or the whole history every time. The log keeps the same messages with the turns. The
transcript of a session is bounded: beyond `LONGEST_TEXT` characters, only the beginning of each message is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..call.chat import ChatCall, Message, Reply
from .tree import TurnMatch
from .turn import Turn

LONGEST_TEXT = 4 << 20
"""Characters of a session's transcript that are kept whole."""
_OF_TURN = (
    *("started", "seconds", "waited", "finish", "origin", "unbridged", "versions", "parse_failures", "asked_model"),
)
_BEGINNING = 200  # characters of each string in a message beyond that bound
_MOST_CUT = 10_000  # messages beyond the bound of which anything is kept


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
    """A reply as a client that drops nothing sends it back."""
    message = reply.message()
    for echoed, call in zip(message.get("tool_calls", ()), reply.tool_calls, strict=False):
        echoed["id"] = call.id
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    return message


@dataclass(frozen=True, slots=True)
class ReadableTurn:
    """One turn for people to read: what was said, when, and how it ended."""

    turn: int
    before: int | None
    """The turn whose conversation it continues; None if it begins one."""
    messages: tuple[int, ...]
    """What was new in its prompt after that turn's reply: places in the transcript's messages."""
    reply: Message
    """`content`, `reasoning`, and `tool_calls` with `id`, `name` and `arguments` (as JSON text)."""
    tools: tuple[str, ...]
    """Names of the tools that the model could call."""
    started: float
    """Unix time at which the gateway began to answer."""
    seconds: float
    """How long the answer took, `waited` included."""
    waited: float
    """Of these, seconds in which the gateway held it back because weights were being updated."""
    prompt_tokens: int
    sampled_tokens: int
    finish: str
    origin: str
    unbridged: str
    masked: str | None
    """Why it is not trained on; None if it is."""
    versions: tuple[tuple[str, int], ...]
    parse_failures: int
    asked_model: str = ""
    """The model that the agent named, if another one answered; empty in older files."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A session's turns for people to read, without a tokenizer."""

    messages: tuple[Message, ...] = ()
    """Each distinct message once, in canonical form."""
    turns: tuple[ReadableTurn, ...] = ()
    left_out: int = 0
    """Characters that are missing because the session said more than `LONGEST_TEXT`."""

    def conversation(self, turn: int) -> list[Message]:
        """All messages up to a turn's reply, that included."""
        by_index = {one.turn: one for one in self.turns}
        parts: list[list[Message]] = []
        at: int | None = turn
        while at is not None and at in by_index and len(parts) <= len(self.turns):
            one = by_index[at]
            parts.append([*(self.messages[place] for place in one.messages), {"role": "assistant", **one.reply}])
            at = one.before
        return [message for part in reversed(parts) for message in part]

    def unknown_tools(self) -> list[str]:
        """Names that the model called and that were not offered to it."""
        calls = ((one, call.get("name")) for one in self.turns for call in one.reply.get("tool_calls") or ())
        return [str(name) for one, name in calls if name not in one.tools]

    def to_fields(self) -> dict[str, Any]:
        turns = [asdict(one) for one in self.turns]
        return {"messages": list(self.messages), "turns": turns, "left_out": self.left_out}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Transcript:
        turns = []
        for one in fields["turns"]:
            versions = tuple((str(version), int(count)) for version, count in one["versions"])
            places = {"messages": tuple(one["messages"]), "tools": tuple(one["tools"]), "versions": versions}
            turns.append(ReadableTurn(**{**one, **places}))
        return cls(tuple(fields["messages"]), tuple(turns), fields["left_out"])


NOTHING_SAID = Transcript()


@dataclass(slots=True, eq=False)
class TranscriptKeeper:
    """The text of a session's turns, as they are recorded."""

    _messages: list[Message] = field(default_factory=list)
    _places: dict[Any, int] = field(default_factory=dict)
    _said: dict[int, tuple[int | None, tuple[int, ...], Message, tuple[str, ...]]] = field(default_factory=dict)
    _size: int = 0
    _cut: int = 0
    _left_out: int = 0

    def add(
        self, turn: Turn, before: Turn | None, messages: Iterable[Message], reply: Reply, tools: Sequence[str] = ()
    ) -> None:
        """Add what is new in a turn: the messages after those of the turn `before`, and the reply."""
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in reply.tool_calls]
        said = {"content": reply.content, "reasoning": reply.reasoning, "tool_calls": calls}
        places = tuple(self._place(message) for message in messages)
        self._said[turn.index] = (before.index if before is not None else None, places, self._fit(said), tuple(tools))

    def transcript(self, turns: Sequence[Turn], reasons: Mapping[Turn, str]) -> Transcript:
        """The text of these turns; `reasons` has the reason for each masked one."""
        shown = []
        for turn in turns:
            before, places, reply, tools = self._said.get(turn.index, (None, (), {}, ()))
            shown.append(
                ReadableTurn(
                    turn=turn.index,
                    before=before,
                    messages=places,
                    reply=reply,
                    tools=tools,
                    prompt_tokens=turn.prompt_length,
                    sampled_tokens=turn.length - turn.prompt_length,
                    masked=reasons.get(turn),
                    **{name: getattr(turn, name) for name in _OF_TURN},
                )
            )
        return Transcript(tuple(self._messages), tuple(shown), self._left_out)

    def _place(self, message: Message) -> int:
        """The place of a message; one that was said before has it already."""
        key = tuple(value if isinstance(value, str) else repr(value) for item in message.items() for value in item)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._messages)
            self._messages.append(self._fit(message))
        return place

    def _fit(self, message: Message) -> Message:
        """The message, or the beginning of each of its strings once the transcript is full."""
        size = _count_characters(message)
        if self._size + size <= LONGEST_TEXT:
            self._size += size
            return message
        self._cut += 1
        kept = _shorten(message) if self._cut <= _MOST_CUT else {"role": message.get("role", "assistant")}
        self._left_out += size - min(size, _count_characters(kept))
        return kept


def _count_characters(value: Any) -> int:
    """The characters of all strings in a value; a number counts as eight."""
    count, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            count += len(one)
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple)):
            waiting += one
        else:
            count += 8
    return count


def _shorten(message: Message) -> Message:
    """A message with the beginning of its texts; calls keep their names."""
    kept: Message = {}
    for name, value in message.items():
        if name == "tool_calls":
            kept[name] = [_shorten(call.get("function", call)) for call in value[:8]]
        else:
            text = value if isinstance(value, str) else repr(value)[:_BEGINNING]
            kept[name] = text if len(text) <= _BEGINNING else f"{text[:_BEGINNING]} … {len(text)} characters"
    return kept
