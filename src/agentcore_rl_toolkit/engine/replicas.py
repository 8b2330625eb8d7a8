"""Several engines as one: a session stays with the replica that has its KV cache, others go where least is running.

A replica that fails again and again is left out until it answers again. What failed is tried elsewhere only where
nothing was sampled yet. Weights are not its business: `pause` and `resume` reach every replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from xxhash import xxh3_64_intdigest

from ..errors import ConfigError, EngineError
from .base import Engine, EngineInfo, Sampled, SampleRequest

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(eq=False)
class Replica:
    """One engine and what is known of it."""

    engine: Engine
    number: int
    in_flight: int = 0
    failures: int = 0
    """In a row."""
    ejected: bool = False


class Replicas:
    """Engines that sample from the same weights."""

    @property
    def forms(self) -> bool:
        """Whether all of them take forms."""
        return all(getattr(replica.engine, "forms", False) for replica in self.replicas)

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        slack: int = 16,
        eject_after: int = 2,
        check_every: float = 5.0,
    ) -> None:
        if not engines:
            raise ConfigError("replicas of nothing", hint="give at least one engine")
        self.replicas = [Replica(engine, i) for i, engine in enumerate(engines)]
        self._slack = slack  # requests a session's replica may have more than the least loaded one
        self._eject_after = eject_after
        self._check_every = check_every
        self._paused = False
        """What all replicas are to be; one that is left out may not know it yet."""
        self._checks: asyncio.Task[None] | None = None

    @property
    def well(self) -> int:
        """How many are not left out."""
        return sum(not replica.ejected for replica in self.replicas)

    def pick(self, session_id: str, tried: Sequence[Replica] = ()) -> Replica | None:
        """Where a request goes next, None if it has been everywhere."""
        left = [replica for replica in self.replicas if replica not in tried]
        # With nobody in good health, one may still be better than its last check.
        left = [replica for replica in left if not replica.ejected] or left
        if not left:
            return None
        least = min(left, key=lambda replica: replica.in_flight)
        if not session_id:
            return least
        # The highest score wins (rendezvous hashing): a replica that leaves or returns moves only its own sessions.
        own = max(left, key=lambda replica: xxh3_64_intdigest(f"{session_id}\n{replica.number}".encode()))
        return own if own.in_flight <= least.in_flight + self._slack else least

    def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        return self._run(lambda engine: engine.sample(request), request.session_id)

    async def _run(self, call: Callable[[Engine], AsyncIterator[T]], session_id: str) -> AsyncGenerator[T, None]:
        tried: list[Replica] = []
        while True:
            replica = self.pick(session_id, tried)
            assert replica is not None
            tried.append(replica)
            replica.in_flight += 1
            given = False
            try:
                if replica.ejected:
                    await self._take_back(replica)
                async with contextlib.aclosing(cast("AsyncGenerator[T, None]", call(replica.engine))) as items:
                    async for item in items:
                        given = True
                        yield item
                if not replica.ejected:  # else it was left out meanwhile, and a check takes it back
                    replica.failures = 0
                return
            except EngineError as e:
                self._ill(replica, e)
                final = given or e.sampled_any or e.status not in EngineError.ELSEWHERE
                if final or self.pick(session_id, tried) is None:
                    raise
                logger.info("replica %d failed before it sampled, trying another: %s", replica.number, e)
            finally:
                replica.in_flight -= 1

    async def info(self) -> EngineInfo:
        """What the first replica in good health says."""
        tried: list[Replica] = []
        while True:
            replica = self.pick("", tried)
            assert replica is not None
            tried.append(replica)
            try:
                return await replica.engine.info()
            except EngineError as e:
                self._ill(replica, e)
                if self.pick("", tried) is None:
                    raise

    async def pause(self) -> None:
        """All of them or none: where one fails, the others go on as before."""
        before, self._paused = self._paused, True
        try:
            await self._all("pause")
        except BaseException:
            self._paused = before
            if not before:
                await self._undo_pause()
            raise

    async def _undo_pause(self) -> None:
        """One that can't be told is left out until it can be."""
        for replica, result in zip(self.replicas, await self._tell("resume"), strict=True):
            if isinstance(result, BaseException) and not replica.ejected:
                replica.ejected = True
                logger.warning("replica %d is left out, it may be paused still: %s", replica.number, result)

    async def resume(self) -> None:
        before, self._paused = self._paused, False
        try:
            await self._all("resume")
        except BaseException:
            self._paused = before
            raise

    async def load_lora(self, name: str, path: str) -> None:
        await self._all("load_lora", name, path)

    async def unload_lora(self, name: str) -> None:
        await self._all("unload_lora", name)

    async def start(self) -> None:
        """One that isn't there yet is left out at once."""
        await asyncio.gather(*(replica.engine.start() for replica in self.replicas))
        if self._checks is None:
            for replica in self.replicas:
                replica.failures = self._eject_after - 1
            await self.check()
            self._checks = asyncio.get_running_loop().create_task(self._keep_checking())

    async def close(self) -> None:
        if self._checks is not None:
            self._checks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._checks
            self._checks = None
        await asyncio.gather(*(replica.engine.close() for replica in self.replicas))

    async def check(self) -> None:
        """Ask every replica whether it is there; leave out who isn't, and take back who is again."""
        await asyncio.gather(*(self._check(replica) for replica in self.replicas))

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(self._check_every)
            await self.check()

    async def _check(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(10):
                await replica.engine.info()
                if replica.ejected:
                    await self._take_back(replica)
        except EngineError as e:
            self._ill(replica, e)
        except TimeoutError:
            self._ill(replica, EngineError("a health check took more than 10 s", status=504))
        except Exception as error:  # whatever a server says of itself, the others are still checked
            logger.exception("replica %d could not be checked", replica.number)
            self._ill(replica, EngineError(f"a health check failed: {error!r}"))
        else:
            replica.failures = 0

    async def _take_back(self, replica: Replica) -> None:
        """Let it be paused or going as all are, whatever it has missed or forgotten, and only then count on it."""
        told = None
        while told != self._paused:  # which may change meanwhile
            told = self._paused
            await (replica.engine.pause() if told else replica.engine.resume())
        replica.failures, replica.ejected = 0, False
        logger.info("replica %d is back", replica.number)

    def _ill(self, replica: Replica, error: EngineError) -> None:
        if not error.ill:
            return
        replica.failures += 1
        if replica.failures >= self._eject_after and not replica.ejected:
            replica.ejected = True
            logger.warning("replica %d is left out after %d failures: %s", replica.number, replica.failures, error)

    async def _all(self, name: str, *args: str) -> None:
        """Reach every replica, and only then complain of one that should have been there."""
        for replica, result in zip(self.replicas, await self._tell(name, *args), strict=True):
            if isinstance(result, BaseException) and not replica.ejected:
                raise result

    async def _tell(self, name: str, *args: str) -> list[BaseException | None]:
        calls = (getattr(replica.engine, name)(*args) for replica in self.replicas)
        said: list[BaseException | None] = await asyncio.gather(*calls, return_exceptions=True)
        return said
