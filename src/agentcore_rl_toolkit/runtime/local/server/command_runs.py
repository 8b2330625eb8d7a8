"""Commands as the wire serves them: each runs once, however often its request comes.

boto3 sends a request again, with the same `amz-sdk-invocation-id`, when a connection breaks before the answer began.
The command must not run twice then: the second request is answered what the first would have been, from the beginning.
What was said is kept for that, up to a size; a command that says more can't be asked for again, and is told so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable

from ....common.eventstream import KEEP_ALIVE, encode_event, encode_exception
from ....errors import RuntimeFault
from ...base import CommandEvent

logger = logging.getLogger(__name__)

_KEPT_BYTES = 1 << 20
_KEPT_RUNS = 32
_AWAY_SECONDS = 20.0
"""How long a command goes on without its caller, who may come back: boto3 waits up to 15 s between its attempts."""
_SILENT_SECONDS = 10.0
"""After how much silence something is sent, so that no client's read timeout passes; boto3's is 60 s."""
_LOOK_SECONDS = 1.0
"""How often it is looked whether the caller of a silent command is still there."""


class CommandRuns:
    """The commands of a runtime that run, and the last ones that have ended."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, CommandRun] = {}

    def run(self, key: Hashable | None, start: Callable[[], AsyncIterator[CommandEvent]]) -> CommandRun:
        """The command that a request with this key has started, or a new one. None is never another request's key."""
        run = self._runs.get(key)
        if run is None:
            run = CommandRun(start(), away_seconds=0 if key is None else _AWAY_SECONDS)
            self._runs[object() if key is None else key] = run
            ended = [key for key, known in self._runs.items() if known.ended]
            for old in ended[: max(0, len(ended) - _KEPT_RUNS)]:
                del self._runs[old]
        return run

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(run.end() for run in self._runs.values()))


class CommandRun:
    """One command: what it has said, as frames, and the one connection that it is said to."""

    def __init__(
        self,
        events: AsyncIterator[CommandEvent],
        *,
        away_seconds: float = _AWAY_SECONDS,
        silent_seconds: float = _SILENT_SECONDS,
    ) -> None:
        self.ended = False
        """Whether it will say nothing more."""
        self._away, self._silent = away_seconds, silent_seconds
        self._frames: deque[bytes] = deque()
        self._size, self._dropped = 0, 0
        """Of the frames that are kept; how many were before them."""
        self._reader, self._read = 0, 0
        """Which connection is served, the latest one; how many frames it has taken."""
        self._news = asyncio.Event()
        self._leaving: asyncio.TimerHandle | None = None
        self._keep(encode_event("chunk", b'{"contentStart":{}}'))
        self._task = asyncio.get_running_loop().create_task(self._collect(events))
        self._task.add_done_callback(self._has_ended)

    def frames(self, is_gone: Callable[[], bool] = lambda: False) -> AsyncGenerator[bytes, None]:
        """All it says, from the beginning on, for a new connection; the one before it is given up."""
        if self._dropped:
            raise RuntimeFault(
                f"this command runs already, and has said more than the {_KEPT_BYTES:,} bytes that can be sent again",
                code="ConflictException",
            )
        self._reader += 1
        self._read = 0
        self._tell()
        self._end_in(max(self._away, _LOOK_SECONDS))  # unless it is read
        return self._frames_for(self._reader, is_gone)

    async def end(self) -> None:
        """Kill the command, if it still runs."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _frames_for(self, reader: int, is_gone: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        def is_news() -> bool:
            return self.ended or self._read < self._dropped + len(self._frames) or reader != self._reader

        self._end_in(None)
        silent_since = time.monotonic()
        try:
            while not is_gone():
                if not await self._until(is_news, min(_LOOK_SECONDS, self._silent)):
                    if time.monotonic() - silent_since >= self._silent:
                        silent_since = time.monotonic()
                        yield KEEP_ALIVE
                elif reader != self._reader:
                    raise RuntimeFault("the same request came again, and is answered there")
                elif self._read == self._dropped + len(self._frames):
                    return
                else:
                    self._read += 1
                    self._tell()
                    silent_since = time.monotonic()
                    yield self._frames[self._read - self._dropped - 1]
        finally:
            if reader == self._reader:
                self._end_in(self._away)

    async def _collect(self, events: AsyncIterator[CommandEvent]) -> None:
        try:
            async for event in events:
                await self._add(_frame(event))
        except RuntimeFault as fault:
            await self._add(encode_exception(fault.code, str(fault)))
        except Exception as error:
            logger.exception("a command failed")
            await self._add(encode_exception("InternalServerException", f"{type(error).__name__}: {error}"))
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _add(self, frame: bytes) -> None:
        """Keep a frame. Those that were taken make room for it, or have to be taken first."""
        while self._frames and self._size + len(frame) > _KEPT_BYTES:
            await self._until(lambda: self._read > self._dropped)
            self._size -= len(self._frames.popleft())
            self._dropped += 1
        self._keep(frame)

    def _keep(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._size += len(frame)
        self._tell()

    def _end_in(self, seconds: float | None) -> None:
        """End the command after that time, in which somebody may come who reads it."""
        if self._leaving is not None:
            self._leaving.cancel()
        if seconds is not None and not self.ended:
            self._leaving = asyncio.get_running_loop().call_later(seconds, self._task.cancel)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._end_in(None)
        if task.cancelled():
            self._keep(encode_exception("RuntimeClientError", "the command was ended: nobody read what it said"))
        self.ended = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _until(self, holds: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until something holds; False if nothing at all has happened for that long."""
        while not holds():
            try:
                await asyncio.wait_for(self._news.wait(), seconds)
            except asyncio.TimeoutError:
                return False
        return True


def _frame(event: CommandEvent) -> bytes:
    if event.status is not None:
        content: dict[str, object] = {"contentStop": {"exitCode": event.exit_code, "status": event.status}}
    else:
        output = {name: text for name, text in (("stdout", event.stdout), ("stderr", event.stderr)) if text is not None}
        content = {"contentDelta": output}
    return encode_event("chunk", json.dumps(content).encode())
