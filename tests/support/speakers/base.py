"""What holds a conversation over one wire: the real SDK, and the history in that wire's own form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Called:
    """A tool the model wants called."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Heard:
    """What the SDK made of one answer."""

    text: str
    calls: list[Called] = field(default_factory=list)
    reasoning: str = ""
    reason: str = "stop"
    """Why it ended: `stop`, `calls`, `length`; `stop_string` on wires that tell it from `stop`."""
    tokens: tuple[int, int] = (0, 0)
    """Of the prompt, and sampled."""


@dataclass(frozen=True)
class Refused(Exception):
    """What the SDK made of an error."""

    status: int
    message: str


@dataclass(frozen=True)
class Setup:
    """What a conversation is held with."""

    system: str | None = None
    tools: Sequence[dict[str, Any]] = ()
    """Functions: `name`, `description`, `parameters`."""
    max_tokens: int = 200
    stop: Sequence[str] = ()


class Speaker(Protocol):
    """One conversation. Everything said and heard goes into the history that the next request carries."""

    def __init__(self, session: dict[str, Any], setup: Setup, *, stream: bool) -> None: ...

    def say(self, text: str, *, max_tokens: int | None = None) -> Heard:
        """Say something as the user."""

    def results(self, *results: tuple[Called, str, bool]) -> Heard:
        """Give back what tools returned: the call, its output, and whether that is an error."""

    def show_image(self) -> Heard:
        """Send a picture."""

    def close(self) -> None:
        """Close the SDK's client."""
