"""The turns of one session as a tree: which turn a call continues, and what a new prompt shares with older ones. Pure.

The record decides what the model saw, not the history a client sends back: a call is matched by fingerprints and
continues the recorded turn's exact ids. A history that really changed (compaction, a sub-agent, a retry, a branch)
matches the last turn it still agrees with, or none. Call ids, reasoning and exact text distinguish replies with the
same fingerprint: choices of one call, and the same request sampled again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from xxhash import xxh3_64

from ..call.chat import ChatCall, Message, Reply, ToolCall, parse_arguments, split_thought
from ..call.fingerprint import Echo, Fingerprints, fingerprint_call, hash_message, strip_whitespace
from .turn import PlacedImage, Turn

_COMPARED = 8  # how many turns a changed history is compared with, token by token
_WORTH_SHARING = 16  # tokens


@dataclass(slots=True)
class RecordedReply:
    """The parts of a turn's reply that identify its echo. Texts are kept as hashes."""

    turn: Turn
    call_ids: tuple[str, ...]
    reasoning: bytes
    text: bytes
    """To the letter, but for whitespace around it."""
    message: bytes
    """As `hash_message` gives it."""
    letters: bytes
    """The text without whitespace …"""
    length: int
    """… and its number of bytes."""
    stop: bytes
    """The stop string that ended it, without whitespace: sampled, but not part of the text."""

    @classmethod
    def of(cls, turn: Turn, reply: Reply) -> RecordedReply:
        letters = strip_whitespace(reply.content)
        return cls(
            turn,
            tuple(call.id for call in reply.tool_calls),
            _hash(strip_whitespace(reply.reasoning)),
            _hash(reply.content.strip().encode("utf-8", "surrogatepass")),
            hash_message(reply.message()),
            _hash(letters),
            len(letters),
            strip_whitespace(reply.stop or ""),
        )

    def similarity(self, message: Message) -> tuple[bool, ...]:
        """How similar an echo is to the reply; the most similar compares as the greatest."""
        thought, text = split_thought(message.get("content") or "")
        ids = tuple(call.get("id") for call in message.get("tool_calls") or ())
        return (
            bool(ids) and ids == self.call_ids,
            _hash(strip_whitespace(message.get("reasoning_content") or thought)) == self.reasoning,
            _hash(text.strip().encode("utf-8", "surrogatepass")) == self.text,
            hash_message(message) == self.message,
        )

    def has_letters(self, letters: bytes) -> bool:
        """Whether this is the reply's text, whitespace aside."""
        return len(letters) == self.length and _hash(letters) == self.letters

    def find_appended(self, message: Message) -> str | None:
        """The text that a client appended to the reply; None if the message is a different one.

        A stop string that the client writes is the one that was sampled. Tool calls may come back as text that names
        their ids.
        """
        if message.get("tool_calls"):
            return None
        _, text = split_thought(message.get("content") or "")
        letters = strip_whitespace(text)
        if not self.has_letters(letters[: self.length]):
            return None
        rest = _skip_letters(text, self.length)
        if self.stop and strip_whitespace(rest).startswith(self.stop):
            rest = _skip_letters(rest, len(self.stop))
        elif self.length and not rest[:1].isspace():  # the last word continues: an edit
            return None
        return rest.strip() if all(name and name in rest for name in self.call_ids) else None


class TurnMatch(NamedTuple):
    turn: Turn | None = None
    messages: int = 0
    """How many of the call's messages that turn has seen, its own reply included."""
    appended: str = ""
    """Text that the client appended to that reply; the model did not sample it."""


