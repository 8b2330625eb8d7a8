"""Running rollouts in groups: a gateway session and a runtime session for each, many at a time, judged as they end.

One bad rollout is data: what becomes of it is the judge's decision, and nothing it does reaches the others. Leaving the
loop early, an exception and Ctrl-C all stop every session that is still running.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..client import RolloutClient
from ..client.batch import input_id_of, status_of
from ..client.future import RolloutFuture
from ..errors import AgentCoreRLError, ConfigError, RewardInvalid, RolloutsStopped, RuntimeFault
from ..gateway.faults import Fault
from ..gateway.serve import Gateway
from ..loop import PrivateLoop
from ..result import Result
from ..types import Status
from .judge import Judge
from .policy import Action
from .rollout import Group, Rollout

_NO_FAULT = frozenset({Status.CANCELLED, Status.TRUNCATED})
"""What says nothing about whether the run makes sense: a poor policy is cut off often."""

UNALTERED: Mapping[str, Any] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling settings that leave the policy as it is, as its logprobs have it: for a trainer's `enforced`. Agents ask for
others, and servers take their defaults from a model's `generation_config.json`."""


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """How rollouts are run."""

    n: int = 8
    """Samples of each row: the size of a group."""
    max_concurrent_sessions: int = 32
    timeout: float | None = 900.0
    """Seconds a rollout may take."""
    oversample: int = 0
    """How many more samples of each row are started; once there are enough, the slowest are stopped."""
    max_refills: int = 4
    """How many samples of a group may be run again; what is still missing then drops the group."""
    max_failures: int = 16
    """So many rollouts in a row that can't be trained on end the run."""
    max_batch_tokens: int | None = None
    """The first group beyond so many tokens is dropped, and no further ones are started."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings for model calls that don't say; the agent gets them as `sampling_params`."""
    enforced: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings whatever the agent asks for."""
    context_limit: int | None = None
    """Most tokens of prompt and reply of one model call."""
    model: str | None = None
    """The model to sample from, whatever name the agent asks for; by default, the gateway's first."""
    judge: Judge = field(default_factory=Judge)
    keep_dropped: bool = False
    """Hand out dropped groups too."""

    def __post_init__(self) -> None:
        least = {"n": 1, "max_concurrent_sessions": 1, "max_failures": 1, "oversample": 0, "max_refills": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name} must be at least {bound}, not {getattr(self, name)}")


def run_rollouts(
    rows: Iterable[dict[str, Any]],
    n: int = 8,
    *,
    client: RolloutClient,
    gateway: Gateway,
    groups: int | None = None,
    on_rollout: Callable[[Rollout], object] | None = None,
    **options: Any,
) -> Iterator[Group]:
    """Run `n` rollouts of each row and hand out complete groups as they finish.

    With `groups`, it ends once there are so many; `rows` may then be endless, and dropped groups are made up for by the
    rows after them. `options` are those of `RolloutOptions`.
    """
    runner = RolloutRunner(client, gateway, RolloutOptions(n=n, **options), on_rollout=on_rollout)
    try:
        yield from runner.run(rows, groups=groups)
    finally:
        runner.close()


