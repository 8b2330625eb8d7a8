"""The client's async core: rollouts in flight on one runtime, from the invoke to the result, and the stop after it.

Everything here runs on the client's private loop; `client.py`, `future.py` and `batch.py` are what callers hold. A
rollout in flight is a few small objects and no task, so thousands of them cost little.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import os
import random
import threading
import time
import weakref
from typing import Any

from ..errors import ConfigError, RuntimeFault
from ..runtime import Runtime
from ..store import Store, open_store
from ..types import RolloutId
from .delivery import Delivery
from .pacing import Pacer

logger = logging.getLogger(__name__)

LOCAL_PREFIX = "arn:aws:bedrock-agentcore:local:"
_WITHOUT_QUOTA = (LOCAL_PREFIX, "arn:aws:bedrock-agentcore:ray:")
AWS_TPS = 25
_LOCAL_ENDPOINT = "http://127.0.0.1:8800"
_LONGEST_BACKOFF = 20.0
_RETRYABLE = frozenset({"RetryableConflictException", "ConflictException", "InternalServerException"})
_STOP_SECONDS = 30.0
_ANSWER_SECONDS = 30.0  # a rollout is answered at once, so silence means that nobody is there

# Invoke and stop share one quota per runtime, whoever asks; so do all clients of this process with the same limit.
_pacers: weakref.WeakValueDictionary[tuple[str, float | None], Pacer] = weakref.WeakValueDictionary()
_pacers_lock = threading.Lock()  # clients live on loops, and so on threads, of their own


class Flight:
    """One rollout in flight."""

    __slots__ = ("finished_at", "id", "outcome", "started_at", "stopped")

    def __init__(self, id: RolloutId) -> None:
        self.id = id
        self.started_at = time.monotonic()
        self.finished_at: float | None = None
        self.outcome: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()
        self.stopped = False

    def deliver(self, document: dict[str, Any] | None, error: Exception | None) -> None:
        """Set the outcome, if there is none yet."""
        if self.outcome.done():
            return
        self.finished_at = time.monotonic()
        if document is not None:
            self.outcome.set_result(document)
        else:
            self.outcome.set_exception(error or RuntimeError("no result and no error"))


class ClientCore:
    """Starts rollouts, delivers their results, stops their sessions."""

    def __init__(
        self,
        target: str | Runtime,
        store: str,
        exp_id: str,
        *,
        tps_limit: float | None,
        max_retry_attempts: int,
        max_pool_connections: int,
        rollout_settings: dict[str, Any],
    ) -> None:
        RolloutId(exp_id, "check", "check")
        self.target, self.exp_id = target, exp_id
        self.store_name = _absolute(store)
        self.settings = rollout_settings
        self._sqs_url = rollout_settings.get("sqs_url")
        self._tps_limit, self._attempts, self._connections = tps_limit, max_retry_attempts, max_pool_connections
        self._opened: asyncio.Task[None] | None = None
        self._runtime: Runtime | None = None
        self._owned: Any = None
        self._pacer: Pacer | None = None
        self.delivery: Delivery | None = None
        self.live: dict[str, Flight] = {}
        """Sessions that may be running, by session id."""
        self._stopping: set[asyncio.Task[None]] = set()
        self._line = asyncio.Lock()

    # --- opening and closing ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find the runtime and the store; a path gets a runtime of its own. Only the first call does anything."""
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_task(self._open())
        try:
            await asyncio.shield(self._opened)
        except Exception:
            self._opened = None  # the next one tries again
            raise

    async def _open(self) -> None:
        environ = None
        limit = self._tps_limit
        if not isinstance(self.target, str):
            self._runtime = self.target
        elif self.target.startswith("arn:"):
            from ..runtime.agentcore import AgentCoreRuntime

            is_local = self.target.startswith(LOCAL_PREFIX)
            endpoint = os.environ.get("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE") or (_LOCAL_ENDPOINT if is_local else None)
            self._runtime = AgentCoreRuntime(
                self.target,
                endpoint_url=endpoint,
                max_concurrency=self._connections,
                max_attempts=1,  # retries are ours, so that they are paced
                read_timeout=_ANSWER_SECONDS,
            )
        else:
            from ..runtime.local import LocalRuntime

            runtime = LocalRuntime(self.target)
            await runtime.start()
            self._runtime = self._owned = runtime
            environ = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1"}
            environ["AWS_ENDPOINT_URL_S3"] = runtime.endpoint_url
        if self._runtime.arn.startswith(_WITHOUT_QUOTA) and limit == AWS_TPS:  # AWS's quota is not theirs
            limit = None
        with _pacers_lock:
            key = (self._runtime.arn, limit)
            self._pacer = _pacers.get(key) or Pacer(limit)
            _pacers[key] = self._pacer
        self.delivery = Delivery(self.open_store(environ), self.exp_id)

    def open_store(self, environ: dict[str, str] | None = None) -> Store:
        """The store results land in."""
        return open_store(self.store_name, sqs_url=self._sqs_url, environ=environ)

    async def aclose(self) -> None:
        """Stop every live session, and let go of everything."""
        for flight in list(self.live.values()):
            self.end(flight, RuntimeFault("the client was closed"))
        await self.settled()
        if self.delivery is not None:
            await self.delivery.close()
        if self._runtime is not None and self._runtime is not self.target:
            await self._runtime.aclose()
        self._opened = None

    # --- one rollout -----------------------------------------------------------------------------------------------

    async def start(self, payload: dict[str, Any], session_id: str, input_id: str, overrides: dict[str, Any]) -> Flight:
        """Invoke a rollout; returns when the runtime has taken it on, raises if it doesn't."""
        await self.open()
        assert self.delivery is not None
        flight = Flight(RolloutId(self.exp_id, input_id, session_id))
        body = self._body(payload, input_id, overrides)
        self.live[session_id] = flight
        # Before the invoke: the result of a quick rollout may be there before the answer to it.
        self.delivery.expect(flight.id.result_key, lambda document, error: self._delivered(flight, document, error))
        try:
            await self._invoke(flight, body)
        except BaseException as error:
            if not flight.outcome.done():
                self.end(flight, error if isinstance(error, Exception) else RuntimeFault("the invoke was cancelled"))
                raise
        if flight.stopped:  # the result came first, and a repeated invoke may have started the session again
            flight.stopped = False
            self._stop(flight)
        return flight

    def end(self, flight: Flight, error: Exception) -> None:
        """Give up on a rollout: its outcome is `error`, and its session is stopped."""
        if self.delivery is not None:
            self.delivery.forget(flight.id.result_key)
        flight.deliver(None, error)
        self._stop(flight)

    def _body(self, payload: dict[str, Any], input_id: str, overrides: dict[str, Any]) -> bytes:
        if not isinstance(payload, dict):
            raise ConfigError(f"a payload is a dict, not a {type(payload).__name__}")
        ours = {"exp_id": self.exp_id, "input_id": input_id, "s3_bucket": self.store_name}
        given = payload.get("_rollout")
        settings = (given if isinstance(given, dict) else {}) | self.settings | _given(overrides) | ours
        try:
            return json.dumps(payload | {"_rollout": settings}, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the payload can't be sent as JSON: {error}") from None

    async def _invoke(self, flight: Flight, body: bytes) -> None:
        assert self._runtime is not None
        failures = throttles = 0
        while True:
            await self._turn()
            try:
                answer = await self._runtime.invoke(flight.id.session_id, body)
                _check_answer(await answer.read(), flight.id.result_key)
            except RuntimeFault as fault:
                if fault.throttled:
                    throttles += 1
                    self._pacer_throttled(fault)
                elif fault.code in _RETRYABLE and failures + 1 < self._attempts:
                    failures += 1
                else:
                    raise
                if flight.outcome.done():
                    return
                await asyncio.sleep(_backoff(failures + throttles))
            else:
                self._pacer_succeeded()
                return

    def _delivered(self, flight: Flight, document: dict[str, Any] | None, error: Exception | None) -> None:
        flight.deliver(document, error)
        self._stop(flight)

    # --- stopping --------------------------------------------------------------------------------------------------

    def _stop(self, flight: Flight) -> None:
        """Stop the session in the background, once."""
        if flight.stopped:
            return
        flight.stopped = True
        task = asyncio.get_running_loop().create_task(self._stop_session(flight.id.session_id))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def settled(self) -> None:
        """Wait until the sessions that are being stopped have been, for half a minute at most."""
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=_STOP_SECONDS)

    async def _stop_session(self, session_id: str) -> None:
        assert self._runtime is not None
        for attempt in range(self._attempts):
            await self._turn()
            try:
                await self._runtime.stop(session_id)
            except RuntimeFault as fault:
                if fault.code == "ResourceNotFoundException":
                    break
                if fault.throttled:
                    self._pacer_throttled(fault)
                elif fault.code not in _RETRYABLE:
                    logger.warning("session %s could not be stopped: %s", session_id, fault)
                    break
                await asyncio.sleep(_backoff(attempt + 1))
            else:
                self._pacer_succeeded()
                break
        self.live.pop(session_id, None)

    # --- pacing ----------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Wait for this client's turn to send a request.

        One at a time, in order: a slot is only taken when it is next, so that a throttle moves everybody behind it.
        """
        assert self._pacer is not None
        async with self._line:
            with _pacers_lock:
                now = time.monotonic()
                at = self._pacer.reserve(now)
            if at > now:
                await asyncio.sleep(at - now)

    def _pacer_throttled(self, fault: RuntimeFault) -> None:
        assert self._pacer is not None
        with _pacers_lock:
            self._pacer.throttled(time.monotonic(), fault.retry_after)

    def _pacer_succeeded(self) -> None:
        assert self._pacer is not None
        with _pacers_lock:
            self._pacer.succeeded(time.monotonic())


def _absolute(store: str) -> str:
    """A relative folder as an absolute one: the session's working directory is not ours."""
    if isinstance(store, str) and (store.startswith((".", "~")) or os.path.isdir(store)):
        return os.path.abspath(os.path.expanduser(store))
    open_store(store).close()  # says what is wrong with it
    return store


def _given(overrides: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in overrides.items() if value is not None}


def _check_answer(body: bytes, key: str) -> None:
    """Whether the app has taken the rollout on."""
    answer = None
    with contextlib.suppress(ValueError):
        answer = json.loads(body)
    if not isinstance(answer, dict) or answer.get("status") != "processing" or answer.get("result_key") != key:
        raise RuntimeFault(
            f"the agent did not take the rollout on; it answered {body[:200].decode(errors='replace')!r}",
            code="RuntimeClientError",
            hint="its function must be decorated with @app.rollout_entrypoint",
        )


def _backoff(attempt: int) -> float:
    ceiling: float = min(0.5 * 2**attempt, _LONGEST_BACKOFF)
    return random.random() * ceiling
