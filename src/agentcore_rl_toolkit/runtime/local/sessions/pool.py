"""Sessions prepared ahead of time, so that starting one costs milliseconds.

A prepared session has been forked, sandboxed and put under its limits, and waits to be told whose it is. The pool keeps
a few ready, makes more while they are taken, and throws them away when the agent's files have changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ....errors import TemplateGone
from ..agent_templates import TemplateKeeper
from .session import LocalSession

logger = logging.getLogger(__name__)

_TRIES = 3


class SessionPool:
    """Prepared sessions of one agent."""

    def __init__(self, keeper: TemplateKeeper, make: Callable[[], LocalSession], spares: int) -> None:
        self._keeper, self._make, self._spares = keeper, make, spares
        self._ready: list[LocalSession] = []
        self._generation = 0
        self._filling: set[asyncio.Task[None]] = set()
        self._closed = False

    async def take(self) -> LocalSession:
        """A prepared session; a fault if the agent can't be imported."""
        self._keeper.look()
        if self._keeper.generation != self._generation:
            self._discard()
            self._generation = self._keeper.generation
        while self._ready:
            session = self._ready.pop()
            if not session.stopping:
                self._fill()
                return session
        session = await self._prepare()
        self._fill()
        return session

    async def close(self) -> None:
        """Throw away what is prepared."""
        self._closed = True
        for task in self._filling:
            task.cancel()
        await asyncio.gather(*self._filling, return_exceptions=True)
        await asyncio.gather(*(session.end("the runtime was stopped") for session in self._ready))

    async def _prepare(self) -> LocalSession:
        for _ in range(_TRIES):
            template = await self._keeper.template()
            session = self._make()
            try:
                await session.prepare(template)
                return session
            except TemplateGone as gone:  # it was retired a moment ago; there is a newer one
                session.end(f"it could not be prepared: {gone}")
                last = gone
            except BaseException as error:
                session.end(f"it could not be prepared: {error}")
                raise
        raise last

    def _fill(self) -> None:
        missing = self._spares - len(self._ready) - len(self._filling)
        for _ in range(0 if self._closed else max(0, missing)):
            task = asyncio.get_running_loop().create_task(self._add_one())
            self._filling.add(task)
            task.add_done_callback(self._filling.discard)

    async def _add_one(self) -> None:
        generation = self._generation
        try:
            session = await self._prepare()
        except Exception as error:  # whoever needs a session gets to see it
            logger.warning("no session could be prepared: %s", error)
            return
        if generation == self._generation and not self._closed:
            self._ready.append(session)
        else:
            session.end("the agent has changed")

    def _discard(self) -> None:
        for session in self._ready:
            session.end("the agent has changed")
        self._ready.clear()
