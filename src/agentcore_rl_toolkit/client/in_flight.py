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
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, cast

from ..agent.describe import text_of
from ..agent.result import Result
from ..errors import ConfigError, RuntimeFault
from ..runtime import Runtime
from ..runtime.local.sandbox_hints import refusal_hint
from ..store import open_store
from ..store.base import bucket_folder, buckets_folder
from ..types import RolloutId, Status
from .delivery import Delivery
from .pacing import Pacer
from .runtime_calls import RuntimeCalls

if TYPE_CHECKING:
    from ..runtime.local import AgentSource

logger = logging.getLogger(__name__)

LOCAL_PREFIX = "arn:aws:bedrock-agentcore:local:"
_WITHOUT_QUOTA = (LOCAL_PREFIX, "arn:aws:bedrock-agentcore:ray:")
AWS_TPS = 25
_LOCAL_ENDPOINT = "http://127.0.0.1:8800"
_STOP_SECONDS = 30.0
_LONGEST_TEXT = 1000
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
        target: str | AgentSource | Runtime,
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
        self._source: AgentSource | None = None
        self._calls: RuntimeCalls | None = None
        self.delivery: Delivery | None = None
        self.live: dict[str, Flight] = {}
        """Sessions that may be running, by session id."""
        self._stopping: set[asyncio.Task[None]] = set()

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
        try:
            self._runtime, s3_environ = await self._find_runtime()
            limit = self._tps_limit
            if self._runtime.arn.startswith(_WITHOUT_QUOTA) and limit == AWS_TPS:  # AWS's quota is not theirs
                limit = None
            with _pacers_lock:
                key = (self._runtime.arn, limit)
                pacer = _pacers[key] = _pacers.get(key) or Pacer(limit)
            self._calls = RuntimeCalls(self._runtime, pacer, attempts=self._attempts)
            store = open_store(self.store_name, sqs_url=self._sqs_url, s3_environ=s3_environ)
            self.delivery = Delivery(store, self.exp_id)
            await self.delivery.open()
        except BaseException:
            await self._release()
            raise

    async def _find_runtime(self) -> tuple[Runtime, dict[str, str] | None]:
        """The runtime; and how S3 is reached, if that is the runtime's own."""
        here = self._agent_here
        if here is None and not isinstance(self.target, str):
            return cast(Runtime, self.target), None
        if here is None:
            from ..runtime.aws import AgentCoreRuntime

            assert isinstance(self.target, str)
            is_local = self.target.startswith(LOCAL_PREFIX)
            endpoint = os.environ.get("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE") or (_LOCAL_ENDPOINT if is_local else None)
            runtime = AgentCoreRuntime(
                self.target,
                endpoint_url=endpoint,
                max_concurrency=self._connections,
                max_attempts=1,  # retries are ours, so that they are paced
                read_timeout=_ANSWER_SECONDS,
            )
            return runtime, None
        from ..runtime.local import AgentSource, LocalRuntime

        source = AgentSource.parse(here) if isinstance(here, str) else here
        private = LocalRuntime(source, buckets=self._make_bucket())
        await private.start()
        self._owned, self._source = private, source
        if self._has_credentials:  # the session's S3 is AWS's
            return private, {name: value for name, value in source.env.items() if name.startswith("AWS_")}
        environ = {"AWS_ACCESS_KEY_ID": private.token, "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1"}
        return private, environ | {"AWS_ENDPOINT_URL_S3": private.endpoint_url}

    @property
    def _agent_here(self) -> str | AgentSource | None:
        """The agent that gets a runtime of the client's own; None if it is an ARN's, or a runtime's of the caller."""
        if isinstance(self.target, str):
            return None if self.target.startswith("arn:") else self.target
        return None if hasattr(self.target, "invoke") else self.target

    @property
    def _has_credentials(self) -> bool:
        """Whether the caller gave the sessions of this machine credentials for AWS."""
        here = self._agent_here
        return here is not None and not isinstance(here, str) and "AWS_ACCESS_KEY_ID" in here.env

    @property
    def store_url(self) -> str:
        """What opens the store from outside: the folder, where the bucket is one of this machine."""
        is_ours = self._agent_here is not None and not self._has_credentials
        return (bucket_folder(self.store_name) if is_ours else None) or self.store_name

    def _make_bucket(self) -> str | None:
        """Make the folder of a bucket on this machine, if the store is one, and say where it is; gives that of all."""
        if self.store_url == self.store_name:
            return None
        try:
            os.makedirs(self.store_url, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.store_url} can't be made: {error}", hint="name a folder as the store") from None
        logger.warning("the agent runs on this machine; what it stores in %s is in %s", self.store_name, self.store_url)
        return buckets_folder()

    async def aclose(self) -> None:
        """Stop every live session, and let go of everything."""
        for flight in list(self.live.values()):
            self.end(flight, RuntimeFault("the client was closed"))
        await self.settled()
        await self._release()
        self._opened = None

    async def _release(self) -> None:
        """Let go of the store, and of the runtime unless it is the caller's."""
        delivery, self.delivery = self.delivery, None
        runtime, self._runtime = self._runtime or self._owned, None
        if delivery is not None:
            await delivery.close()
        if runtime is not None and runtime is not self.target:
            await runtime.aclose()

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
            if isinstance(error, RuntimeFault) and error.reason == "agent" and (hint := self._hint(str(error))):
                error.args = (f"{error}\nhint: {hint}",)
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
        try:
            given = payload.get("_rollout")
            settings = (given if isinstance(given, dict) else {}) | self.settings | _given(overrides) | ours
            return json.dumps(payload | {"_rollout": settings}, allow_nan=False).encode()
        except (Exception, SystemExit) as error:  # a row may be anything, and so may what it raises
            raise ConfigError(f"the payload can't be sent as JSON: {text_of(error)[:_LONGEST_TEXT]}") from None

    async def _invoke(self, flight: Flight, body: bytes) -> None:
        assert self._calls is not None
        answer = await self._calls.invoke(flight.id.session_id, body, given_up=flight.outcome.done)
        if answer is not None:
            _check_answer(answer, flight.id.result_key)

    def _delivered(self, flight: Flight, document: dict[str, Any] | None, error: Exception | None) -> None:
        if document is not None and Result(document).status is Status.AGENT_ERROR:
            told = (document.get("traceback"), document.get("stop_reason"))
            if hint := self._hint("\n".join(text for text in told if isinstance(text, str))):
                document = document | {"hint": hint}
        flight.deliver(document, error)
        self._stop(flight)

    def _hint(self, text: str) -> str | None:
        """What to do about an agent's error on this machine, if its sandbox may be why."""
        return None if self._source is None else refusal_hint(text, self._source, self._owned.protections)

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
        assert self._calls is not None
        try:
            await self._calls.stop(session_id)
        finally:
            self.live.pop(session_id, None)


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
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(body)
    if not isinstance(answer, dict) or answer.get("status") != "processing" or answer.get("result_key") != key:
        raise RuntimeFault(
            f"the agent did not take the rollout on; it answered {body[:200].decode(errors='replace')!r}",
            code="RuntimeClientError",
            reason="agent",
            hint="its function must be decorated with @app.rollout_entrypoint",
        )
