"""Agents written for SageMaker's multi-turn RL, driven as if they were ours: `JobAgentRuntime` around any runtime.

In: an invoke with `_rollout`. It sends the session the request that a SageMaker job sends, with the rollout's gateway
session as the Job Runtime. Out: what the agent reports there, stored as the rollout's result. Such an agent stores
nothing itself, and answers its invoke only when it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..agent.result import Result, ResultBuilder, copy_request
from ..agent.safe_values.redaction import Redactor
from ..errors import AgentCoreRLError, RuntimeFault
from ..store import Store
from ..store.retry import retry
from ..types import RolloutId, Status
from .base import Invocation, Runtime, one_piece

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

JOB_ARN = "arn:aws:sagemaker:us-east-1:000000000000:job/AgentRFT/local"
"""The job of rollouts that no job of SageMaker's requested."""
_REGION = "us-east-1"
_REFUSAL_SECONDS = 1.0
"""A runtime that refuses a session does so within this time; a later failure is the rollout's."""
_REWARD_SECONDS = 10.0
"""How long a completed rollout may take to report its reward."""
_ANSWER_SECONDS = 2.0
"""How long the answer is waited for after the reward, or after a failure, whose message it has."""
_FAILURE_SECONDS = 30.0
_REPORT_SECONDS = 2.0
_WAIT = 25
_STORE_SECONDS = 60.0
_LARGEST_ANSWER = 1 << 20
_SHOWN = 300


class JobAgentRuntime:
    """Invokes one agent as a SageMaker job would, and stores what it reports."""

    def __init__(self, runtime: Runtime, store: Store, store_name: str) -> None:
        """Both stay the caller's to close; `store_name` is how requests name the store."""
        self._runtime, self._store, self._store_name = runtime, store, store_name
        self._rollouts: dict[str, _JobRollout] = {}
        self._http: aiohttp.ClientSession | None = None

    @property
    def arn(self) -> str:
        return self._runtime.arn

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Invocation:
        """Start a rollout; the first invoke of a session counts."""
        rollout = self._rollouts.get(session_id)
        if rollout is None:
            rollout = self._rollouts[session_id] = _JobRollout(self, session_id, json.loads(payload))
        try:
            await rollout.accepted()
        except BaseException:
            self._rollouts.pop(session_id, None)
            rollout.cancel()
            raise
        answer = {"status": "processing", "s3_bucket": self._store_name, "result_key": rollout.id.result_key}
        return Invocation(session_id, 200, "application/json", one_piece(json.dumps(answer).encode()))

    async def stop(self, session_id: str) -> None:
        rollout = self._rollouts.pop(session_id, None)
        if rollout is not None:
            rollout.cancel()
        await self._runtime.stop(session_id)

    def command(self, session_id: str, command: str, *, timeout: int = 300) -> Any:
        return self._runtime.command(session_id, command, timeout=timeout)

    async def aclose(self) -> None:
        for rollout in self._rollouts.values():
            rollout.cancel()
        self._rollouts.clear()
        if self._http is not None:
            await self._http.close()

    async def call(self, session_id: str, request: bytes) -> Any:
        """Invoke the agent; its answer, once the rollout is over."""
        invocation = await self._runtime.invoke(session_id, request)
        body = bytearray()
        async for chunk in invocation.body:
            body += chunk[: _LARGEST_ANSWER - len(body)]
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return body[:_SHOWN].decode(errors="replace")

    async def report(self, endpoint: str, after: str) -> dict[str, Any]:
        """The trajectory's reports, once they differ from `after`; tried until the gateway answers."""
        import aiohttp

        if self._http is None:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        while True:
            try:
                async with self._http.get(
                    f"{endpoint}/report", params={"wait": str(_WAIT), "after": after}, timeout=aiohttp.ClientTimeout(60)
                ) as answer:
                    if answer.status == 200:
                        return dict(await answer.json())
                    if answer.status in (401, 404, 409, 410):
                        text = (await answer.text())[:_SHOWN]
                        raise RuntimeFault(f"the gateway has no trajectory for this rollout: {text}", reason="agent")
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                logger.info("the gateway did not answer; asking again: %s", error)
            await asyncio.sleep(0.5)

    async def put(self, rollout: RolloutId, result: Result) -> None:
        """Store a result and announce it."""

        def store() -> None:
            if retry(lambda: self._store.put_if_absent(rollout.result_key, result.to_bytes()), seconds=_STORE_SECONDS):
                self._store.announce(rollout.result_key)

        try:
            await asyncio.to_thread(store)
        except AgentCoreRLError as error:
            logger.error("the result of %s could not be stored: %s", rollout.result_key, error)


