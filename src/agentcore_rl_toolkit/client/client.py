"""`RolloutClient`: the object that trainers, evaluations and other projects hold.

Every call exists blocking and awaited; both run the same coroutine on the client's private loop. So a client works in
scripts, notebooks, threads and on any event loop.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..common.object_repr import object_repr
from ..common.private_loop import PrivateLoop
from ..runtime import Runtime
from .batch import AsyncBatchResult, BatchOptions, BatchResult, BatchRun, Progress
from .future import RolloutFuture
from .in_flight import AWS_TPS, ClientCore
from .runtimes.usage import ClientUsage

if TYPE_CHECKING:
    from ..runtime.local import AgentSource

_FORMER = frozenset({"initial_interval", "max_interval", "backoff_factor", "log_interval"})


class RolloutClient:
    """Submits rollouts to one agent and brings their results back.

    `agent_runtime_arn` is an AWS ARN, a local runtime's ARN, or the path of an agent (`./rl_app.py`), for which the
    client starts a local runtime and ends it again. A list of ARNs or runtimes of the same agent shares the sessions:
    `tps_limit` holds for each, and one that fails is left out until it works again. An `AgentSource` is such a path
    with the variables, addresses and limits of its sessions. A `Runtime`, such as `RayRuntime` or your own, is called
    on the client's event loop; closing it is up to you. `s3_bucket` is whatever `open_store` takes, or a relative
    folder. `base_url`, `model_id` and further keywords go into each payload's `_rollout`. The client contacts nothing
    before the first invoke.
    """

    def __init__(
        self,
        agent_runtime_arn: str | os.PathLike[str] | AgentSource | Runtime | Sequence[str | Runtime],
        s3_bucket: str | os.PathLike[str],
        exp_id: str,
        max_retry_attempts: int = 5,
        tps_limit: float | None = AWS_TPS,
        max_pool_connections: int = 50,
        base_url: str | None = None,
        model_id: str | None = None,
        agent_protocol: str = "agentcore",
        **extra_config: Any,
    ) -> None:
        """With `agent_protocol="sagemaker"`, the agent is invoked as a SageMaker multi-turn RL job does it."""
        self._agent = agent_runtime_arn
        settings = {"base_url": base_url, "model_id": model_id, **extra_config}
        self._core = ClientCore(
            [*agent_runtime_arn] if isinstance(agent_runtime_arn, (list, tuple)) else [cast(Any, agent_runtime_arn)],
            os.fspath(s3_bucket),
            exp_id,
            tps_limit=tps_limit,
            max_retry_attempts=max_retry_attempts,
            max_pool_connections=max_pool_connections,
            rollout_settings={name: value for name, value in settings.items() if value is not None},
            agent_protocol=agent_protocol,
        )
        self._loop = PrivateLoop("rollout-client")

    def __repr__(self) -> str:
        return object_repr(self, self._agent, store=self.store_url, exp_id=self.exp_id)

    @property
    def exp_id(self) -> str:
        """The experiment results land under."""
        return self._core.exp_id

    @property
    def runtime(self) -> Runtime | None:
        """The runtime that sessions run on, the first of several; None before the first invoke and after `close()`."""
        return self._core.runtimes[0] if self._core.runtimes else None

    @property
    def usage(self) -> ClientUsage:
        """What this client has used so far: sessions, requests and bytes."""
        return self._core.usage()

    @property
    def running(self) -> int:
        """Sessions that run now, as far as this client knows."""
        return self._core.running

    @property
    def store_url(self) -> str:
        """The store as `open_store` and `agentcore-rl results` take it.

        For an agent given by its path, a bucket is a folder under `~/.local/share/agentcore-rl/buckets`, and this is
        its name.
        """
        return self._core.store_url

    def invoke(
        self, payload: dict[str, Any], session_id: str | None = None, input_id: str | None = None, **overrides: Any
    ) -> RolloutFuture:
        """Start one rollout; keywords go into its `_rollout`. Raises if the runtime doesn't accept it."""
        return self._loop.run(self._invoke(payload, session_id, input_id, overrides))

    async def invoke_async(
        self, payload: dict[str, Any], session_id: str | None = None, input_id: str | None = None, **overrides: Any
    ) -> RolloutFuture:
        """The same, awaited."""
        return await self._loop.run_async(self._invoke(payload, session_id, input_id, overrides))

    def printed(self, session_id: str) -> str | None:
        """The end of what a session printed, at most 64 KiB; None where the runtime doesn't say."""
        return self._loop.run(self._core.printed(session_id))

    async def printed_async(self, session_id: str) -> str | None:
        """The same, awaited."""
        return await self._loop.run_async(self._core.printed(session_id))

    def run_batch(
        self,
        payloads: Iterable[dict[str, Any]],
        max_concurrent_sessions: int = 25,
        timeout: float | None = 900.0,
        *,
        n: int = 1,
        max_retries: int = 2,
        hedge_after: float | None = None,
        resume: bool = False,
        rerun_failures: bool = False,
        outage_seconds: float = 300.0,
        progress: Progress | None = None,
        **former: float,
    ) -> BatchResult:
        """Run many rollouts; iterate over the result.

        `timeout` is per rollout, from when the runtime has accepted it. `n` samples of each row share its `input_id`.
        After a failure of the infrastructure a rollout runs again in a fresh session, up to `max_retries` times; after
        the agent's own error it doesn't. While no runtime can be reached, for `outage_seconds` at most, that costs each
        rollout one retry. `hedge_after` seconds without a result start a duplicate, and the first to
        finish counts. `resume` hands out the results that the store has under this `exp_id` and runs the rest;
        `rerun_failures` runs failed ones again. A row that can't be sent as JSON is a failed item.

        `initial_interval`, `max_interval`, `backoff_factor` and `log_interval` of the first toolkit are accepted and
        ignored.
        """
        options = locals()
        return BatchResult(self._batch(options), self._loop)

    def run_batch_async(
        self,
        payloads: Iterable[dict[str, Any]],
        max_concurrent_sessions: int = 25,
        timeout: float | None = 900.0,
        *,
        n: int = 1,
        max_retries: int = 2,
        hedge_after: float | None = None,
        resume: bool = False,
        rerun_failures: bool = False,
        outage_seconds: float = 300.0,
        progress: Progress | None = None,
        **former: float,
    ) -> AsyncBatchResult:
        """The same, for `async for`."""
        options = locals()
        return AsyncBatchResult(self._batch(options), self._loop)

    def close(self) -> None:
        """Stop every live session, and the runtime if the client started it. A forked process has nothing to stop."""
        if self._loop.is_elsewhere:
            return
        try:
            self._loop.run(self._core.aclose())
        finally:
            self._loop.close()

    async def aclose(self) -> None:
        """The same, awaited."""
        if not self._loop.is_elsewhere:
            await self._loop.run_async(self._core.aclose())
            self._loop.close()

    def __enter__(self) -> RolloutClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> RolloutClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _invoke(
        self, payload: dict[str, Any], session_id: str | None, input_id: str | None, overrides: dict[str, Any]
    ) -> RolloutFuture:
        session_id, input_id = session_id or str(uuid.uuid4()), input_id or str(uuid.uuid4())
        flight = await self._core.start(payload, session_id, input_id, overrides)
        return RolloutFuture(flight, self._core, self._loop)

    def _batch(self, given: dict[str, Any]) -> BatchRun:
        for name in given.pop("former"):
            if name not in _FORMER:
                raise TypeError(f"run_batch() got an unexpected keyword argument {name!r}")
        options = {name: value for name, value in given.items() if name not in ("self", "payloads")}
        return BatchRun(self._core, given["payloads"], BatchOptions(**options))
