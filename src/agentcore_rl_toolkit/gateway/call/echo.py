"""Which of several replies a client echoes, whether it edited the text beside a tool call, and what it appended.

Fingerprints find the replies that an echo may be of. Call ids, reasoning and exact text then tell apart those that
differ in nothing a fingerprint reads: choices of one call, and the same request sampled again. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from xxhash import xxh3_64

from ..record.turn import Turn
from .chat import Message, Reply, exact, split_thought, tight


@dataclass(slots=True)
class Said:
    """A turn's reply, as far as its echo has to be known again."""

    turn: Turn
    calls: tuple[str, ...]
    """The ids of its tool calls."""
    reasoning: bytes
    text: bytes
    """A print of its text, to the letter."""
    own: bytes
    """As `exact` gives it."""
    start: bytes
    """A print of its text without whitespace …"""
    length: int
    """… and how many bytes that has."""
    stop: bytes
    """The stop string that ended it, without whitespace: sampled, but not part of its text."""

    @classmethod
    def of(cls, turn: Turn, reply: Reply) -> Said:
        message, text = reply.message(), tight(reply.content)
        return cls(
            turn,
            tuple(call.id for call in reply.tool_calls),
            _print(tight(reply.reasoning)),
            _print(reply.content.strip().encode("utf-8", "surrogatepass")),
            exact(message),
            _print(text),
            len(text),
            tight(reply.stop or ""),
        )

    def likeness(self, message: Message) -> tuple[bool, ...]:
        """How like the reply its echo is: the greater, the more."""
        thought, text = split_thought(message.get("content") or "")
        ids = tuple(call.get("id") for call in message.get("tool_calls") or ())
        return (
            bool(ids) and ids == self.calls,
            _print(tight(message.get("reasoning_content") or thought)) == self.reasoning,
            _print(text.strip().encode("utf-8", "surrogatepass")) == self.text,
            exact(message) == self.own,
        )

    def beside(self, text: bytes) -> bool:
        """Whether this is the text beside the reply's tool calls, whitespace aside."""
        return len(text) == self.length and _print(text) == self.start

    def appended(self, message: Message) -> str | None:
        """What a client has put after the reply's text; None if the message is something else.

        A stop string that it writes is the one that was sampled. Tool calls may come back as text that names their ids.
        """
        if message.get("tool_calls"):
            return None
        _, text = split_thought(message.get("content") or "")
        letters = tight(text)
        if len(letters) < self.length or _print(letters[: self.length]) != self.start:
            return None
        rest = _after(text, self.length)
        if self.stop and tight(rest).startswith(self.stop):
            rest = _after(rest, len(self.stop))
        elif self.length and not rest[:1].isspace():  # another word: an edit
            return None
        return rest.strip() if all(name and name in rest for name in self.calls) else None


def _print(data: bytes) -> bytes:
    return bytes(xxh3_64(data).digest())


def _after(text: str, length: int) -> str:
    """What comes after so many bytes that are no whitespace."""
    place = 0
    while length > 0 and place < len(text):
        length -= len(tight(text[place]))
        place += 1
    return text[place:]


def known(said: list[Said] | None, message: Message) -> bool:
    """Whether a message has the text that some reply with its tool calls has, or none."""
    text = tight(split_thought(message.get("content") or "")[1])
    return not text or any(one.beside(text) for one in said or ())
