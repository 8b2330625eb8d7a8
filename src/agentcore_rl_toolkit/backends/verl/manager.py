"""verl's agent loop manager and worker, and its sampler of groups; each worker runs a gateway and rollouts.

    prompt of verl → n rollouts (rollout/) → agent → gateway → VerlEngine → verl's servers
                     group, judged         → outputs → TransferQueue → verl

To verl, a group that is not trained on is a failed prompt without outputs, and its sampler takes another prompt. An
error that ends the run (too many failures, an impossible setting) is raised from verl's next call, because the workers
run groups in the background and verl can't receive it anywhere else.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from typing import Any

import ray
import torch
import transfer_queue as tq
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.core_algos import register_adv_est
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from ...client import RolloutClient
from ...errors import RolloutsStopped
from ...rollout import UNALTERED, Group, Rollout, RolloutRunner, RolloutStream
from ...rollout.run_folder import RunWriter
from ...types import Status
from .compose import RolloutConfig
from .convert import (
    fit_mini_batch,
    measured_rollouts,
    to_outputs,
    to_validation_outputs,
    trained_rollouts,
    turn_advantages,
)
from .figures import GroupWriter
from .overrides import TURN_CREDIT
from .verl_engine import VerlEngine

logger = logging.getLogger(__name__)

(_ESTIMATOR,) = TURN_CREDIT.values()
_NOT_STORED = ("payload", "agent_name", "__rollout_n__", "__do_sample__")


class CreditedOutput(AgentLoopOutput):  # type: ignore[misc]
    """An output whose tokens bring their advantages, in the place of verl's rewards by token."""

    advantages: list[float] | None = None

    def as_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().as_dict()
        advantages = fields.pop("advantages", None)
        if advantages is not None:
            fields["rm_scores"] = torch.tensor(advantages, dtype=torch.float32)
        return fields


