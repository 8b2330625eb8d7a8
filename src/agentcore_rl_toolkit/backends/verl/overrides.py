"""Hydra overrides of stock verl: for a run's settings, and for the spelling `…rollout.name=agentcore`.

verl's rollout configuration has one free table, `rollout.custom`; ours is `rollout.custom.agentcore`. Everything else
is verl's own keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.checkpoints import resolve_model
from ...rollout.signal.rescore import absolute
from ...rows import absolute_source
from ..launch import hydra_value, override_key, write_option
from .environment import UNITS, attention_overrides, core_overrides

if TYPE_CHECKING:
    from .backend import VerlSettings

ROLLOUT = "actor_rollout_ref.rollout"
CUSTOM = f"{ROLLOUT}.custom.agentcore"
SPELLING = f"{ROLLOUT}.agentcore"
NAME = f"{ROLLOUT}.name"
MANAGER = f"{ROLLOUT}.agent.agent_loop_manager_class"
LOCAL_DIR = "trainer.default_local_dir"
DEFAULT_ENGINE = "vllm"
"""The one of verl's servers that samples by default."""

NEEDED = {
    MANAGER: "agentcore_rl_toolkit.backends.verl.manager.AgentCoreManager",
    f"{ROLLOUT}.agent.num_workers": 1,
    "data.custom_cls.path": "pkg://agentcore_rl_toolkit.backends.verl.data",
    "data.custom_cls.name": "JsonlRows",
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.actor.shuffle": True,
    "trainer.v1.sampler.sync_refill_failed_groups": True,
    "trainer.v1.sampler.custom_sampler.path": "pkg://agentcore_rl_toolkit.backends.verl.manager",
    "trainer.v1.sampler.custom_sampler.name": "open_sampler",
    f"{ROLLOUT}.calculate_log_probs": True,
    "algorithm.rollout_correction.rollout_is": "token",
}
"""Overrides that agents' rollouts need, unless the user sets the keys.

`custom_sampler`: rollouts of several rows make more rows than configured; it keeps the number of optimizer steps.
`shuffle`: with several optimizer steps, verl's order would leave the last one the padding and the last few rows.

`rollout_is`: the sampler's probabilities differ from the trainer's, by rounding, and in asynchronous modes by updates.
verl weighs each token by their ratio, up to its `rollout_is_threshold`.
"""

TURN_CREDIT = {"algorithm.adv_estimator": "agentcore_turns"}
"""Overrides of `NEEDED` with credit=turn: our estimator, which takes the advantages that the workers computed."""

ADAPTER_KEYS = tuple(f"actor_rollout_ref.model.{name}" for name in ("lora_rank", "lora.rank", "lora_adapter_path"))
"""verl's keys that make it train an adapter."""

ADAPTER = {"actor_rollout_ref.model.lora.merge": True}
"""Overrides for training an adapter: the sampler gets merged weights, by the same path as full ones.

vLLM 0.24 can't load the adapter that verl 0.9.1 sends (`StopIteration`), and verl's asynchronous modes send none.
"""

SETTINGS = {
    "data": "data.train_files",
    "eval_data": "data.val_files",
    "model": "actor_rollout_ref.model.path",
    "steps": "trainer.total_training_steps",
    "rows_per_step": "data.train_batch_size",
    "n": f"{ROLLOUT}.n",
    "seed": "data.seed",
    "temperature": f"{ROLLOUT}.temperature",
    "eval_every": "trainer.test_freq",
    "save_every": "trainer.save_freq",
    "keep": "trainer.max_actor_ckpt_to_keep",
    "resume": "trainer.resume_mode",
    "eval_samples": f"{ROLLOUT}.val_kwargs.n",
    "gpus": "trainer.n_gpus_per_node",
    "nodes": "trainer.nnodes",
    "workers": f"{ROLLOUT}.agent.num_workers",
    "engine": NAME,
}
"""Settings that are keys of verl's own. The workers read all others from our table."""
_ENDLESS_EPOCHS = 1_000_000
"""verl also ends at `trainer.total_epochs`, 30 by default; with this many, `steps` alone ends a run."""


def run_overrides(settings: VerlSettings) -> list[str]:
    """verl's configuration for a run. `options` win, and their texts are Hydra's to parse."""
    given = [f"{override_key(name)}." for name in settings.options]  # a key, or the table that contains it
    known = {k: v for k, v in _verl_keys(settings).items() if not f"{override_key(k)}.".startswith(tuple(given))}
    ours = {f"{CUSTOM}.{name}": value for name, value in _worker_settings(settings).items()}
    return [*write_overrides(known | ours), *(write_option(key, value) for key, value in settings.options.items())]


def write_overrides(values: Mapping[str, Any]) -> list[str]:
    """Overrides for values by key. `++` adds our keys to verl's; Hydra refuses others that verl doesn't have.

    >>> write_overrides({"trainer.logger": ["console"], "+x.y": None, "data.train_files": "it's.jsonl"})
    ['trainer.logger=[console]', '+x.y=null', "data.train_files='it\\\\'s.jsonl'"]
    """
    added = (MANAGER, f"{CUSTOM}.")
    return [f"{'++' if key.startswith(added) else ''}{key}={hydra_value(value)}" for key, value in values.items()]


