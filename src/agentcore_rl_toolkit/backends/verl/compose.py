"""verl's own configuration: composed from overrides, checked as `main_ppo` does, and read for rollouts.

Needs verl, but no GPU.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ...errors import ConfigError
from ..base import is_installed, runs_on_aws
from .backend import VerlSettings
from .environment import ATTENTION, trl_conflict
from .overrides import CUSTOM, NEEDED, ROLLOUT, SETTINGS, TURN_CREDIT

ESTIMATORS = ("grpo", "gae", "reinforce_plus_plus")
"""Estimators that count a rollout of several rows once: verl's GRPO, and those without groups."""
_SEQUENCE_PARALLEL = "ulysses_sequence_parallel_size"


def compose_config(overrides: Sequence[str]) -> Any:
    """verl's configuration with these overrides."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        try:
            return compose("ppo_trainer", list(overrides))
        except (HydraException, OmegaConfBaseException) as error:
            first = str(error).strip().splitlines()[0]
            raise ConfigError(f"verl's configuration: {first}", hint="see options, and verl's documentation") from error


def check_overrides(overrides: Sequence[str]) -> list[str]:
    """Compose the configuration, refuse what can't work, and return notes."""
    import verl
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = compose_config(overrides)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # verl prints
            omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
            validate_config(config, need_reference_policy(config), need_critic(config))
    except (AssertionError, ValueError, TypeError, OmegaConfBaseException, HydraException) as error:
        raise ConfigError(f"verl refuses its configuration: {error}") from error
    RolloutConfig.read(config)
    notes = [f"verl {verl.__version__} accepts its configuration"]
    if (mode := config.actor_rollout_ref.actor.loss_agg_mode).startswith("seq-mean"):
        notes.append(f"loss_agg_mode={mode}: each row of a rollout counts as its own sequence")
    return [*notes, *_check_attention(config), *_check_correction(config), *filter(None, [trl_conflict()])]


def _check_attention(config: Any) -> list[str]:
    """Only flash-attn can split sequences over GPUs (Ulysses); without it the model's attention is sdpa."""
    chosen = OmegaConf.select(config, ATTENTION) or "flash_attention_2"
    actor = config.actor_rollout_ref.actor
    keys = (_SEQUENCE_PARALLEL, f"fsdp_config.{_SEQUENCE_PARALLEL}")
    split = max(OmegaConf.select(actor, key) or 1 for key in keys)
    if chosen == "sdpa" and split > 1:
        hint = f"install flash-attn, or leave actor.{_SEQUENCE_PARALLEL} at 1"
        raise ConfigError(f"verl can't split sequences over {split} GPUs with attn_implementation=sdpa", hint=hint)
    if is_installed("flash_attn"):
        return []
    if chosen == "flash_attention_2":
        return [f"warning: flash-attn is not installed here, and verl's model needs it: set +{ATTENTION}=sdpa"]
    return [f"flash-attn is not installed here: the model's attention is attn_implementation={chosen}"]


def _check_correction(config: Any) -> list[str]:
    """Asynchronous modes sample with older weights than they train."""
    mode, correction = config.trainer.v1.trainer_mode, config.algorithm.rollout_correction
    has_logprobs = config.actor_rollout_ref.rollout.calculate_log_probs
    if mode == "sync" or (has_logprobs and (correction.rollout_is or correction.bypass_mode)):
        return []
    return [
        f"warning: trainer_mode={mode} trains on rollouts of older weights without a correction: set "
        f"algorithm.rollout_correction.rollout_is=token and {ROLLOUT}.calculate_log_probs=True"
    ]


