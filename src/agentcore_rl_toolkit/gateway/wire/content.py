"""Message content: text, placeholders for media that a text model can't read, and which messages can be answered.

A message with images also has `media`: for each, its place in the content, its placeholder, and what the client sent.
The gateway puts the image there if the model sees images (`gateway.images`), and drops `media` otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import GatewayFault
from ..call.chat import Message


@dataclass(frozen=True, slots=True)
class Omitted:
    """A part of a message that the model does not see. Fidelity figures count it."""

    kind: str
    """`image`, `audio`, `document` …"""
    source: Any = None
    """Of an image: its base64 or URL."""

    def placeholder(self) -> str:
        """The text that the model reads instead."""
        return f"[{self.kind} omitted: this model reads text only]"


Part = str | Omitted


def content_fields(parts: Iterable[Part]) -> Message:
    """The `content` of a canonical message, and `omitted` if the model does not see some parts."""
    given = list(parts)
    kinds = Counter(part.kind for part in given if isinstance(part, Omitted))
    text = "".join(part.placeholder() if isinstance(part, Omitted) else part for part in given)
    if not kinds:
        return {"content": text}
    read: Message = {"content": text, "omitted": dict(kinds)}
    return read | {"media": list(_find_images(given))} if "image" in kinds else read


def _find_images(parts: Iterable[Part]) -> Iterator[tuple[int, str, Any]]:
    place = 0
    for part in parts:
        text = part.placeholder() if isinstance(part, Omitted) else part
        if isinstance(part, Omitted) and part.kind == "image":
            yield place, text, part.source
        place += len(text)


def with_user_turn(messages: list[Message]) -> list[Message]:
    """The messages, if they hold something to reply to."""
    if not any(message["role"] in ("user", "tool") for message in messages):
        raise GatewayFault.invalid("messages has no user turn to reply to", param="messages")
    return messages


def without_prefill(messages: list[Message]) -> list[Message]:
    """The messages, if they don't end with the start of a reply: the policy did not sample those tokens."""
    if messages[-1]["role"] == "assistant":
        raise GatewayFault.invalid(
            "messages ends with an assistant message: the gateway can't continue a reply (prefill); "
            "end with a user message",
            param="messages",
        )
    return messages
