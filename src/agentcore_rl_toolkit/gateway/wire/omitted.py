"""Content that a text model can't be shown: a placeholder takes its place, and the fidelity counts it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..call.chat import Message


@dataclass(frozen=True, slots=True)
class Omitted:
    """A part of a message that is not passed on to the model."""

    kind: str
    """What it is: `image`, `audio`, `document` …"""

    def placeholder(self) -> str:
        """The text that the model reads in its place."""
        return f"[{self.kind} omitted: this model reads text only]"


Part = str | Omitted
"""What a content block says to the model: its text, or that it is left out."""


def content_fields(parts: Iterable[Part]) -> Message:
    """The `content` of a canonical message, and `omitted` where parts of it are left out."""
    given = list(parts)
    kinds = Counter(part.kind for part in given if isinstance(part, Omitted))
    text = "".join(part.placeholder() if isinstance(part, Omitted) else part for part in given)
    return {"content": text, "omitted": dict(kinds)} if kinds else {"content": text}