class _JobRollout:
    """One rollout: the call of the agent and its reports, whichever says first how it ended."""

    def __init__(self, runtime: JobAgentRuntime, session_id: str, payload: dict[str, Any]) -> None:
        settings = payload["_rollout"]
        row = {name: value for name, value in payload.items() if name != "_rollout"}
        self.id = RolloutId(settings["exp_id"], settings["input_id"], session_id)
        self._runtime = runtime
        self._endpoint = _endpoint(settings.get("base_url"))
        request = json.dumps(job_request(row, settings, self._endpoint, session_id)).encode()
        redact = Redactor.of([payload])
        self._builder = ResultBuilder(
            self.id, settings["s3_bucket"], copy_request(payload, redact), redact, None, time.time()
        )
        self._call = asyncio.ensure_future(runtime.call(session_id, request))
        self._watch = asyncio.ensure_future(self._finish())

    async def accepted(self) -> None:
        """Return once the session runs, as far as one can tell; raise if the runtime refuses it."""
        await asyncio.wait({self._call, self._watch}, timeout=_REFUSAL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        error = self._call.exception() if self._call.done() and not self._call.cancelled() else None
        if isinstance(error, RuntimeFault) and error.reason != "agent":
            raise error

    def cancel(self) -> None:
        self._call.cancel()
        self._watch.cancel()

    async def _finish(self) -> None:
        try:
            result = await self._outcome()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            lost = isinstance(error, RuntimeFault) and error.reason != "agent"
            result = self._builder.failed(Status.SESSION_LOST if lost else Status.AGENT_ERROR, error, time.time())
        await self._runtime.put(self.id, result)

    async def _outcome(self) -> Result:
        """How the rollout ended."""
        report = await self._reported("sampling", self._call)
        if report["job_status"] == "sampling":  # the agent has answered, or failed
            report = await self._reported("sampling", None, _REPORT_SECONDS)
        if report["job_status"] == "sampling" and self._call.exception() is not None:
            self._call.result()
        if report["job_status"] == "ready" and report["rewards"] is None:
            report = await self._reported("ready", None, _REWARD_SECONDS)
        with contextlib.suppress(asyncio.TimeoutError, AgentCoreRLError):
            seconds = _FAILURE_SECONDS if report["job_status"] == "failed" else _ANSWER_SECONDS
            await asyncio.wait_for(asyncio.shield(self._call), seconds)
        answer = self._answer()
        if report["job_status"] == "ready":
            rewards = report["rewards"]
            given = {"rewards": rewards[0] if rewards is not None and len(rewards) == 1 else rewards}
            return self._builder.returned({"answer": answer, **given}, time.time())
        if report["job_status"] == "failed":
            error = RuntimeFault(f"the agent reported that the rollout failed: {_short(answer)}", reason="agent")
            return self._builder.failed(Status.AGENT_ERROR, error, time.time())
        raise RuntimeFault(
            f"the agent answered without completing its rollout: {_short(answer)}",
            reason="agent",
            hint="decorate its function with @app.rollout_entrypoint, or with SageMaker's @sagemaker_rft_handler",
        )

    async def _reported(
        self, after: str, call: asyncio.Future[Any] | None, seconds: float | None = None
    ) -> dict[str, Any]:
        """The next report after `after`; the same state again if `call` ends, or the time is over, before one."""
        asking = asyncio.ensure_future(self._next(after))
        others = {call} if call is not None else set()
        try:
            await asyncio.wait({asking, *others}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else {"job_status": after, "rewards": None}
        finally:
            asking.cancel()

    async def _next(self, after: str) -> dict[str, Any]:
        while True:
            report = await self._runtime.report(self._endpoint, after)
            stage = report["job_status"] if report["rewards"] is None else "rewarded"
            if stage != after:
                return report

    def _answer(self) -> Any:
        """What the agent answered; the error of its invoke is raised unless it is the agent's own."""
        if not self._call.done() or self._call.cancelled():
            return None
        error = self._call.exception()
        if error is None:
            return self._call.result()
        return str(error)


def job_request(
    row: Mapping[str, Any], settings: Mapping[str, Any], endpoint: str, trajectory_id: str
) -> dict[str, Any]:
    """The request of a SageMaker job for a data row, under the names of the service's documentation.

    >>> settings = {"sampling_params": {"temperature": 1.0, "n": 1}}
    >>> request = job_request({"prompt": "2+2"}, settings, "http://gateway/sessions/s.k", "s")
    >>> request["instance"], request["metadata"]["trajectory_id"], request["inference_params"]
    ({'prompt': '2+2'}, 's', {'temperature': 1.0})
    """
    metadata = {"job_arn": JOB_ARN, "trajectory_id": trajectory_id, "endpoint": endpoint, "region": _REGION}
    sampling = {
        name: value
        for name, value in (settings.get("sampling_params") or {}).items()
        if name in ("temperature", "max_tokens", "top_p")
    }
    request: dict[str, Any] = {"instance": dict(row), "metadata": metadata, "inference_params": sampling}
    if "prompt" in row:
        request["prompt"] = row["prompt"]
    if settings.get("model_id"):
        request["model_name"] = settings["model_id"]
    return request


def _endpoint(base_url: Any) -> str:
    """The address of the rollout's gateway session, as a Job Runtime's."""
    if not isinstance(base_url, str) or not base_url.rstrip("/").endswith("/v1") or "/sessions/" not in base_url:
        raise RuntimeFault(
            f"a SageMaker agent needs a gateway session as its model, not {base_url!r}",
            code="ValidationException",
            reason="agent",
            hint="run it with --model, which starts a gateway",
        )
    return base_url.rstrip("/").removesuffix("/v1")


def _short(answer: Any) -> str:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
