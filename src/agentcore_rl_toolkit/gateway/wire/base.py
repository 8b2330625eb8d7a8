"""What a wire is: it reads one request into a canonical call, and says in its own words what came of it.

A wire is pure: bytes and canonical calls in, canonical calls and bytes out. HTTP, sessions and sampling are others'
business, and the same for all wires.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import GatewayFault
from ..call.chat import ChatCall, Message, TextCall, parse_arguments
from ..record.turn import Tokens
from .json_body import DEEPEST, depth

if TYPE_CHECKING:
    from ..record.session import Answer, Outcome, Session

SSE = "text/event-stream; charset=utf-8"

_RAW = "__arguments__"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as far as a wire looks at it."""

    body: dict[str, Any]
    session: Session
    decode: Callable[[Sequence[int]], str]
    """The text of token ids."""
    path: str = ""
    """What follows the session's URL, still percent-encoded."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A fault in a wire's own shape."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Exchange(Protocol):
    """One request, and how its answer is said: `whole`, or as a stream from `begin` to `end`."""

    call: ChatCall | TextCall
    stream: bool

    def whole(self, answer: Answer) -> bytes:
        """All of it at once."""

    def begin(self, answer: Answer) -> None:
        """The call is in order and about to be sampled; nothing is sent yet."""

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        """What a choice says next, with the tokens since the last piece. The first may be empty."""

    def finish(self, choice: int, outcome: Outcome) -> bytes:
        """A choice's tool calls and its end; all its text is in pieces."""

    def end(self, answer: Answer) -> bytes:
        """The stream's last bytes."""

    def fail(self, fault: GatewayFault) -> bytes:
        """The stream's last bytes, when something goes wrong after it began."""

    def keep_alive(self) -> bytes:
        """What tells the client that we are still here; may be empty."""


@dataclass(frozen=True)
class Wire:
    """One API that agents may speak."""

    read: Callable[[Asked], Exchange]
    refuse: Callable[[GatewayFault], Refusal]
    stream_type: str = SSE


def with_user_turn(messages: list[Message]) -> list[Message]:
    """Canonical messages, if there is something in them to reply to."""
    if not any(message["role"] in ("user", "tool") for message in messages):
        raise GatewayFault.invalid("messages has no user turn: there is nothing to reply to", param="messages")
    return messages


def without_prefill(messages: list[Message]) -> list[Message]:
    """Canonical messages, if they don't end with a reply that is begun."""
    if messages[-1]["role"] == "assistant":
        raise GatewayFault.invalid(
            "messages ends with the assistant: a reply that is begun (prefill) can't be continued here; "
            "end with a user message",
            param="messages",
        )
    return messages


def function_tool(name: Any, description: Any, schema: Any, where: str) -> dict[str, Any]:
    """A tool in canonical form."""
    if not isinstance(name, str) or not name:
        raise GatewayFault.invalid(f"{where} has no name", param=where)
    if description is not None and not isinstance(description, str):
        raise GatewayFault.invalid(f"{where}'s description is not a text", param=where)
    if schema is not None and not isinstance(schema, dict):
        raise GatewayFault.invalid(f"{where}'s schema is not a JSON schema", param=where)
    function: dict[str, Any] = {"name": name}
    if description:
        function["description"] = description
    return {"type": "function", "function": function | {"parameters": schema or {}}}


def any_tool(tools: Sequence[dict[str, Any]], *, param: str = "tool_choice") -> str:
    """The canonical choice of some tool."""
    if not tools:
        raise GatewayFault.invalid(f"{param} asks for a tool, but there are no tools", param=param)
    return "required"


def chosen_tool(name: Any, tools: Sequence[dict[str, Any]], *, param: str = "tool_choice") -> str:
    """The canonical choice of one tool."""
    any_tool(tools, param=param)
    if name not in [tool["function"]["name"] for tool in tools]:
        raise GatewayFault.invalid(f"{param} {str(name)[:80]!r} names none of the tools", param=param)
    return f"={name}"


def call_input(arguments: str) -> dict[str, Any]:
    """A call's arguments for wires that carry an object instead of JSON text.

    What is no object, or none that comes to the client and back unchanged, goes as text under a name of its own.
    """
    parsed = parse_arguments(arguments)
    return parsed if isinstance(parsed, dict) and _carried(parsed) else {_RAW: arguments}


def call_arguments(given: dict[str, Any]) -> Any:
    """The arguments that `call_input` made an object of."""
    raw = given.get(_RAW)
    return parse_arguments(raw) if isinstance(raw, str) and len(given) == 1 else given


def _carried(parsed: dict[str, Any]) -> bool:
    if depth(parsed) > DEEPEST - 10:  # it comes back within messages
        return False
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True
