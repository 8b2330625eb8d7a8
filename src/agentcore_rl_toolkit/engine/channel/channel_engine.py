"""Samples from the engines of other processes, which connect when they are ready and again after a break."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal

from xxhash import xxh3_64_intdigest

from ...errors import EngineError, GatewayFault
from ..base import EngineInfo, Sampled, SampleRequest
from .channel_wire import Abort, Answer, Ask, Command, Failure, Hello, Link, Outbox, SampledTokens, decode

logger = logging.getLogger(__name__)

_PATIENCE = 60.0
"""Seconds that a request waits for an engine to connect: a restarted gateway is there before its trainer returns."""
_Said = SampledTokens | Answer | Failure


class _Connected:
    def __init__(self, link: Link, hello: Hello, numbers: itertools.count[int]) -> None:
        self.hello = hello
        self.outbox = Outbox(link)
        self._link, self._numbers = link, numbers
        self._waiting: dict[int, asyncio.Queue[_Said | None]] = {}
        self.lost = False

    async def run(self) -> None:
        """Hand out what arrives, until the link ends."""
        sender = asyncio.ensure_future(self.outbox.run())
        try:
            while (data := await self._link.receive()) is not None:
                for message in decode(data):
                    queue = self._waiting.get(message.id) if isinstance(message, _Said) else None
                    if queue is not None and isinstance(message, _Said):  # else its reader has gone
                        queue.put_nowait(message)
        finally:
            self.lost = True
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            for queue in self._waiting.values():
                queue.put_nowait(None)

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        number, given, ended = next(self._numbers), False, False
        try:
            with self._queue(number) as queue:
                self.outbox.add(Ask.of(number, request))
                while not ended:
                    said = await self._next(queue, given)
                    if not isinstance(said, SampledTokens):
                        raise EngineError("unexpected message from the trainer's process", sampled_any=given)
                    given, ended = True, said.sampled.finish is not None
                    yield said.sampled
        except EngineError:
            ended = True
            raise
        finally:
            if not ended:
                self.outbox.add(Abort(number))

    async def command(self, name: Literal["info", "pause", "resume"]) -> Answer:
        number = next(self._numbers)
        with self._queue(number) as queue:
            self.outbox.add(Command(number, name))
            said = await self._next(queue, False)
        if not isinstance(said, Answer):
            raise EngineError("unexpected message from the trainer's process")
        return said

    @contextlib.contextmanager
    def _queue(self, number: int):  # type: ignore[no-untyped-def]
        self._waiting[number] = asyncio.Queue()
        try:
            yield self._waiting[number]
        finally:
            del self._waiting[number]

    async def _next(self, queue: asyncio.Queue[_Said | None], given: bool) -> _Said:
        said = None if self.lost else await queue.get()
        if said is None:
            raise EngineError("the trainer's process went away", status=503, sampled_any=given)
        if isinstance(said, Failure):
            raise said.error()
        return said


class ChannelEngine:
    """The engines that are connected; several have the same weights."""

    images = False

    def __init__(self) -> None:
        self._connected: list[_Connected] = []
        self._some = asyncio.Event()
        self._paused = False
        self._numbers = itertools.count()

    @property
    def forms(self) -> bool:
        """Whether all of them accept forms."""
        return bool(self._connected) and all(one.hello.forms for one in self._connected)

    async def attach(self, link: Link, ready: Callable[[], Awaitable[object]]) -> None:
        """Sample from the engine at the other end of `link` until it ends; `ready` is called when that may begin.

        A `GatewayFault` refuses an engine of another run than those that are connected.
        """
        first = decode(await link.receive() or b"")
        if not first or not isinstance(first[0], Hello):
            raise ValueError("the first message of an engine must be its hello")
        if any(other.hello.run != first[0].run for other in self._connected):
            text = "another run's engine is connected to this gateway, and has other weights"
            raise GatewayFault(text, status=409, code="engine_taken", hint="give each run its own gateway")
        one = _Connected(link, first[0], self._numbers)
        running = asyncio.ensure_future(one.run())
        try:
            await self._set_state(one)
            self._connected.append(one)
            self._some.set()
            await ready()
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            if one in self._connected:
                self._connected.remove(one)
            if not self._connected:
                self._some.clear()

    async def _set_state(self, one: _Connected) -> None:
        """Pause or resume it as all are, which may change meanwhile."""
        paused = None
        while paused != self._paused:
            paused = self._paused
            await one.command("pause" if paused else "resume")

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        one = await self._pick(request.session_id)
        async with contextlib.aclosing(one.sample(request)) as items:  # type: ignore[type-var]
            async for sampled in items:
                yield sampled

    async def info(self) -> EngineInfo:
        if not self._connected:
            raise _no_trainer()
        said = await self._connected[0].command("info")
        return EngineInfo(said.models, said.context_length, said.weight_version)

    async def pause(self) -> None:
        self._paused = True
        await asyncio.gather(*(one.command("pause") for one in self._connected))

    async def resume(self) -> None:
        self._paused = False
        await asyncio.gather(*(one.command("resume") for one in self._connected))

    async def start(self) -> None:
        """Nothing to do: engines connect when they are ready."""

    async def close(self) -> None:
        """Nothing to do: the server ends the connections."""

    async def _pick(self, session_id: str) -> _Connected:
        """The engine that has the session's prefix cached: rendezvous hashing, by the names that engines keep."""
        if not self._connected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await self._some.wait()
        if not self._connected:
            raise _no_trainer()
        if len(self._connected) == 1:
            return self._connected[0]
        return max(self._connected, key=lambda one: xxh3_64_intdigest(f"{session_id}\n{one.hello.name}".encode()))


def _no_trainer() -> EngineError:
    return EngineError(
        "no trainer's engine is connected", status=503, retry_after=1, hint="start the trainer with this gateway's URL"
    )