class Tree:
    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._by_end: dict[bytes, list[RecordedReply]] = {}
        """Replies by the fingerprint of their conversation, themselves included …"""
        self._by_prompt: dict[bytes, list[RecordedReply]] = {}
        """… and by that of the conversation before them."""

    def add(self, turn: Turn, end: bytes = b"", asked: bytes = b"", reply: Reply | None = None) -> None:
        """Add a turn. `end` is the fingerprint of its conversation with its reply, `asked` the one without.

        No call continues a turn without a reply.
        """
        self.turns.append(turn)
        if reply is not None:
            recorded = RecordedReply.of(turn, reply)
            self._by_end.setdefault(end, []).append(recorded)
            self._by_prompt.setdefault(asked, []).append(recorded)

    def find(self, call: ChatCall) -> tuple[TurnMatch, Fingerprints]:
        """The turn that a call continues, and the call's fingerprints."""
        fingerprints = fingerprint_call(call, self._is_recorded)
        return self.match(fingerprints), fingerprints

    def match(self, fingerprints: Fingerprints) -> TurnMatch:
        """The deepest turn whose conversation the call's begins with."""
        for number in reversed(range(len(fingerprints.echoes))):
            echo = fingerprints.echoes[number]
            echoed = self._find_echoed(echo)
            if echoed:
                reply = echoed[0] if len(echoed) == 1 else _choose(echoed, self._turn_before(fingerprints, number))
                appended = "" if echo.end in self._by_end else reply.find_appended(echo.message) or ""
                return TurnMatch(reply.turn, echo.place, appended)
        return TurnMatch()

    def share(self, prompt: array[int], images: Sequence[PlacedImage] = ()) -> tuple[Turn | None, int]:
        """The turn whose tokens have the longest prefix in common with a new prompt, and the prefix's length."""
        best, longest = None, _WORTH_SHARING
        for turn in self._candidates():
            common = common_prefix(prompt, turn.tokens(min(turn.length, len(prompt))))
            if images:
                common = _same_images(images, turn.placed_images(), common)
            if common > longest:
                best, longest = turn, common
        while best is not None and best.parent is not None and longest <= best.keep:
            best = best.parent  # the turn that these tokens really belong to
        return best, longest if best is not None else 0

    def _candidates(self) -> Iterable[Turn]:
        return [*self.turns[:1], *self.turns[1:][-_COMPARED:]]

    def _is_recorded(self, end: bytes, message: Message) -> bool:
        """Whether a message has the text of some reply with its tool calls, or none."""
        letters = strip_whitespace(split_thought(message.get("content") or "")[1])
        return not letters or any(reply.has_letters(letters) for reply in self._by_end.get(end, ()))

    def _turn_before(self, fingerprints: Fingerprints, number: int) -> Turn | None:
        """The turn that the messages before an echo continue."""
        turn: Turn | None = None
        for echo in fingerprints.echoes[:number]:
            echoed = self._find_echoed(echo)
            turn = _choose(echoed, turn).turn if echoed else turn
        return turn

    def _find_echoed(self, echo: Echo) -> list[RecordedReply]:
        """The replies that a message echoes, all equally similar: mostly one, or none."""
        replies = self._by_end.get(echo.end)
        if replies is None:
            return self._find_extended(echo)
        if len(replies) == 1:
            return replies
        similar = [reply.similarity(echo.message) for reply in replies]
        most = max(similar)
        return [reply for reply, how in zip(replies, similar, strict=True) if how == most]

    def _find_extended(self, echo: Echo) -> list[RecordedReply]:
        """The longest replies that a message begins with; the client appended the rest."""
        asked = self._by_prompt.get(echo.before, ())
        replies = [reply for reply in asked if reply.find_appended(echo.message) is not None]
        longest = max((reply.length for reply in replies), default=0)
        return [reply for reply in replies if reply.length == longest]


class MadeCalls:
    """A session's tool calls as the model made them, by id.

    Agents validate a call against the tool's schema and send it back with the defaults of optional arguments. If the
    echo only adds members, the gateway restores what the model sampled.
    """

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, Any]] = {}

    def add(self, calls: Iterable[ToolCall]) -> None:
        for call in calls:
            self._made[call.id] = (call.name, parse_arguments(call.arguments))

    def restore(self, messages: Iterable[Message]) -> None:
        """Give echoed calls the arguments they were made with, where the echo only adds to them."""
        for message in messages:
            for call in message.get("tool_calls") or ():
                name, arguments = self._made.get(call.get("id", ""), ("", None))
                function = call["function"]
                if arguments is not None and name == function["name"] and _covers(function["arguments"], arguments):
                    function["arguments"] = arguments


def _covers(echoed: Any, made: Any) -> bool:
    """Whether `echoed` equals `made`, apart from members added to objects."""
    if isinstance(made, dict):
        return isinstance(echoed, dict) and all(key in echoed and _covers(echoed[key], made[key]) for key in made)
    if isinstance(made, list):
        return isinstance(echoed, list) and len(echoed) == len(made) and all(map(_covers, echoed, made))
    return type(echoed) is type(made) and bool(echoed == made)


def _choose(replies: list[RecordedReply], before: Turn | None) -> RecordedReply:
    """Of equally similar replies, the latest of those that continue the turn before."""
    return ([reply for reply in replies if before is not None and reply.turn.continues(before)] or replies)[-1]


def _same_images(images: Sequence[PlacedImage], others: Sequence[PlacedImage], common: int) -> int:
    """The length of a common prefix that has the same images, each whole. Two images of one size have equal tokens."""
    known = set(others)
    return min((image.start for image in images if image.start < common and image not in known), default=common)


def _hash(data: bytes) -> bytes:
    return bytes(xxh3_64(data).digest())


def _skip_letters(text: str, length: int) -> str:
    """The text after its first `length` bytes that are not whitespace."""
    place = 0
    while length > 0 and place < len(text):
        length -= len(strip_whitespace(text[place]))
        place += 1
    return text[place:]


def common_prefix(one: array[int], other: array[int]) -> int:
    length = min(len(one), len(other))
    if length == 0:
        return 0
    differ = np.frombuffer(one, np.uint32, length) != np.frombuffer(other, np.uint32, length)
    first = int(differ.argmax())
    return first if differ[first] else length