class RolloutRunner:
    """Runs rollouts of one agent against one gateway, one step after the other."""

    def __init__(
        self,
        client: RolloutClient,
        gateway: Gateway,
        options: RolloutOptions | None = None,
        *,
        on_rollout: Callable[[Rollout], object] | None = None,
    ) -> None:
        """`on_rollout` is called with every rollout as it ends, whatever becomes of it."""
        self.client, self.gateway = client, gateway
        self.options = options or RolloutOptions()
        self.on_rollout = on_rollout
        self._loop = PrivateLoop("rollouts")
        self._failures = 0

    def run(self, rows: Iterable[dict[str, Any]], *, groups: int | None = None, **changes: Any) -> Iterator[Group]:
        """Groups as they finish; `changes` to the options hold for this call."""
        running = self.run_async(rows, groups=groups, **changes)
        waiting: asyncio.Task[Any] | None = None

        async def following() -> Group | None:
            nonlocal waiting
            waiting = asyncio.current_task()
            return await anext(running, None)

        async def close() -> None:
            if waiting is not None:  # Ctrl-C has cancelled it, and it may still be cleaning up
                await asyncio.wait([waiting])
            await running.aclose()  # type: ignore[attr-defined]

        try:
            while (group := self._loop.run(following())) is not None:
                yield group
        finally:
            self._loop.run(close())

    async def run_async(
        self, rows: Iterable[dict[str, Any]], *, groups: int | None = None, **changes: Any
    ) -> AsyncIterator[Group]:
        """The same, for `async for`."""
        options = replace(self.options, **changes) if changes else self.options
        step = _Step(self, options)
        waiting = enumerate(rows)
        kept = tokens = 0
        full = False
        active: set[asyncio.Task[Group]] = set()
        finished: set[asyncio.Task[Group]] = set()
        try:
            while groups is None or kept < groups:
                room = step.width if groups is None else min(step.width, groups - kept)
                while not full and len(active) < room and (following := next(waiting, None)) is not None:
                    active.add(asyncio.ensure_future(step.group(*following)))
                if not active:
                    return
                finished, active = await asyncio.wait(active, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    group = options.judge.group(task.result(), options.n)
                    limit = options.max_batch_tokens
                    if group.dropped is None and limit is not None and tokens + group.tokens > limit:
                        full, group = True, replace(group, dropped="over the token budget")
                    if group.dropped is None:
                        kept, tokens = kept + 1, tokens + group.tokens
                    if group.dropped is None or options.keep_dropped:
                        yield group
        finally:
            for task in active:
                task.cancel()
            await asyncio.gather(*active, *finished, return_exceptions=True)

    def close(self) -> None:
        """End the thread that rollouts run on."""
        self._loop.close()

    def failures_reset(self) -> None:
        """Count failures in a row from here on."""
        self._failures = 0

    def ended(self, rollout: Rollout, max_failures: int) -> None:
        """Take note of a rollout; too many failures in a row end the run."""
        if self.on_rollout is not None:
            self.on_rollout(rollout)
        if rollout.action is Action.STOP:
            raise RolloutsStopped(f"the failure table stops the run at {rollout.status.value}: {rollout.error}")
        if rollout.status not in _NO_FAULT:
            self._failures = 0 if rollout.trained else self._failures + 1
        if self._failures >= max_failures:
            raise RolloutsStopped(
                f"{self._failures} rollouts in a row could not be trained on; the last one: "
                f"{rollout.why}: {rollout.error or 'no error'}" + _traceback(rollout),
                hint="run one by hand: agentcore-rl rollout AGENT --data FILE --limit 1",
            )


class _Step:
    """The groups of one call."""

    def __init__(self, runner: RolloutRunner, options: RolloutOptions) -> None:
        self._runner, self._options = runner, options
        self._slots = asyncio.Semaphore(options.max_concurrent_sessions)
        self._size = options.n + options.oversample
        self.width = -(-options.max_concurrent_sessions // self._size) + 1
        """How many groups are worked on at a time."""

    async def group(self, index: int, payload: dict[str, Any]) -> Group:
        """Sample a row until there are enough, or no more to be had."""
        n = self._options.n
        input_id = input_id_of(payload, index)
        started, refills = self._size, 0
        trained: list[Rollout] = []
        masked: list[Rollout] = []
        others: list[Rollout] = []
        running = {asyncio.ensure_future(self._sample(payload, input_id, sample)): sample for sample in range(started)}
        try:
            while running and len(trained) < n:
                finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(finished, key=running.__getitem__):
                    del running[task]
                    rollout = self._options.judge.rollout(task.result())
                    self._runner.ended(rollout, self._options.max_failures)
                    if rollout.action is Action.REFILL:
                        others.append(rollout)
                        if refills < self._options.max_refills:
                            refills += 1
                            running[asyncio.ensure_future(self._sample(payload, input_id, started))] = started
                            started += 1
                    else:
                        (trained if rollout.trained else masked).append(rollout)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        for sample in running.values():
            given_up = _outcome(payload, input_id, str(sample), sample, Status.CANCELLED, error="no longer needed")
            others.append(replace(given_up, why="no longer needed", action=Action.MASK))
            self._runner.ended(others[-1], self._options.max_failures)
        places = [*trained, *masked]
        chosen = sorted(places[:n], key=lambda rollout: rollout.sample)
        return Group(index, input_id, payload, tuple(chosen), (*places[n:], *others))

    async def _sample(self, payload: dict[str, Any], input_id: str, sample: int) -> Rollout:
        async with self._slots:
            return await _Attempt(self._runner, self._options, payload, input_id, sample).run()


class _Attempt:
    """One rollout, from the gateway session to the folded trajectories."""

    def __init__(
        self, runner: RolloutRunner, options: RolloutOptions, payload: dict[str, Any], input_id: str, sample: int
    ) -> None:
        self._client, self._gateway, self._options = runner.client, runner.gateway, options
        self._payload, self._input_id, self._sample = payload, input_id, sample
        self._id = str(uuid.uuid4())
        self._seconds: dict[str, float] = {}
        self._since = time.monotonic()

    async def run(self) -> Rollout:
        try:
            session = await self._open()
            self._passed("open")
            rollout = await self._follow(session)
            self._passed("session")
            folded = await self._gateway.trajectories_async(self._id)
            self._passed("fold")
            seconds = self._seconds | {"model": folded.model_seconds}
            return replace(rollout, rows=folded.rows, fidelity=folded.fidelity, seconds=seconds)
        except Fault as fault:  # the gateway's
            return self._ended(Status.ENGINE_ERROR, error=str(fault))
        finally:
            with contextlib.suppress(Fault):  # it was never opened, or is gone already
                await self._gateway.delete_session_async(self._id)

    async def _open(self) -> dict[str, Any]:
        options = self._options
        settings = {"model": options.model, "context_limit": options.context_limit}
        return await self._gateway.open_session_async(
            session_id=self._id,
            input_id=self._input_id,
            sampling=dict(options.sampling),
            enforced=dict(options.enforced),
            **{name: value for name, value in settings.items() if value is not None},
        )

    async def _follow(self, session: dict[str, Any]) -> Rollout:
        """Invoke, and await the result."""
        future: RolloutFuture | None = None
        try:
            future = await self._client.invoke_async(
                self._payload,
                self._id,
                self._input_id,
                base_url=session["base_url"],
                model_id=self._options.model or session["model"],
                sampling_params=dict(self._options.sampling),
            )
            self._passed("invoke")
            document = await future.result_async(self._options.timeout)
        except asyncio.TimeoutError as error:
            return self._ended(Status.TIMEOUT, error=str(error))
        except RuntimeFault as fault:
            return self._ended(status_of(fault), error=str(fault))
        except AgentCoreRLError as error:
            return self._ended(Status.AGENT_ERROR, error=str(error))
        except asyncio.CancelledError:
            if future is not None:
                await future.cancel_async()
            raise
        return self._with_result(Result(document))

    def _with_result(self, result: Result) -> Rollout:
        failed = result.status is not Status.COMPLETED
        error = str(result.document.get("stop_reason")) if failed else None
        try:
            rewards = result.rewards
        except RewardInvalid as problem:
            return self._ended(Status.REWARD_ERROR, result.document, str(problem))
        return replace(self._ended(result.status, result.document, error), rewards=rewards)

    def _ended(self, status: Status, document: dict[str, Any] | None = None, error: str | None = None) -> Rollout:
        ended = _outcome(self._payload, self._input_id, self._id, self._sample, status, document, error)
        return replace(ended, seconds=self._seconds)

    def _passed(self, station: str) -> None:
        now = time.monotonic()
        self._seconds[station] = self._seconds.get(station, 0.0) + now - self._since
        self._since = now


def _outcome(
    payload: dict[str, Any],
    input_id: str,
    session_id: str,
    sample: int,
    status: Status,
    document: dict[str, Any] | None = None,
    error: str | None = None,
) -> Rollout:
    """A rollout that nobody has judged yet."""
    return Rollout(input_id, session_id, sample, status, Action.MASK, None, payload, document, error, None)


def _traceback(rollout: Rollout) -> str:
    found = (rollout.result or {}).get("traceback")
    return f"\n{found}" if isinstance(found, str) else ""
