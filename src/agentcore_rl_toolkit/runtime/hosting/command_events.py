"""What a session says of a command, read: lines of JSON, as `session_app.py` writes them.

The session's code is not trusted: it may send lines without end, anything that is not an event, or nothing at all.
What is held is bounded, what is wrong is one `RuntimeClientError`, and a command is over some time after its limit.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from ...errors import RuntimeFault
from ..base import CommandEvent

_LONGEST_LINE = 1 << 20
_GRACE_SECONDS = 30.0
"""Beyond a command's time limit: the session ends it, we only wait."""


async def read_events(
    chunks: AsyncIterator[bytes], seconds: float, *, grace: float = _GRACE_SECONDS
) -> AsyncIterator[CommandEvent]:
    """The events in `chunks`, up to the last one, of a command that may take `seconds`."""
    deadline, rest = time.monotonic() + seconds + grace, b""
    while True:
        try:
            chunk = await asyncio.wait_for(anext(chunks), deadline - time.monotonic())
        except StopAsyncIteration:
            raise _wrong("broke off before the command ended") from None
        except asyncio.TimeoutError:
            raise _wrong(f"did not end within {grace:g} s of the command's time limit of {seconds:g} s") from None
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise _wrong(f"has a line of more than {_LONGEST_LINE:,} bytes")
        for line in lines:
            event = _event(line)
            yield event
            if event.status is not None:
                return


def _event(line: bytes) -> CommandEvent:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    match said:
        case {"stdout": str(text), **rest} if not rest:
            return CommandEvent(stdout=_sound(text))
        case {"stderr": str(text), **rest} if not rest:
            return CommandEvent(stderr=_sound(text))
        case {"exit_code": int(code), "status": "COMPLETED" | "TIMED_OUT" as status} if _is_code(code):
            return CommandEvent(exit_code=code, status=status)
    raise _wrong(f"has a line that is no event: {line[:200]!r}")


def _is_code(value: int) -> bool:
    return type(value) is int and abs(value) < 1 << 31


def _sound(text: str) -> str:
    """Without half surrogate pairs, which no program could print."""
    return text.encode(errors="replace").decode()


def _wrong(what: str) -> RuntimeFault:
    return RuntimeFault(f"what the session says of the command {what}", code="RuntimeClientError")