@dataclass(frozen=True)
class RolloutConfig:
    """What verl's configuration says about rollouts."""

    settings: VerlSettings
    context: int
    """The most tokens of prompt and completion."""
    routes: bool
    """Whether verl replays expert routes."""
    seeded: bool
    """Whether sampling is seeded. In asynchronous modes time decides which weights sample, and verl continues a
    sequence that an update cut off with the seed it began with, so it would repeat its first draws."""

    @classmethod
    def read(cls, config: Any) -> RolloutConfig:
        """Read the whole configuration; refuses one that would get a group's statistics wrong."""
        rollout = config.actor_rollout_ref.rollout
        given = OmegaConf.select(config, CUSTOM)
        if given is None:
            hint = "write actor_rollout_ref.rollout.name=agentcore, and …rollout.agentcore.agent_runtime_arn=…"
            raise ConfigError("verl's configuration doesn't say which agent to run", hint=hint)
        settings = _read_settings(OmegaConf.to_container(given, resolve=True), rollout, config.data.seed)
        _check_algorithm(config, settings)
        if not settings.agent and settings.image is None:
            hint = "give agentcore.agent_runtime_arn, or agentcore.agent_name with agentcore.container_uri"
            raise ConfigError("verl's configuration names no agent to run", hint=hint)
        if _on_aws(settings) and (settings.store is None or settings.store.startswith((".", "/"))):
            hint = "give agentcore.s3_bucket: a bucket that the agent's role may write to"
            raise ConfigError("sessions on AWS can't store results in a folder", hint=hint)
        lengths = [rollout.prompt_length + rollout.response_length, rollout.max_model_len, settings.context_limit]
        context = min(length for length in lengths if length is not None)
        seeded = config.data.seed is not None and config.trainer.v1.trainer_mode == "sync"
        return cls(settings, context, bool(rollout.enable_rollout_routing_replay), seeded)

    def for_worker(self, number: int, count: int, agent: str, host: str) -> VerlSettings:
        """One worker's settings: its share of the limits, and its own gateway, on its node's address for AWS."""
        settings = self.settings
        given = settings.gateway_public_url
        ports = max(1, settings.gateway_workers)
        share = settings.concurrency if settings.concurrency == "auto" else max(1, settings.first_concurrency // count)
        port = settings.gateway_port + number * ports if settings.gateway_port else 0
        url = given and given.replace("{port}", str(port)).replace("{host}", host)
        return replace(
            settings,
            agent=agent,
            workers=1,
            concurrency=share,
            tps_limit=settings.tps_limit / count,
            gateway_host=host if settings.listens_on_node and _on_aws(settings) else settings.gateway_host,
            gateway_port=port,
            gateway_public_url=url,
        )


def _on_aws(settings: VerlSettings) -> bool:
    return runs_on_aws("arn:" if settings.image is not None else settings.agent)


def _read_settings(given: Any, rollout: Any, seed: int | None) -> VerlSettings:
    for name in given:
        if name in SETTINGS:
            raise ConfigError(f"agentcore.{name} is verl's own setting", hint=f"set {SETTINGS[name]}")
    verls = {"n": max(2, rollout.n), "temperature": float(rollout.temperature), "workers": rollout.agent.num_workers}
    return VerlSettings.from_mapping({**given, **verls, "seed": seed or 0})


def _check_algorithm(config: Any, settings: VerlSettings) -> None:
    if not config.trainer.use_v1:
        raise ConfigError("agents need verl's V1 trainer", hint="leave trainer.use_v1 unchanged")
    estimator = str(config.algorithm.adv_estimator)
    if settings.turn_credit is not None or estimator in TURN_CREDIT.values():
        _check_turn_credit(config, settings, estimator)
    elif estimator not in ESTIMATORS:
        hint = f"algorithm.adv_estimator={NEEDED['algorithm.adv_estimator']}"
        raise ConfigError(f"verl's {estimator} counts a rollout of several rows several times", hint=hint)
    if config.actor_rollout_ref.rollout.n < 2 and estimator == "grpo":
        raise ConfigError("GRPO compares the rollouts of a row", hint=f"{ROLLOUT}.n=8")


def _check_turn_credit(config: Any, settings: VerlSettings, estimator: str) -> None:
    """The estimator and the workers must agree, and nothing else may change what turns get."""
    (key, ours), *_ = TURN_CREDIT.items()
    if settings.turn_credit is None or estimator != ours:
        hint = f"set both {key}={ours} and agentcore.credit=turn, or neither"
        raise ConfigError(f"{key}={estimator} doesn't go with credit={settings.credit}", hint=hint)
    if config.algorithm.use_kl_in_reward:
        hint = "set actor_rollout_ref.actor.use_kl_loss=True instead"
        raise ConfigError("use_kl_in_reward would add the penalty to the advantages of turns", hint=hint)
    filtered = OmegaConf.select(config, "algorithm.filter_groups.enable")
    if filtered:
        hint = "set agentcore.dynamic_sampling=True instead"
        raise ConfigError("verl's filter_groups compares whole rollouts, and credit=turn compares turns", hint=hint)
