"""One sample of a row, from the gateway session over the invoke and the result to the folded trajectories.

Whatever happens on the way is a `Rollout` that says so; nothing it does reaches the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
import uuid
from dataclasses import replace
from typing import Any

from ..agent.result import Result
from ..client import RolloutClient
from ..client.batch import status_of
from ..client.future import RolloutFuture
from ..errors import AgentCoreRLError, GatewayFault, RewardInvalid, RuntimeFault, StoreMisconfigured
from ..gateway.gateway import Gateway
from ..types import Status
from .failure_table import Action
from .options import RolloutOptions
from .rollout import NOT_NEEDED, Rollout

logger = logging.getLogger(__name__)


class Sample:
    """One sample of a row; `run` it once."""

    def __init__(
        self,
        client: RolloutClient,
        gateway: Gateway,
        options: RolloutOptions,
        payload: dict[str, Any],
        input_id: str,
        number: int,
    ) -> None:
        self._client, self._gateway, self._options = client, gateway, options
        self._payload, self._input_id, self.number = payload, input_id, number
        self.id = str(uuid.uuid4())
        """Of its session, once it has one."""
        self._seconds: dict[str, float] = {}
        self._since: float | None = None

    async def run(self) -> Rollout:
        """The rollout, whatever became of it; only a store that can't work is an exception."""
        self._since = time.monotonic()
        try:
            return await self._run()
        except GatewayFault as fault:  # the gateway's: of a setting, or of its own
            refused = "open" not in self._seconds and fault.status < 500
            return self._ended(Status.AGENT_ERROR if refused else Status.ENGINE_ERROR, error=str(fault))
        except StoreMisconfigured:
            raise
        except Exception as error:
            logger.exception("a rollout of %s failed in a way that nobody expected", self._input_id)
            return self._ended(Status.AGENT_ERROR, error="".join(traceback.format_exception_only(error)).strip())
        finally:
            with contextlib.suppress(GatewayFault):  # it was never opened, or is gone already
                await self._gateway.delete_session_async(self.id)

    async def _run(self) -> Rollout:
        session = await self._open()
        self._passed("open")
        rollout = await self._follow(session)
        self._passed("session")
        folded = await self._gateway.trajectories_async(self.id)
        self._passed("fold")
        seconds = self._seconds | {"model": folded.model_seconds}
        return replace(rollout, rows=folded.rows, fidelity=folded.fidelity, seconds=seconds)

    def given_up(self) -> Rollout:
        """What it comes to if it is cancelled, because there are enough without it."""
        ended = self._ended(Status.CANCELLED, error=NOT_NEEDED)
        return replace(ended, session_id=None if self._since is None else self.id, why=NOT_NEEDED)

    async def _open(self) -> dict[str, Any]:
        options = self._options
        rules = dict(options.side_calls) if options.side_calls is not None else None
        model = options.model or self._gateway.model  # agents may have a name of their own in their code
        settings = {"model": model, "context_limit": options.context_limit, "side_calls": rules}
        return await self._gateway.open_session_async(
            session_id=self.id,
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
                self.id,
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
        except StoreMisconfigured:
            raise  # so would all the others be
        except AgentCoreRLError as error:
            return self._ended(Status.AGENT_ERROR, error=str(error))
        except asyncio.CancelledError:
            if future is not None:
                await future.cancel_async()
            raise
        return self._with_result(Result(document))

    def _with_result(self, result: Result) -> Rollout:
        try:
            rewards = result.rewards
        except RewardInvalid as problem:
            return self._ended(Status.REWARD_ERROR, result.document, str(problem))
        return replace(self._ended(result.status, result.document, result.failure), rewards=rewards)

    def _ended(self, status: Status, document: dict[str, Any] | None = None, error: str | None = None) -> Rollout:
        """A rollout that nobody has judged yet."""
        return Rollout(
            input_id=self._input_id,
            session_id=self.id,
            sample=self.number,
            status=status,
            action=Action.MASK,
            why=None,
            payload=self._payload,
            result=document,
            error=error,
            rewards=None,
            seconds=self._seconds,
        )

    def _passed(self, station: str) -> None:
        now = time.monotonic()
        self._seconds[station] = self._seconds.get(station, 0.0) + now - (self._since or now)
        self._since = now