@register_adv_est(_ESTIMATOR)  # type: ignore[untyped-decorator]
def take_advantages(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """verl's hook with turn credit: the advantages are those that the outputs brought."""
    advantages = token_level_rewards * response_mask
    return advantages, advantages


class AgentCoreManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """Hands verl's prompts to the workers without waiting: groups reach verl as they finish.

    verl loads it by `rollout.agent.agent_loop_manager_class`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(AgentCoreWorker)
        self._rollouts = RolloutConfig.read(self.config)
        self._next = 0
        """The worker that gets the next prompt."""

    def generate_sequences(self, prompts: Any) -> None:
        """Hand out a batch, beginning with another worker each time: a refill is a batch of a single prompt."""
        workers: list[Any] = self.agent_loop_workers
        self.agent_loop_workers: list[Any] = [*workers[self._next :], *workers[: self._next]]
        try:
            super().generate_sequences(prompts)
        finally:
            self.agent_loop_workers = workers
        self._next = (self._next + len(prompts)) % len(workers)

    async def _init_agent_loop_workers(self) -> None:
        agent = await asyncio.to_thread(self._find_agent)
        await super()._init_agent_loop_workers()
        workers: list[Any] = self.agent_loop_workers
        await asyncio.gather(*(worker.open.remote(i, len(workers), agent) for i, worker in enumerate(workers)))

    def _find_agent(self) -> str:
        image = self._rollouts.settings.image
        if image is None:
            return self._rollouts.settings.agent
        arn = image.deploy()
        logger.info("the runtime %s is ready: %s", image.name, arn)
        return arn


class AgentCoreWorker(AgentLoopWorkerTQ.__ray_actor_class__):  # type: ignore[misc]
    """Runs the groups of the prompts it is given.

    Ray copies inherited methods into the class it makes of this one, and `super()` means something else in a copy. We
    therefore call verl's methods only from methods of our own.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    async def open(self, number: int, count: int, agent: str) -> None:
        """Open the gateway, the client and the runner, as worker `number` of `count`."""
        rollouts = RolloutConfig.read(self.config)
        self._settings = settings = rollouts.for_worker(number, count, agent, ray.util.get_node_ip_address())
        self._routes, self._seeded = rollouts.routes, rollouts.seeded
        self._stopped: Exception | None = None
        self._engine = VerlEngine(
            self.llm_client,
            model=str(self.config.actor_rollout_ref.model.path),
            context_length=rollouts.context,
            server=self.config.actor_rollout_ref.rollout.name,
            stop_ids=[] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id],
        )
        gateway = settings.open_gateway(self._engine, self.tokenizer, routes=self._routes)
        self._open = stack = AsyncExitStack()
        await stack.enter_async_context(gateway)
        client: RolloutClient = await asyncio.to_thread(settings.client().__enter__)
        stack.push(client.__exit__)
        self._run = stack.enter_context(RunWriter(settings.folder, process=number))
        figures = GroupWriter(settings.folder, number, settings.failed_reward)
        self._figures = stack.enter_context(closing(figures))
        self._updates = 0
        """The trainer's, as far as the prompts say: servers may sample with older weights."""
        options = replace(settings.rollout_options(None, self._version), max_batch_tokens=None)
        self._runner = stack.enter_context(closing(RolloutRunner(client, gateway, options)))
        self._stream = RolloutStream(self._runner)
        stack.push_async_callback(asyncio.to_thread, self._stream.close)

    async def close(self) -> None:
        """Cancel running groups, and close the gateway and the sessions."""
        for task in list(self.background_tasks):
            task.cancel()
        await asyncio.gather(*self.background_tasks, return_exceptions=True)
        await self._open.aclose()

    async def generate_sequences(self, batch: Any) -> None:
        """verl's call: start a group for each prompt, without waiting."""
        if self._stopped is not None:
            raise self._stopped
        await super().generate_sequences(batch)

    def _version(self) -> int:
        return max(self._engine.version or 0, self._updates)

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        """verl's hook: all samples of one prompt."""
        validate, step = trajectory["validate"], int(trajectory["step"])
        self._updates = max(self._updates, step if validate else step - 1)
        place = {"key": prompt["uid"], "partition_id": "val" if validate else "train"}
        await tq.async_kv_put(**place, tag={"status": "running"})
        status = "failure"
        try:
            group = await self._run_group(prompt, sampling_params, trajectory)
            given = await self._hand_over(group, prompt, validate)
            status = "finished" if given else status
            if validate:
                self._figures.add_validation(step, group)
            else:
                self._figures.add_group(step, group, given)
                self._figures.check_progress(int(self.config.data.train_batch_size))
        except Exception as error:
            logger.exception("the rollouts of %s ended the run", prompt["uid"])
            self._stopped = self._stopped or error
        finally:
            await tq.async_kv_put(**place, tag={"status": status})
        self._figures.write_totals(self._runner.used, self._stopped)

    async def _run_group(self, prompt: dict[str, Any], sampling: dict[str, Any], trajectory: dict[str, Any]) -> Group:
        validate, step = trajectory["validate"], int(trajectory["step"])
        phase = "train" if not validate else "at_step" if step > 0 else "before"
        part = self._run.shared_part(phase, step if validate else step - 1)  # a folder counts updates, from 0
        rollout = self.config.actor_rollout_ref.rollout
        n = prompt.get("__rollout_n__") or (rollout.val_kwargs.n if validate else rollout.n)
        enforced = {**UNALTERED, **{name: sampling[name] for name in ("temperature", "top_p", "top_k")}}
        if self._settings.max_tokens is not None:
            enforced["max_tokens"] = self._settings.max_tokens
        changes: dict[str, Any] = {"n": int(n), "enforced": enforced} | (
            {"oversample": 0, "evaluation": True} if validate else {}
        )
        if self._seeded:
            changes["seed"] = f"{self._settings.seed}/{phase}/{step}/{prompt['index']}"
        coming = self._stream.add([dict(prompt["payload"])], on_rollout=part.write, **changes)
        (group,) = await asyncio.wrap_future(coming)
        part.add_group(group)
        return group

    async def _hand_over(self, group: Group, prompt: dict[str, Any], validate: bool) -> list[Rollout]:
        """Give verl a group's outputs; returns the rollouts they are from."""
        routes = self._engine.route_shape or (0, 0) if self._routes else None
        chosen = measured_rollouts(group) if validate else trained_rollouts(group, routes)
        if not chosen:
            _log_dropped(group)
        stored = {name: value for name, value in prompt.items() if name not in _NOT_STORED}
        credited = turn_advantages(group, chosen, None if validate else self._settings.turn_credit)
        for number, (rollout, advantages) in enumerate(zip(chosen, credited, strict=True)):
            if validate:
                padding = self.tokenizer.pad_token_id or 0
                made = to_validation_outputs(rollout, self._settings.failed_reward, padding)
            else:
                made = to_outputs(rollout, routes=routes, advantages=advantages)
            given = [CreditedOutput(**fields) for fields in made]
            await super()._agent_loop_postprocess(given, validate, session_id=number, **stored)
        return chosen


