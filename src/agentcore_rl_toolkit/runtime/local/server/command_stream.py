"""A command's events as AWS's wire sends them: frames of an event stream that starts at once and is never silent long.

The first frame precedes all output, so that boto3 doesn't send the request again. A frame fills every silence, so that
no client's read timeout passes. Reading pulls the events, so nothing is buffered here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable

from ....common.eventstream import KEEP_ALIVE, encode_event, encode_exception
from ....errors import RuntimeFault
from ...base import CommandEvent

logger = logging.getLogger(__name__)

_SILENT_SECONDS = 10.0
"""boto3's read timeout is 60 s."""
_LOOK_SECONDS = 1.0
"""How often the caller of a silent command is checked on."""


async def stream_command(
    events: AsyncGenerator[CommandEvent, None],
    is_gone: Callable[[], bool] = lambda: False,
    *,
    silent_seconds: float = _SILENT_SECONDS,
) -> AsyncGenerator[bytes, None]:
    """The frames of a command's events; ends the command if the caller `is_gone`."""
    waiting: asyncio.Task[bytes | None] | None = None
    try:
        yield encode_event("chunk", b'{"contentStart":{}}')
        silent_since = time.monotonic()
        while not is_gone():
            waiting = waiting or asyncio.ensure_future(_next_frame(events))
            await asyncio.wait({waiting}, timeout=min(_LOOK_SECONDS, silent_seconds))
            frame: bytes | None = b""
            if waiting.done():
                frame, waiting = waiting.result(), None
            elif time.monotonic() - silent_since >= silent_seconds:
                frame = KEEP_ALIVE
            if frame is None:
                return
            if frame:
                silent_since = time.monotonic()
                yield frame
    finally:
        if waiting is not None:
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
        await events.aclose()


async def _next_frame(events: AsyncGenerator[CommandEvent, None]) -> bytes | None:
    """The next event as a frame, a failure as the exception that AWS would send; None at the end."""
    try:
        return _encode(await anext(events))
    except StopAsyncIteration:
        return None
    except RuntimeFault as fault:
        return encode_exception(fault.code, str(fault))
    except Exception as error:
        logger.exception("a command failed")
        return encode_exception("InternalServerException", f"{type(error).__name__}: {error}")


def _encode(event: CommandEvent) -> bytes:
    if event.status is not None:
        content: dict[str, object] = {"contentStop": {"exitCode": event.exit_code, "status": event.status}}
    else:
        output = {name: text for name, text in (("stdout", event.stdout), ("stderr", event.stderr)) if text is not None}
        content = {"contentDelta": output}
    return encode_event("chunk", json.dumps(content).encode())