def trains_adapter(values: Mapping[str, Any]) -> bool:
    """Whether verl trains an adapter with these values by key."""
    return any(values.get(key) not in (None, "null", 0, "0", "") for key in ADAPTER_KEYS)


def translate(overrides: Sequence[str]) -> list[str]:
    """Rewrite overrides with `rollout.name=agentcore` for stock verl; others are returned unchanged.

    >>> translate(["actor_rollout_ref.rollout.name=agentcore", "actor_rollout_ref.rollout.agentcore.s3_bucket=b"])[-1]
    '++actor_rollout_ref.rollout.custom.agentcore.s3_bucket=b'
    """
    pairs = [(override_key(text), text.partition("=")[2]) for text in overrides]
    if (NAME, "agentcore") not in pairs:
        return list(overrides)
    engine = next((value for key, value in pairs if key == f"{SPELLING}.engine"), DEFAULT_ENGINE)
    given = {key for key, _ in pairs}
    for own in ("data.custom_cls", "trainer.v1.sampler.custom_sampler"):  # one of the user's own has its own name
        if f"{own}.path" in given:
            given.add(f"{own}.name")
    extra: dict[str, Any] = TURN_CREDIT if (f"{SPELLING}.credit", "turn") in pairs else {}
    if trains_adapter(dict(pairs)):
        extra = extra | ADAPTER
    needed = write_overrides({key: value for key, value in (NEEDED | extra).items() if key not in given})
    translated: list[str] = []
    for text, (key, value) in zip(overrides, pairs, strict=True):
        if (key, value) == (NAME, "agentcore"):
            translated += [f"{NAME}={engine}", *needed]  # here, because an option of Hydra's may follow the overrides
        elif key == SPELLING or key.startswith(f"{SPELLING}."):
            if key != f"{SPELLING}.engine":
                translated.append(f"++{CUSTOM}{key.removeprefix(SPELLING)}={value}")
        else:
            translated.append(text)
    return translated


def _verl_keys(settings: VerlSettings) -> dict[str, Any]:
    data = absolute_source(settings.data)
    units = settings.verl_value(UNITS)
    keys = {
        **NEEDED,
        **(TURN_CREDIT if settings.credit == "turn" else {}),
        **(ADAPTER if settings.trains_adapter else {}),
        **attention_overrides(),
        **core_overrides(settings.gpus, settings.nodes, units if isinstance(units, int) else None),
        **{key: getattr(settings, name) for name, key in SETTINGS.items()},
    }
    keys |= {
        "data.train_files": data,
        "data.val_files": absolute_source(settings.eval_data) if settings.eval_data else data,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.path": resolve_model(settings.model),
        "actor_rollout_ref.actor.ppo_mini_batch_size": settings.rows_per_step,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        "trainer.test_freq": (settings.eval_every or settings.steps) if settings.eval_data else -1,
        "trainer.val_before_train": settings.eval_data is not None,
        f"{ROLLOUT}.val_kwargs.do_sample": True,
        f"{ROLLOUT}.val_kwargs.temperature": settings.temperature,
        f"{ROLLOUT}.val_kwargs.top_p": 1.0,
        f"{ROLLOUT}.val_kwargs.top_k": -1,
        "trainer.total_epochs": _ENDLESS_EPOCHS,
        "trainer.resume_mode": "auto" if settings.resume else "disable",
        "trainer.max_critic_ckpt_to_keep": settings.keep,
        "actor_rollout_ref.actor.checkpoint.save_contents": [
            *("model", "optimizer", "extra"),
            *(() if settings.trains_adapter else ("hf_model",)),
        ],
        "trainer.project_name": "agentcore-rl",
        "trainer.experiment_name": settings.folder.name,
        "trainer.logger": ["console"],
        LOCAL_DIR: str(settings.checkpoints),
    }
    if settings.context_limit is not None:
        half = settings.context_limit // 2
        keys |= {"data.max_prompt_length": half, "data.max_response_length": settings.context_limit - half}
        keys["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] = max(16384, settings.context_limit)
    return keys


def _worker_settings(settings: VerlSettings) -> dict[str, Any]:
    """The settings that differ from their defaults and have no key of verl's own."""
    values: dict[str, Any] = {}
    for spec in dataclasses.fields(settings):
        value = getattr(settings, spec.name)
        if spec.name not in {"options", "guard", "guards_from", *SETTINGS} and value != spec.default and value != {}:
            values[spec.name] = value
    if settings.env:
        values["env"] = settings.hidden_env
    if settings.reward is not None:
        values["reward"] = absolute(settings.reward)
    if settings.agent and settings.image is None and not settings.agent.startswith("arn:"):
        values["agent"] = str(Path(settings.agent).resolve())  # workers may have another working directory
    return values | {"output": str(settings.folder.resolve())}
