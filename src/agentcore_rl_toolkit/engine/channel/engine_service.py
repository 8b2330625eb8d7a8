"""Serves an engine of this process to a gateway process, over one link after the other.

A link that breaks aborts what was being sampled for it: the gateway that was at its other end has forgotten it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from ...errors import EngineError
from ..base import Engine, Sampled
from .channel_wire import (
    Abort,
    Answer,
    Ask,
    Command,
    Failure,
    Hello,
    Link,
    Message,
    Outbox,
    SampledTokens,
    decode,
    encode,
    plain,
)

logger = logging.getLogger(__name__)


class EngineService:
    """One engine, for any number of links."""

    def __init__(self, engine: Engine, run: str = "") -> None:
        """`run` is the same for all engines of one run; by default, no other engine is of this one's."""
        self._engine = engine
        self._name = secrets.token_hex(8)
        self._run = run or self._name

    async def serve(self, link: Link, accepted: Callable[[], object] = lambda: None) -> None:
        """Serve one link until it ends; `accepted` is called once the gateway has begun to use it."""
        running: dict[int, asyncio.Task[None]] = {}
        await link.send(encode([Hello(self._name, bool(getattr(self._engine, "forms", False)), self._run)]))
        outbox = Outbox(link)
        sender = asyncio.ensure_future(outbox.run())
        try:
            while (data := await link.receive()) is not None and not sender.done():
                accepted()
                for message in decode(data):
                    self._take(message, outbox, running)
        finally:
            for task in [sender, *running.values()]:
                task.cancel()
            await asyncio.gather(sender, *running.values(), return_exceptions=True)

    def _take(self, message: Message, outbox: Outbox, running: dict[int, asyncio.Task[None]]) -> None:
        if isinstance(message, Abort):
            if message.id in running:
                running[message.id].cancel()
        elif isinstance(message, (Ask, Command)):
            work = self._sample(message, outbox) if isinstance(message, Ask) else self._command(message, outbox)
            task = asyncio.ensure_future(self._contained(message.id, work, outbox))
            running[message.id] = task
            task.add_done_callback(lambda _: running.pop(message.id, None))

    async def _contained(self, number: int, work: Any, outbox: Outbox) -> None:
        """A failure is the gateway's to tell the agent; it ends nothing else."""
        try:
            await work
        except EngineError as error:
            outbox.add(Failure.of(number, error))
        except Exception as error:
            logger.exception("the engine failed on a request of a gateway process")
            text = f"the engine failed: {type(error).__name__}: {error}"
            outbox.add(Failure.of(number, EngineError(text, status=500, sampled_any=True)))

    async def _sample(self, ask: Ask, outbox: Outbox) -> None:
        items = cast("AsyncGenerator[Sampled, None]", self._engine.sample(ask.request()))
        async with contextlib.aclosing(items):
            async for sampled in items:
                outbox.add(SampledTokens(ask.id, plain(sampled)))
                if sampled.finish is not None:
                    return
        raise EngineError("the engine ended a sequence without a finish reason", sampled_any=True)

    async def _command(self, command: Command, outbox: Outbox) -> None:
        if command.name == "info":
            info = await self._engine.info()
            outbox.add(Answer(command.id, info.models, info.context_length, info.weight_version))
            return
        await (self._engine.pause() if command.name == "pause" else self._engine.resume())
        outbox.add(Answer(command.id))
