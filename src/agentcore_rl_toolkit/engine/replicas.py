"""Several engines as one: a session stays with the replica that has its KV cache, unless that one is overloaded.

Where replicas tell their load, it decides who gets a new session; else its hash does. Replicas come and go while the
others sample: one that leaves gets no new requests, and is closed when its last one has ended.

A replica that keeps failing is ejected until it answers again. A failed request is tried elsewhere only if nothing was
sampled yet. `pause` and `resume` reach every replica; the weights are the trainer's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from xxhash import xxh3_64_intdigest

from ..common.object_repr import object_repr
from ..errors import ConfigError, EngineError
from .base import Engine, EngineInfo, EngineLoad, Sampled, SampleRequest

logger = logging.getLogger(__name__)
CHECK_SECONDS = 10.0
_MUCH = 0.1
"""Of the cache: a new session goes to the replica of its hash unless another one has so much more room."""
_LEAST_KV = 0.001
"""Of the cache, for a session of a replica that has none yet."""
_MOST_HOMES = 100_000
"""Sessions whose replica is remembered; an older one gets a replica by its hash again."""


@dataclass(eq=False)
class Replica:
    engine: Engine
    number: int
    name: str = ""
    """Its address, so that a replica that comes back has the same name."""
    in_flight: int = 0
    failures: int = 0
    """In a row."""
    ejected: bool = False
    load: EngineLoad | None = None
    """When it was last asked."""
    joined: int = 0
    """Sessions that it was given since then."""

    @property
    def pressure(self) -> float | None:
        """The share of its KV cache that its requests need, those in its queue and its new sessions too."""
        if self.load is None:
            return None
        more = self.load.waiting + self.joined
        return self.load.kv_used + more * max(self.load.next_kv, _LEAST_KV)


class Replicas:
    """Engines that sample from the same weights."""

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        names: Sequence[str] = (),
        slack: int = 16,
        eject_after: int = 2,
        check_every: float = 5.0,
    ) -> None:
        """`names` say where the engines are, so that `change` knows those that stay."""
        if not engines:
            raise ConfigError("no engine was given", hint="give at least one, like vllm=http://localhost:8000")
        named = names or [str(number) for number in range(len(engines))]
        self.replicas = [Replica(engine, i, named[i]) for i, engine in enumerate(engines)]
        self._added = len(engines)
        self._homes: OrderedDict[str, Replica] = OrderedDict()
        """The replicas that new sessions were given, by load."""
        self._leaving: set[asyncio.Task[None]] = set()
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
        own = self._home(session_id, left)
        return own if own.in_flight <= least.in_flight + self._slack else least

    def _home(self, session_id: str, left: Sequence[Replica]) -> Replica:
        """The replica that has a session's prefix, or the one that a new session goes to."""
        home = self._homes.get(session_id)
        if home is not None and home in left:
            return home
        # The highest hash wins (rendezvous): a replica that leaves or returns moves only its own sessions.
        home = max(left, key=lambda replica: xxh3_64_intdigest(f"{session_id}\n{replica.name}".encode()))
        pressures = {replica.number: replica.pressure for replica in left}
        if None in pressures.values():  # one that doesn't tell may be busier than any
            return home
        known = cast("dict[int, float]", pressures)
        least = min(left, key=lambda replica: known[replica.number])
        if known[home.number] > known[least.number] + _MUCH:
            home = least
        home.joined += 1
        self._homes[session_id] = home
        self._homes.move_to_end(session_id)
        while len(self._homes) > _MOST_HOMES:
            self._homes.popitem(last=False)
        return home

    async def change(self, engines: Mapping[str, Callable[[], Engine]]) -> None:
        """Sample from these replicas, by name. Those that stay keep their sessions; new ones are made and started."""
        if not engines:
            raise ConfigError("no engine was given", hint="give at least one, like vllm=http://localhost:8000")
        known = {replica.name: replica for replica in self.replicas}
        added = []
        for name in [name for name in engines if name not in known]:
            added.append(Replica(engines[name](), self._added, name, failures=self._eject_after - 1, ejected=True))
            self._added += 1
        await asyncio.gather(*(replica.engine.start() for replica in added))
        await asyncio.gather(*(self._check(replica) for replica in added))  # paused or resumed as the others are
        gone = [replica for replica in self.replicas if replica.name not in engines]
        self.replicas = [*(replica for replica in self.replicas if replica.name in engines), *added]
        for replica in gone:
            task = asyncio.ensure_future(self._leave(replica))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _leave(self, replica: Replica) -> None:
        while replica.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await replica.engine.close()

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
                if not replica.ejected:  # a replica that was ejected since then waits for its next check
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

    def describe(self) -> list[dict[str, Any]]:
        """Each replica's name and last known state."""
        return [
            {"name": one.name, "healthy": not one.ejected, "in_flight": one.in_flight}
            | ({} if one.load is None else dataclasses.asdict(one.load))
            for one in self.replicas
        ]

    def loads(self) -> dict[str, EngineLoad]:
        """The load of each replica that tells it, when it was last asked, by name."""
        return {one.name: one.load for one in self.replicas if one.load is not None and not one.ejected}

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
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(
            *self._leaving, *(replica.engine.close() for replica in self.replicas), return_exceptions=True
        )

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
                load = getattr(replica.engine, "load", None)
                if load is not None:
                    replica.load, replica.joined = await load(), 0
        except EngineError as e:
            self._count_failure(replica, e)
        except TimeoutError:
            self._count_failure(replica, EngineError(f"a health check took more than {CHECK_SECONDS:g} s", status=504))
        except Exception as error:  # one server's odd answer must not stop the other checks
            logger.exception("replica %d could not be checked", replica.number)
            self._count_failure(replica, EngineError(f"a health check failed: {error!r}"))
        else:
            replica.failures = 0

    async def _readmit(self, replica: Replica) -> None:
        """Bring it to the state of the others, paused or not, before it gets requests."""
        paused = None
        while paused != self._paused:  # which may change meanwhile
            paused = self._paused
            await (replica.engine.pause() if paused else replica.engine.resume())
        replica.failures, replica.ejected = 0, False
        logger.info("replica %d is back", replica.number)

    def _count_failure(self, replica: Replica, error: EngineError) -> None:
        if not error.is_unhealthy:
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


async def loads_of(engine: Engine) -> dict[str, EngineLoad]:
    """The load of an engine, or of each of its replicas, by name; none where it doesn't tell or can't be reached."""
    if isinstance(engine, Replicas):
        return engine.loads()
    load = getattr(engine, "load", None)
    try:
        found = None if load is None else await load()
    except EngineError as error:
        logger.info("the engine does not tell its load: %s", error)
        found = None
    return {} if found is None else {"": found}
