"""`RolloutFuture`: a rollout whose result is on its way. Thread-safe, and works on any event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Generator
from typing import Any

from ..agent.result import Result
from ..common.object_repr import object_repr
from ..common.private_loop import PrivateLoop
from ..errors import RolloutCancelled, RolloutFailed
from ..types import Status
from .in_flight import ClientCore, Flight


class CallableBool(int):
    """A bool that may also be called.

    >>> bool(CallableBool(False)), CallableBool(True)()
    (False, True)
    """

    def __new__(cls, value: bool) -> CallableBool:
        return super().__new__(cls, bool(value))

    def __call__(self) -> bool:
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))


class RolloutFuture:
    """The rollout that `RolloutClient.invoke` started. `result()` is the stored result, whatever its status."""

    def __init__(self, flight: Flight, core: ClientCore, loop: PrivateLoop) -> None:
        self._flight, self._core, self._loop = flight, core, loop

    def __repr__(self) -> str:
        state = "done" if self.done() else "running"
        return object_repr(self, self.input_id, state, session_id=self.session_id)

    @property
    def session_id(self) -> str:
        """The session that runs it."""
        return self._flight.id.session_id

    @property
    def input_id(self) -> str:
        """The data row it runs."""
        return self._flight.id.input_id

    @property
    def result_key(self) -> str:
        """Where its result lands."""
        return self._flight.id.result_key

    def done(self) -> bool:
        """Whether the rollout has a result or an error."""
        return self._flight.outcome.done()

    async def done_async(self) -> bool:
        """The same, awaited."""
        return self.done()

    @property
    def cancelled(self) -> CallableBool:
        """Whether it was cancelled: a property as in the first toolkit, and a method as in `concurrent.futures`."""
        return CallableBool(self.done() and isinstance(self._flight.outcome.exception(), RolloutCancelled))

    def elapsed(self) -> float:
        """Seconds from the invoke to the result, or until now."""
        return (self._flight.finished_at or time.monotonic()) - self._flight.started_at

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the result. After `timeout` seconds the session is stopped and `TimeoutError` raised."""
        self._check_process()
        try:
            return self._flight.outcome.result(timeout)
        except concurrent.futures.TimeoutError:
            self.cancel()
            raise TimeoutError(self._timeout_text(timeout)) from None
        except KeyboardInterrupt:
            self.cancel()
            raise

    async def result_async(self, timeout: float | None = None) -> dict[str, Any]:
        """Await the result. After `timeout` seconds the session is stopped and `asyncio.TimeoutError` raised."""
        self._check_process()
        waiting = asyncio.wrap_future(self._flight.outcome)
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # read by no one after a timeout
        try:
            return await asyncio.wait_for(asyncio.shield(waiting), timeout)
        except asyncio.TimeoutError:
            await self.cancel_async()
            raise asyncio.TimeoutError(self._timeout_text(timeout)) from None

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self.result_async().__await__()

    def raise_for_status(self) -> RolloutFuture:
        """Wait for the result; raise `RolloutFailed` unless it is a success. Returns the future."""
        result = Result(self.result())
        if result.status is not Status.COMPLETED:
            raise RolloutFailed(f"{self.result_key}: {result.status.value}: {result.failure}")
        return self

    def cancel(self) -> bool:
        """Stop the session and give up on the result. Returns False if the rollout is done."""
        return self._loop.run(self._cancel())

    async def cancel_async(self) -> bool:
        """The same, awaited."""
        return await self._loop.run_async(self._cancel())

    def _check_process(self) -> None:
        """A forked process can read a result that was there before the fork, but not wait for one."""
        if not self.done():
            self._loop.check_process()

    async def _cancel(self) -> bool:
        if self.done():
            return False
        self._core.end(self._flight, RolloutCancelled(f"{self.result_key} was cancelled"))
        return True

    def _timeout_text(self, timeout: float | None) -> str:
        return f"{self.result_key} had no result after {timeout:g} s; its session was stopped"
