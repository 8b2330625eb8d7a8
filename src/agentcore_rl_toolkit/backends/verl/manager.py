"""verl's agent loop manager (`rollout.agent.agent_loop_manager_class`): the runtime, if need be, and the workers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from .agent_arn import deploy
from .compose import Rollouts
from .worker import AgentCoreWorker

logger = logging.getLogger(__name__)


class AgentCoreManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """Hands verl's prompts to the workers, and waits for nothing: groups reach verl as they finish."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(AgentCoreWorker)
        self._rollouts = Rollouts.read(self.config)

    async def _init_agent_loop_workers(self) -> None:
        agent = await asyncio.to_thread(self._agent)
        await super()._init_agent_loop_workers()
        workers = self.agent_loop_workers
        await asyncio.gather(*(worker.open.remote(i, len(workers), agent) for i, worker in enumerate(workers)))

    def _agent(self) -> str:
        image = self._rollouts.settings.image
        if image is None:
            return self._rollouts.settings.agent
        arn = deploy(image)
        logger.info("the runtime %s is ready: %s", image.name, arn)
        return arn
