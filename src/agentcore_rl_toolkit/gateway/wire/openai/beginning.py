"""Requests that begin with the bytes of the session's last one, as those of a growing conversation do.

Such bytes are known again by a print of them, and only what comes after them is parsed; what nobody asks for again
never is. Nothing rests on how a client writes its JSON: a beginning is kept only if it is seen that its messages, cut
out, say what they say as part of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import orjson
from xxhash import xxh3_128

from ....errors import GatewayFault
from ...call.chat import ChatCall, Grown, Message
from ..base import Asked, Exchange, Wire
from ..json_body import read_json

if TYPE_CHECKING:
    from ...record.session import Session

Ask = Callable[[dict[str, Any]], Asked]

_MESSAGES = re.compile(rb'"messages"\s*:\s*\[')
_LAST = re.compile(rb"\]\s*\}\s*\Z")
_NAME = re.compile(r"[A-Za-z_]{1,64}")
_TRIED = 8  # places where the list of messages may end


@dataclass(frozen=True, slots=True)
class Beginning:
    """A request, as far as the next one may begin with the same bytes."""

    request: bytes
    """The print of all of it."""
    start: int
    """Where the first of its messages begins …"""
    end: int
    """… and the last one ends."""
    print: bytes
    """The print of all bytes up to there."""
    count: int
    """How many messages a call made of it has."""


def read_grown(raw: bytes, wire: Wire, ask: Ask, session: Session) -> tuple[Exchange, Any]:
    """The exchange that a request begins, and a running print of its bytes."""
    view, before = memoryview(raw), session.beginning
    if before is not None and raw[before.end : before.end + 1] == b",":
        running = xxh3_128(view[: before.end])
        if running.digest() == before.print and (read := _read_new(raw, wire, ask, before)) is not None:
            exchange, reached = read
            running.update(view[before.end : reached])
            session.beginning = _carry_on(running, view, exchange, before.start, reached)
            return exchange, running
    fields = read_json(raw)
    exchange = wire.read(ask(fields))
    # The first request may be the only one, and one that went on otherwise may belong to another conversation.
    start = _start(raw) if before is None and session.tree.turns else None
    end = _end(raw, fields, start) if start is not None else None
    if start is None or end is None:
        session.beginning = None
        return exchange, xxh3_128(view)
    running = xxh3_128(view[:end])
    session.beginning = _carry_on(running, view, exchange, start, end)
    return exchange, running


def _read_new(raw: bytes, wire: Wire, ask: Ask, before: Beginning) -> tuple[Exchange, int] | None:
    """A request whose beginning is known: its exchange, and where its messages end. None if it has to be read whole.

    After the messages that are known and a comma, bytes mean what they mean right at the start of the list.
    """
    part = raw[: before.start] + raw[before.end + 1 :]
    try:
        fields = read_json(part)
        exchange = wire.read(ask(fields))
    except GatewayFault:  # as part of the whole it may be in order, or is refused by its right name
        return None
    end = _end(part, fields, before.start)
    if end is None:
        return None

    def whole() -> list[Message]:
        return list(cast(ChatCall, wire.read(ask(read_json(raw))).call).messages)

    call = cast(ChatCall, exchange.call)
    call.messages = Grown(before.count, list(call.messages), whole)
    call.follows = before.request
    return exchange, end + len(raw) - len(part)


def _carry_on(running: Any, view: memoryview, exchange: Exchange, start: int, end: int) -> Beginning:
    """The request as a beginning; `running` has all up to `end`, and then the rest as well."""
    known = running.digest()
    running.update(view[end:])
    call = cast(ChatCall, exchange.call)
    call.request = running.digest()
    return Beginning(call.request, start, end, known, len(call.messages))


def _start(raw: bytes) -> int | None:
    """Where the first message begins: after the bracket of a list that is a member of the body itself."""
    found = _MESSAGES.search(raw)
    if found is None:
        return None
    try:
        orjson.loads(raw[: found.end()] + b"]}")
    except ValueError:
        return None
    return found.end()


def _end(raw: bytes, fields: dict[str, Any], start: int) -> int | None:
    """Where the last message ends: before the bracket that the next member of the body, or its end, comes after."""
    names = list(fields)
    after = names[names.index("messages") + 1 :][:1]
    if after and not _NAME.fullmatch(after[0]):
        return None
    closed = re.compile(rb"\]\s*,\s*\"%b\"" % after[0].encode()) if after else _LAST
    for found in islice(closed.finditer(raw, start), _TRIED):
        try:
            messages = orjson.loads(b"[%b]" % raw[start : found.start()])
            rest = orjson.loads(b'{"":[%b' % raw[found.start() :])
        except ValueError:
            continue
        if messages == fields["messages"] and "messages" not in rest:  # given twice, the last is what counts
            return found.start()
    return None
