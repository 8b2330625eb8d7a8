"""The client's async core: rollouts in flight on its runtimes, from the invoke to the result, and the stop after it.

Everything here runs on the client's private loop; callers hold `client.py`, `future.py` and `batch.py`. A rollout in
flight is a few small objects and no task, so thousands of them cost little.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import math
import os
import tempfile
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ..agent.result import Result
from ..agent.safe_values.describe import text_of
from ..errors import ConfigError, RuntimeFault, StoreMisconfigured
from ..runtime import Runtime
from ..runtime.job_agent import JobAgentRuntime
from ..runtime.local.sandbox_hints import app_hint, refusal_hint
from ..store import Store, absolute_store, open_store
from ..store.base import bucket_folder, buckets_folder, directory_of
from ..types import RolloutId, Status
from .delivery import Delivery
from .runtimes.pacing import Pacer
from .runtimes.runtime_calls import RuntimeCalls
from .runtimes.runtime_pool import RuntimePool
from .runtimes.targets import check_targets
from .runtimes.usage import ClientUsage, usage_of

if TYPE_CHECKING:
    from ..runtime.local import AgentSource, LocalRuntime

logger = logging.getLogger(__name__)

LOCAL_PREFIX = "arn:aws:bedrock-agentcore:local:"
AWS_TPS = 25
"""AWS's quota of requests a second, for invokes and stops together."""
_WITHOUT_QUOTA = (LOCAL_PREFIX, "arn:aws:bedrock-agentcore:ray:")
AGENT_PROTOCOLS = ("agentcore", "sagemaker")
"""How an agent is invoked: with `_rollout`, or as a SageMaker job does it."""
_JOB_SECONDS = 28_800.0
"""An agent of SageMaker's answers when it is done: 8 hours at most, as a session lives."""
_LOCAL_ENDPOINT = "http://127.0.0.1:8800"
_STOP_SECONDS = 30.0
_LONGEST_TEXT = 1000
_ANSWER_SECONDS = 30.0  # an app accepts a rollout at once, so silence means that it is gone
_MOST_THREADS = 1024

# All clients of this process that call one runtime with one limit share a pacer, because AWS counts them together.
_pacers: weakref.WeakValueDictionary[tuple[str, float | None], Pacer] = weakref.WeakValueDictionary()
_pacers_lock = threading.Lock()


def requests_per_second(arn: str, tps_limit: float | None) -> float | None:
    """The limit that holds for a runtime: the default is AWS's quota, which others don't have.

    >>> requests_per_second("arn:aws:bedrock-agentcore:local:000000000000:runtime/a", AWS_TPS) is None
    True
    """
    return None if tps_limit == AWS_TPS and arn.startswith(_WITHOUT_QUOTA) else tps_limit


def connections_for(rate: float | None, least: int) -> int:
    """Connections to a runtime, each with a thread: as many as its quota fills when every answer takes its longest.

    A session's first answer takes as long as its container takes to start.

    >>> connections_for(25, least=50), connections_for(1, least=50), connections_for(None, least=50)
    (750, 50, 50)
    """
    return max(least, min(math.ceil((rate or 0) * _ANSWER_SECONDS), _MOST_THREADS))


