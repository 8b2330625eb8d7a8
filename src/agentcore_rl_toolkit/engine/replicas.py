"""Several engines as one: a session stays with the replica that has its KV cache, unless that one is overloaded.

A replica that keeps failing is ejected until it answers again. A failed request is tried elsewhere only if nothing was
sampled yet. `pause` and `resume` reach every replica; the weights are the trainer's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from xxhash import xxh3_64_intdigest

from ..common.object_repr import object_repr
from ..errors import ConfigError, EngineError
from .base import Engine, EngineInfo, Sampled, SampleRequest

logger = logging.getLogger(__name__)
CHECK_SECONDS = 10.0


@dataclass(eq=False)
class Replica:
    """One engine and its state."""

    engine: Engine
    number: int
    in_flight: int = 0
    failures: int = 0
    """In a row."""
    ejected: bool = False


class Replicas:
    """Engines that sample from the same weights."""

    def __init__(
        self, engines: Sequence[Engine], *, slack: int = 16, eject_after: int = 2, check_every: float = 5.0
    ) -> None:
        if not engines:
            raise ConfigError("no engine was given", hint="give at least one, like vllm=http://localhost:8000")
        self.replicas = [Replica(engine, i) for i, engine in enumerate(engines)]
        self._slack = slack  # requests that a session's replica may have more than the least loaded one
        self._eject_after = eject_after
        self._check_every = check_every
        self._paused = False
        """The state that all replicas should have; an ejected one may not have it yet."""
        self._checks: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return object_repr(self, *(replica.engine for replica in self.replicas))

    @property
    def forms(self) -> bool:
        """Whether all of them accept forms."""
        return all(getattr(replica.engine, "forms", False) for replica in self.replicas)

    @property
    def images(self) -> bool:
        """Whether all of them accept images."""
        return all(getattr(replica.engine, "images", False) for replica in self.replicas)

    @property
    def healthy(self) -> int:
        """How many are not ejected."""
        return sum(not replica.ejected for replica in self.replicas)

    def pick(self, session_id: str, tried: Sequence[Replica] = ()) -> Replica | None:
        """The replica for a request's next try; None if it has been everywhere."""
        left = [replica for replica in self.replicas if replica not in tried]
        # If all are ejected, one may have recovered since its last check.
        left = [replica for replica in left if not replica.ejected] or left
        if not left:
            return None
        least = min(left, key=lambda replica: replica.in_flight)
        if not session_id:
            return least
        # The highest score wins (rendezvous hashing): a replica that leaves or returns moves only its own sessions.
        own = max(left, key=lambda replica: xxh3_64_intdigest(f"{session_id}\n{replica.number}".encode()))
        return own if own.in_flight <= least.in_flight + self._slack else least

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        tried: list[Replica] = []
        while replica := self.pick(request.session_id, tried):
            tried.append(replica)
            replica.in_flight += 1
            given = False
            try:
                if replica.ejected:
                    await self._readmit(replica)
                items = cast("AsyncGenerator[Sampled, None]", replica.engine.sample(request))
                async with contextlib.aclosing(items):
                    async for item in items:
                        given = True
                        yield item
                if not replica.ejected:  # one that was ejected meanwhile waits for its next check
                    replica.failures = 0
                return
            except EngineError as e:
                self._count_failure(replica, e)
                final = given or e.sampled_any or e.status not in EngineError.ELSEWHERE
                if final or len(tried) == len(self.replicas):
                    raise
                logger.info("replica %d failed before it sampled, trying another: %s", replica.number, e)
            finally:
                replica.in_flight -= 1

    async def info(self) -> EngineInfo:
        """From the first replica that answers."""
        tried: list[Replica] = []
        error = EngineError("no replica answers", status=503)
        while replica := self.pick("", tried):
            tried.append(replica)
            try:
                return await replica.engine.info()
            except EngineError as e:
                self._count_failure(replica, e)
                error = e
        raise error

    async def pause(self) -> None:
        """Pause all of them or none: if one fails, the others resume."""
        before, self._paused = self._paused, True
        try:
            await self._send_all("pause")
        except BaseException:
            self._paused = before
            if not before:
                await self._undo_pause()
            raise

    async def _undo_pause(self) -> None:
        """Resume all; a replica that can't be reached is ejected until it can."""
        for replica, result in zip(self.replicas, await self._gather("resume"), strict=True):
            if isinstance(result, BaseException) and not replica.ejected:
                replica.ejected = True
                logger.warning("ejected replica %d, which may still be paused: %s", replica.number, result)

    async def resume(self) -> None:
        before, self._paused = self._paused, False
        try:
            await self._send_all("resume")
        except BaseException:
            self._paused = before
            raise

    async def start(self) -> None:
        """Eject at once the replicas that don't answer yet."""
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
        """Check the health of every replica; eject those that fail, readmit those that recovered."""
        await asyncio.gather(*(self._check(replica) for replica in self.replicas))

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(self._check_every)
            await self.check()

    async def _check(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await replica.engine.info()
                if replica.ejected:
                    await self._readmit(replica)
        except EngineError as e:
            self._count_failure(replica, e)
        except TimeoutError:
            self._count_failure(replica, EngineError(f"a health check took more than {CHECK_SECONDS:g} s", status=504))
        except Exception as error:  # whatever one server answers, the others are still checked
            logger.exception("replica %d could not be checked", replica.number)
            self._count_failure(replica, EngineError(f"a health check failed: {error!r}"))
        else:
            replica.failures = 0

    async def _readmit(self, replica: Replica) -> None:
        """Pause or resume it as all are, whatever it missed meanwhile, and only then send it requests."""
        paused = None
        while paused != self._paused:  # which may change meanwhile
            paused = self._paused
            await (replica.engine.pause() if paused else replica.engine.resume())
        replica.failures, replica.ejected = 0, False
        logger.info("replica %d is back", replica.number)

    def _count_failure(self, replica: Replica, error: EngineError) -> None:
        if not error.ill:
            return
        replica.failures += 1
        if replica.failures >= self._eject_after and not replica.ejected:
            replica.ejected = True
            logger.warning("ejected replica %d after %d failures: %s", replica.number, replica.failures, error)

    async def _send_all(self, name: Literal["pause", "resume"]) -> None:
        """Reach every replica, and only then raise the error of one that is not ejected."""
        for replica, result in zip(self.replicas, await self._gather(name), strict=True):
            if isinstance(result, BaseException) and not replica.ejected:
                raise result

    async def _gather(self, name: Literal["pause", "resume"]) -> list[BaseException | None]:
        calls = (r.engine.pause() if name == "pause" else r.engine.resume() for r in self.replicas)
        return await asyncio.gather(*calls, return_exceptions=True)
