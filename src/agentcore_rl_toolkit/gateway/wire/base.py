"""A wire: reads one request into a canonical call, and writes the answer in its API's format.

A wire is pure: bytes and canonical calls in, canonical calls and bytes out. HTTP, sessions and sampling are the same
for all wires and live elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import GatewayFault
from ..call.chat import ChatCall, TextCall
from ..record.turn import Tokens

if TYPE_CHECKING:
    from ..record.session import CallAnswer, ChoiceOutcome, Session

SSE = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class WireRequest:
    """The parts of a request that a wire reads."""

    body: dict[str, Any]
    session: Session
    decode: Callable[[Sequence[int]], str]
    """The text of token ids."""
    path: str = ""
    """The rest of the URL after the session's own, still percent-encoded."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Exchange(Protocol):
    """One request, and how its answer is written: `whole`, or as a stream from `begin` to `end`."""

    call: ChatCall | TextCall
    stream: bool

    def whole(self, answer: CallAnswer) -> bytes:
        """The whole answer."""

    def begin(self, answer: CallAnswer) -> None:
        """The call is valid and about to be sampled; nothing is sent yet."""

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        """A choice's next text, with the tokens since the last piece. The first may be empty."""

    def finish(self, choice: int, outcome: ChoiceOutcome) -> bytes:
        """A choice's tool calls and its end; pieces had all its text."""

    def end(self, answer: CallAnswer) -> bytes:
        """The stream's last bytes."""

    def fail(self, fault: GatewayFault) -> bytes:
        """The stream's last bytes, after a failure in the middle of it."""

    def keep_alive(self) -> bytes:
        """Bytes that keep the connection alive and mean nothing; may be empty."""


@dataclass(frozen=True)
class Wire:
    read: Callable[[WireRequest], Exchange]
    refuse: Callable[[GatewayFault], ErrorReply]
    stream_type: str = SSE


class BlockStream:
    """The content blocks of a streamed reply, for wires that open and close one at a time."""

    def __init__(self) -> None:
        self.index = 0
        self.open = ""
        """The kind of the open block, if one is open."""
        self.begun = False
        """Whether the stream's first event was sent."""
        self.uid = ""
        """Signs reasoning: clients only send it back with a signature."""

    def begin_once(self, event: Callable[[], bytes]) -> bytes:
        """The first event, the first time."""
        if self.begun:
            return b""
        self.begun = True
        return event()

    def close(self, *events: bytes) -> bytes:
        """The events that close the open block."""
        if not self.open:
            return b""
        self.open = ""
        self.index += 1
        return b"".join(events)