class Flight:
    """One rollout in flight."""

    def __init__(self, id: RolloutId) -> None:
        self.id = id
        self.started_at = time.monotonic()
        self.finished_at: float | None = None
        self.outcome: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()
        self.stopped = False

    def deliver(self, document: dict[str, Any] | None, error: Exception | None) -> None:
        """Set the outcome, unless there is one."""
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
        targets: Sequence[str | AgentSource | Runtime],
        store: str,
        exp_id: str,
        *,
        tps_limit: float | None,
        max_retry_attempts: int,
        max_pool_connections: int,
        rollout_settings: dict[str, Any],
        agent_protocol: str = "agentcore",
    ) -> None:
        RolloutId(exp_id, "check", "check")
        self._targets, self.exp_id = check_targets(targets), exp_id
        self._store_name = absolute_store(store)
        open_store(self._store_name).close()  # raises if the name is wrong
        self._settings = rollout_settings
        if agent_protocol not in AGENT_PROTOCOLS:
            raise ConfigError(f"agent_protocol {agent_protocol!r}: it is one of {', '.join(AGENT_PROTOCOLS)}")
        self._protocol = agent_protocol
        self._job_agents: list[JobAgentRuntime] = []
        self._tps_limit, self._attempts, self._connections = tps_limit, max_retry_attempts, max_pool_connections
        self._opening: asyncio.Task[None] | None = None
        self.runtimes: list[Runtime] = []
        self._own: LocalRuntime | None = None
        self._source: AgentSource | None = None
        self._calls: list[RuntimeCalls] = []
        """To each runtime, those before a `close()` included."""
        self._store_usages: list[Counter[str]] = []
        self._pool: RuntimePool | None = None
        self.delivery: Delivery | None = None
        self._live: dict[str, Flight] = {}
        """Sessions that may be running, by session id."""
        self._stopping: set[asyncio.Task[None]] = set()

    # --- opening and closing ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find the runtime and the store; a path gets its own runtime. Only the first call does anything."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        try:
            await asyncio.shield(self._opening)
        except Exception:
            self._opening = None  # the next call tries again
            raise

    async def _open(self) -> None:
        try:
            s3_environ = await self._find_runtimes()
            store = open_store(self._store_name, sqs_url=self._settings.get("sqs_url"), s3_environ=s3_environ)
            self._store_usages.append(store.usage)
            calls = [self._calls_of(runtime, store) for runtime in self.runtimes]
            self._calls += calls
            self._pool = RuntimePool(calls)
            self.delivery = Delivery(store, self.exp_id)
            await self.delivery.open()
        except BaseException:
            await self._release()
            raise

    def _calls_of(self, runtime: Runtime, store: Store) -> RuntimeCalls:
        rate = requests_per_second(runtime.arn, self._tps_limit)
        key = (runtime.arn, rate)
        with _pacers_lock:
            pacer = _pacers[key] = _pacers.get(key) or Pacer(key[1])
        if self._protocol == "sagemaker":
            runtime = JobAgentRuntime(runtime, store, self._store_name)
            self._job_agents.append(runtime)
        by_arn = isinstance(self._targets[0], str) and self._local_agent is None
        at_once = connections_for(rate, self._connections) if by_arn else _MOST_THREADS
        return RuntimeCalls(runtime, pacer, attempts=self._attempts, at_once=at_once)

    async def _find_runtimes(self) -> dict[str, str] | None:
        """Find the runtimes; returns how to reach S3, if that is a runtime's own."""
        if (agent := self._local_agent) is not None:
            runtime, s3_environ = await self._start_runtime(agent)
            self.runtimes.append(runtime)
            return s3_environ
        for target in self._targets:
            self.runtimes.append(self._at_arn(target) if isinstance(target, str) else cast(Runtime, target))
        return None

    def _at_arn(self, arn: str) -> Runtime:
        from ..runtime.aws import AgentCoreRuntime

        default = _LOCAL_ENDPOINT if arn.startswith(LOCAL_PREFIX) else None
        return AgentCoreRuntime(
            arn,
            endpoint_url=os.environ.get("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE") or default,
            max_concurrency=connections_for(requests_per_second(arn, self._tps_limit), self._connections),
            max_attempts=1,  # retries are ours, so that they are paced
            read_timeout=_ANSWER_SECONDS if self._protocol == "agentcore" else _JOB_SECONDS,
        )

    async def _start_runtime(self, agent: str | AgentSource) -> tuple[Runtime, dict[str, str]]:
        from ..runtime.local import AgentSource, LocalRuntime

        source = AgentSource.parse(agent) if isinstance(agent, str) else agent
        runtime = LocalRuntime(source, buckets=self._make_bucket())
        await runtime.start()
        self._own, self._source = runtime, source
        if self._has_credentials:  # the session's S3 is AWS's
            return runtime, {name: value for name, value in source.env.items() if name.startswith("AWS_")}
        environ = {"AWS_ACCESS_KEY_ID": runtime.token, "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1"}
        return runtime, environ | {"AWS_ENDPOINT_URL_S3": runtime.endpoint_url}

    @property
    def _local_agent(self) -> str | AgentSource | None:
        """The agent, if the client starts a runtime for it: not for an ARN, nor for a runtime of the caller."""
        target = self._targets[0]
        if isinstance(target, str):
            return None if target.startswith("arn:") else target
        return None if hasattr(target, "invoke") else cast("AgentSource", target)

    @property
    def _has_credentials(self) -> bool:
        """Whether the caller gave local sessions credentials for AWS."""
        agent = self._local_agent
        return agent is not None and not isinstance(agent, str) and "AWS_ACCESS_KEY_ID" in agent.env

    @property
    def store_url(self) -> str:
        """The store as other processes open it: a folder, where the bucket is a local one."""
        is_local = self._local_agent is not None and not self._has_credentials
        return (bucket_folder(self._store_name) if is_local else None) or self._store_name

    def _make_bucket(self) -> str | None:
        """Make the folder that sessions on this machine store in; if it is a bucket's, returns that of all buckets."""
        folder = self.store_url
        if (path := directory_of(folder)) is not None:
            try:
                os.makedirs(path, exist_ok=True)
                tempfile.TemporaryFile(dir=path).close()
            except OSError as error:
                problem = f"results can't be written to {path}: {error.strerror}"
                raise StoreMisconfigured(problem, hint="name another folder as the store") from None
        if folder == self._store_name:
            return None
        logger.warning("the agent runs on this machine; what it stores in %s is in %s", self._store_name, folder)
        return buckets_folder()

    async def aclose(self) -> None:
        """Stop every live session and release the store and the runtime."""
        for flight in list(self._live.values()):
            self.end(flight, RuntimeFault("the client was closed"))
        await self.stopped()
        await self._release()
        self._opening = None

    async def _release(self) -> None:
        """Close the store, and the runtime unless it is the caller's."""
        delivery, self.delivery = self.delivery, None
        while self._job_agents:
            await self._job_agents.pop().aclose()
        runtimes, self.runtimes = self.runtimes, []
        if delivery is not None:
            await delivery.close()
        for runtime in runtimes:
            if not any(runtime is target for target in self._targets):
                await runtime.aclose()

    # --- one rollout -----------------------------------------------------------------------------------------------

    async def start(self, payload: dict[str, Any], session_id: str, input_id: str, overrides: dict[str, Any]) -> Flight:
        """Invoke a rollout; returns when the app has accepted it, raises if it doesn't."""
        await self.open()
        assert self.delivery is not None
        flight = Flight(RolloutId(self.exp_id, input_id, session_id))
        body = self._body(payload, input_id, overrides)
        self._live[session_id] = flight
        # Before the invoke: the result of a quick rollout may arrive before the answer to it.
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

    async def printed(self, session_id: str) -> str | None:
        """The end of what a session printed; None where the runtime doesn't say."""
        return None if self._pool is None else await self._pool.printed(session_id)

    @property
    def running(self) -> int:
        """Sessions that the runtimes have accepted and that have not ended."""
        return sum(calls.running for calls in self._calls)

    def usage(self) -> ClientUsage:
        """What this client has used so far."""
        return usage_of(self._calls, sum(self._store_usages, Counter[str]()))

    def _body(self, payload: dict[str, Any], input_id: str, overrides: dict[str, Any]) -> bytes:
        if not isinstance(payload, dict):
            raise ConfigError(f"a payload must be a dict, not a {type(payload).__name__}")
        ours = {"exp_id": self.exp_id, "input_id": input_id, "s3_bucket": self._store_name}
        given = {name: value for name, value in overrides.items() if value is not None}
        try:
            of_row = payload.get("_rollout")
            settings = (of_row if isinstance(of_row, dict) else {}) | self._settings | given | ours
            return json.dumps(payload | {"_rollout": settings}, allow_nan=False).encode()
        except (Exception, SystemExit) as error:  # a row may be anything, and so may what it raises
            raise ConfigError(f"the payload can't be sent as JSON: {text_of(error)[:_LONGEST_TEXT]}") from None

    async def _invoke(self, flight: Flight, body: bytes) -> None:
        assert self._pool is not None
        answer = await self._pool.invoke(flight.id.session_id, body, given_up=flight.outcome.done)
        if answer is not None:
            _check_answer(answer, flight.id.result_key)

    def _delivered(self, flight: Flight, document: dict[str, Any] | None, error: Exception | None) -> None:
        if document is not None and Result(document).status is Status.AGENT_ERROR:
            texts = (document.get("traceback"), document.get("stop_reason"))
            if hint := self._hint("\n".join(text for text in texts if isinstance(text, str))):
                document = document | {"hint": hint}
        flight.deliver(document, error)
        self._stop(flight)

    def _hint(self, text: str) -> str | None:
        """What to do about an agent's error if the local sandbox, or the file that was named, may be its cause."""
        if self._own is None or self._source is None:
            return None
        hint = refusal_hint(text, self._source, self._own.protections)
        return hint or (app_hint(self._source) if self._protocol == "agentcore" else None)

    # --- stopping --------------------------------------------------------------------------------------------------

    def _stop(self, flight: Flight) -> None:
        """Stop the session in the background, once."""
        if flight.stopped:
            return
        flight.stopped = True
        task = asyncio.get_running_loop().create_task(self._stop_session(flight.id.session_id))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def stopped(self) -> None:
        """Wait until every session that is being stopped has stopped, for half a minute at most."""
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=_STOP_SECONDS)

    async def _stop_session(self, session_id: str) -> None:
        assert self._pool is not None
        try:
            await self._pool.stop(session_id)
        finally:
            self._live.pop(session_id, None)


def _check_answer(body: bytes, key: str) -> None:
    """Raise unless the app has accepted the rollout."""
    answer = None
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(body)
    if not isinstance(answer, dict) or answer.get("status") != "processing" or answer.get("result_key") != key:
        raise RuntimeFault(
            f"the agent did not accept the rollout; it answered {body[:200].decode(errors='replace')!r}",
            code="RuntimeClientError",
            reason="agent",
            hint="decorate its function with @app.rollout_entrypoint",
        )
