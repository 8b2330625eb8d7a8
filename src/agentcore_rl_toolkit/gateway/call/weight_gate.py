"""Weight updates: a trainer pauses sampling, waits until none is running, names the new weights, and resumes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from ...engine.base import Engine
from ...errors import EngineError
from ..record.log import Log, WeightState

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 10.0  # given to an engine at the start; the gate holds calls back anyway


class WeightGate:
    """Holds calls back while it is paused, and knows the version of the weights. A log keeps both."""

    def __init__(self, engine: Engine, log: Log | None = None) -> None:
        self._engine = engine
        self._log = log
        self.version: str | None = None
        """The version of sampled tokens, unless the engine gives another."""
        self.changes = 0
        """How often a trainer paused, resumed, or named weights."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each of these."""
        self.sampling = 0
        """How many choices are being sampled."""
        self._open = asyncio.Event()
        self._open.set()
        self._still = asyncio.Event()
        self._still.set()

    @property
    def paused(self) -> bool:
        return not self._open.is_set()

    def restore(self) -> None:
        """Restore the version and the pause from the log: only the trainer that paused it knows when to resume."""
        if self._log is not None:
            self.begin_with(self._log.read_weights())

    def begin_with(self, state: WeightState) -> None:
        """Take over a state, before `start`."""
        if state.version is not None:
            self.version = state.version
        if state.paused:
            self._open.clear()
        else:
            self._open.set()

    async def start(self) -> None:
        """Pause the engine, if the gate is paused."""
        if self.paused:
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_PAUSE_SECONDS):
                    await self._engine.pause()

    async def pause(self) -> None:
        """Let no call sample until `resume`; agents wait."""
        before = self.paused
        self.changes += 1
        self._open.clear()
        try:
            await self._engine.pause()
        except BaseException:  # a cancelled caller has left and would never resume
            if not before:
                self._open.set()
                await asyncio.shield(self._undo_engine_pause())
            raise
        self._write()

    async def resume(self) -> None:
        self.changes += 1
        await self._engine.resume()
        self._open.set()
        self._write()

    async def drain(self) -> None:
        """Wait until nothing is being sampled; `pause` first. Calls that wait for the gate don't count."""
        await self._still.wait()

    def name_weights(self, version: str) -> None:
        """Set the version of what is sampled from now on."""
        self.changes += 1
        self.version = version
        self._write()

    async def catch_up(self, state: WeightState) -> None:
        """Apply the changes that the other workers have made."""
        if state.version is not None and state.version != self.version:
            self.name_weights(state.version)
        if state.paused != self.paused:
            await (self.pause() if state.paused else self.resume())

    async def wait_open(self) -> None:
        while self.paused:
            await self._open.wait()

    @contextlib.contextmanager
    def count_sampling(self) -> Iterator[None]:
        self.sampling += 1
        self._still.clear()
        try:
            yield
        finally:
            self.sampling -= 1
            if not self.sampling:
                self._still.set()

    async def _undo_engine_pause(self) -> None:
        """The engine may have paused although it failed."""
        try:
            await self._engine.resume()
        except EngineError as error:
            logger.warning("the engine may still be paused: %s", error)

    def _write(self) -> None:
        if self._log is not None:
            self._log.write_weights(self.version, paused=self.paused)
        self.on_change()