class _FittedUpdates:
    """Keeps the number of optimizer steps, however many rows the rollouts of a step fold into.

    verl trains in mini-batches of a fixed number of rows, and fills the last one up with padding, so more rows than
    rollouts would become another optimizer step. This sets the size for each step, before verl divides its rows.
    """

    def __init__(self, config: Any, **options: Any) -> None:
        super().__init__(**options)
        parts = [config.actor_rollout_ref.actor, config.critic]
        self._sizes = [(part, int(part.ppo_mini_batch_size)) for part in parts]
        self._n = int(config.actor_rollout_ref.rollout.n)
        self._ranks = int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        batch, metrics = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]
        if partition_id == "val" and not batch.keys:  # verl can make no figures of that
            hint = "the run's folder has its rollouts, in evaluations: agentcore-rl show FOLDER"
            raise RolloutsStopped("no held-out rollout could be run and scored", hint=hint)
        if partition_id == "train":
            for part, configured in self._sizes:
                updates = max(1, batch_size // configured)
                part.ppo_mini_batch_size = fit_mini_batch(len(batch.keys), updates, self._n, self._ranks)
        return batch, metrics


class FittedBuffer(_FittedUpdates, ReplayBuffer):  # type: ignore[misc]
    """verl's synchronous replay buffer, for rollouts of several rows."""


class FittedBufferAsync(_FittedUpdates, ReplayBufferAsync):  # type: ignore[misc]
    """verl's asynchronous replay buffer, for rollouts of several rows."""


def open_sampler(**options: Any) -> ReplayBuffer:
    """verl's replay buffer for the run's mode. verl loads it by `trainer.v1.sampler.custom_sampler`.

    verl passes a custom sampler fewer arguments than its own. The rest comes from the trainer's configuration.
    """
    config = options["refill_fn"].__self__.config
    groups = config.algorithm.filter_groups
    options["filter_groups_metric"] = groups.metric if groups and groups.enable else None
    options["sync_refill_failed_groups"] = bool(config.trainer.v1.sampler.sync_refill_failed_groups)
    if config.trainer.v1.trainer_mode != "sync":
        return FittedBufferAsync(config, **options)
    inflight = groups.get("max_inflight_gen_batches", 1) if groups and groups.enable else 1
    rows = config.data.train_batch_size
    return FittedBuffer(config, train_batch_size=rows, gen_batch_size=1, max_inflight_gen_batches=inflight, **options)


def _log_dropped(group: Group) -> None:
    failed = [rollout for rollout in group.rollouts if rollout.status is not Status.COMPLETED]
    last = f"; {failed[-1].status.value}: {failed[-1].error}" if failed else ""
    logger.warning("%s is not trained on: %s%s", group.input_id, group.dropped or "nothing to train on", last)
