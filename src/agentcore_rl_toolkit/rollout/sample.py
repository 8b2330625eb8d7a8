"""One sample of a row: open a gateway session, invoke, await the result, fold the trajectories.

Whatever happens on the way becomes a `Rollout`; only a misconfigured store is an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from dataclasses import replace
from typing import Any

from ..agent.result import Result
from ..client import RolloutClient, RolloutFuture
from ..client.attempt import failure_of
from ..errors import GatewayFault, RewardInvalid
from ..gateway.base import RolloutGateway
from ..gateway.record.trajectory import Trajectories
from ..types import Status
from .options import RolloutOptions
from .rollout import NOT_NEEDED, Action, Rollout


class Sample:
    """One sample of a row; `run` it once."""

    def __init__(
        self,
        client: RolloutClient,
        gateway: RolloutGateway,
        options: RolloutOptions,
        payload: dict[str, Any],
        input_id: str,
        number: int,
        seed: int | None = None,
    ) -> None:
        self._client, self._gateway, self._options = client, gateway, options
        self._payload, self._input_id, self._number = payload, input_id, number
        self._seed = seed
        self._id = str(uuid.uuid4())
        self._seconds: dict[str, float] = {}
        self._since: float | None = None
        self._folded: Trajectories | None = None
        """The turns of a sample that was cancelled."""
        self._printed: str | None = None
        """What a sample that was cancelled had printed."""

    async def run(self) -> Rollout:
        """Run the sample; returns a rollout that the judge has not seen yet."""
        self._since = time.monotonic()
        rollout = await self._run_contained()
        return replace(rollout, printed=await self._client.printed_async(self._id))

    async def _run_contained(self) -> Rollout:
        try:
            return await self._run()
        except GatewayFault as fault:
            refused = "open" not in self._seconds and fault.status < 500  # a setting of this rollout is wrong
            return self._rollout(Status.AGENT_ERROR if refused else Status.ENGINE_ERROR, error=str(fault))
        except Exception as error:
            status, text = failure_of(error, self._input_id)
            return self._rollout(status, error=text)
        finally:
            with contextlib.suppress(GatewayFault):  # it was never opened, or is gone already
                await self._gateway.delete_session_async(self._id)

    async def _run(self) -> Rollout:
        session = await self._open()
        self._passed("open")
        rollout = await self._follow(session)
        self._passed("session")
        folded = await self._gateway.trajectories_async(self._id)
        self._passed("fold")
        return self._with_turns(rollout, folded)

    def given_up(self) -> Rollout:
        """The rollout of a sample that was cancelled because its group was complete without it."""
        ended = self._rollout(Status.CANCELLED, error=NOT_NEEDED)
        session_id = None if self._since is None else self._id
        ended = replace(ended, session_id=session_id, why=NOT_NEEDED, printed=self._printed)
        return ended if self._folded is None else self._with_turns(ended, self._folded)

    def _with_turns(self, rollout: Rollout, folded: Trajectories) -> Rollout:
        seconds = self._seconds | {"model": folded.model_seconds}
        return replace(
            rollout, rows=folded.rows, fidelity=folded.fidelity, transcript=folded.transcript, seconds=seconds
        )

    async def _open(self) -> dict[str, Any]:
        options = self._options
        rules = dict(options.side_calls) if options.side_calls is not None else None
        model = options.model or self._gateway.model  # the agent's code may name another model
        settings = {"model": model, "context_limit": options.context_limit, "side_calls": rules, "seed": self._seed}
        return await self._gateway.open_session_async(
            session_id=self._id,
            input_id=self._input_id,
            sampling=dict(options.sampling),
            enforced=dict(options.enforced),
            **{name: value for name, value in settings.items() if value is not None},
        )

    async def _follow(self, session: dict[str, Any]) -> Rollout:
        """Invoke the agent and await its result. A failure is a rollout too, and its turns are folded."""
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
            result = Result(await future.result_async(self._options.timeout))
        except asyncio.CancelledError:
            if future is not None:
                await future.cancel_async()
            with contextlib.suppress(GatewayFault):
                self._folded = await self._gateway.trajectories_async(self._id)
            self._printed = await self._client.printed_async(self._id)
            raise
        except Exception as error:
            status, text = failure_of(error, self._input_id)
            return self._rollout(status, error=text)
        try:
            rewards = result.rewards
        except RewardInvalid as problem:
            return self._rollout(Status.REWARD_ERROR, result.document, str(problem))
        return replace(self._rollout(result.status, result.document, result.failure), rewards=rewards)

    def _rollout(self, status: Status, document: dict[str, Any] | None = None, error: str | None = None) -> Rollout:
        return Rollout(
            input_id=self._input_id,
            session_id=self._id,
            sample=self._number,
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
