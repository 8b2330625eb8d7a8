"""Messages on their way out of a channel: what accumulates while one batch is sent goes with the next."""

from __future__ import annotations

import asyncio

from .channel_wire import Link, Message, encode, take_batch


class Outbox:
    """Sends messages in order. `run` it as a task."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: list[Message] = []
        self._some = asyncio.Event()

    def add(self, message: Message) -> None:
        self._waiting.append(message)
        self._some.set()

    async def run(self) -> None:
        """Send until the link breaks, with a `ConnectionError`."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                await self._link.send(encode(take_batch(self._waiting)))
