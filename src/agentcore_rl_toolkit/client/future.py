"""`RolloutFuture`: a rollout whose result is on its way. Thread-safe, and usable from any event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Generator
from typing import Any

from ..errors import RolloutCancelled, RolloutFailed
from ..loop import PrivateLoop
from ..result import Result
from .core import ClientCore, Flight


class RolloutFuture:
    """What `RolloutClient.invoke` gives. `result()` is the stored result, whatever its status."""

    def __init__(self, flight: Flight, core: ClientCore, loop: PrivateLoop) -> None:
        self._flight, self._core, self._loop = flight, core, loop

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
        """Whether there is a result, or never will be one."""
        return self._flight.outcome.done()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.done() and isinstance(self._flight.outcome.exception(), RolloutCancelled)

    def elapsed(self) -> float:
        """Seconds from the invoke to the result, or until now."""
        return (self._flight.finished_at or time.monotonic()) - self._flight.started_at

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the result. After `timeout` seconds the session is stopped and `TimeoutError` raised."""
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
        waiting = asyncio.wrap_future(self._flight.outcome)
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # who gave up misses no outcome
        try:
            return await asyncio.wait_for(asyncio.shield(waiting), timeout)
        except asyncio.TimeoutError:
            await self.cancel_async()
            raise asyncio.TimeoutError(self._timeout_text(timeout)) from None

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self.result_async().__await__()

    def raise_for_status(self) -> RolloutFuture:
        """Wait for the result; raise `RolloutFailed` if it is not a success. Gives itself back."""
        result = Result(self.result())
        if result.document.get("status_code", 200) != 200:
            raise RolloutFailed(f"{self.result_key}: {result.status.value}: {result.document.get('stop_reason')}")
        return self

    def cancel(self) -> bool:
        """Stop the session and wait for the result no longer. False if there is an outcome already."""
        return self._loop.run(self._cancel())

    async def cancel_async(self) -> bool:
        """The same, awaited."""
        return await self._loop.run_async(self._cancel())

    async def _cancel(self) -> bool:
        if self.done():
            return False
        self._core.end(self._flight, RolloutCancelled(f"{self.result_key} was cancelled"))
        return True

    def _timeout_text(self, timeout: float | None) -> str:
        return f"{self.result_key} had no result after {timeout:g} s; its session was stopped"
