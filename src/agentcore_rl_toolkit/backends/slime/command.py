"""A run's settings as slime's flags, and the file that `--custom-config-path` names. It starts and writes nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError

if TYPE_CHECKING:
    from .backend import SlimeSettings

_HOME = "agentcore_rl_toolkit.backends.slime"
PLUGS = {
    "rollout": {"rollout-function-path": f"{_HOME}.rollout.generate_rollout"},
    "generate": {"custom-generate-function-path": f"{_HOME}.generate.generate"},
}
"""Where slime calls us: for all rollouts of a step, or for each sample of a loop of its own."""

SETTINGS = {
    "hf-checkpoint": "model (model_dir)",
    "num-rollout": "steps (num_rollout)",
    "rollout-batch-size": "rows_per_step",
    "n-samples-per-prompt": "n",
    "prompt-data": "data (data_path)",
    "eval-prompt-data": "eval_data",
    "eval-interval": "eval_every",
    "n-samples-per-eval-prompt": "eval_samples",
    "rollout-temperature": "temperature",
    "rollout-max-response-len": "max_tokens",
    "rollout-max-context-len": "context_limit",
    "custom-config-path": "custom_config",
    "lr": "learning_rate",
    "save": "output",
    "load": "output",
}
"""Flags that a setting of ours stands for, so that there is one place for each."""

_SLIMES_LOOP = {
    "dynamic-sampling-filter-path": "dynamic_sampling",
    "over-sampling-batch-size": "oversample",
    "partial-rollout": "",
    "rollout-sample-filter-path": "",
    "rollout-all-samples-process-path": "",
    "rollout-sample-hook-path": "",
}
"""Flags of slime's own rollout function, and what ours has in their place."""

_OF_ROLLOUTS = (
    *("agent", "store", "exp_id", "output", "sqs_url", "timeout", "tps_limit", "concurrency", "oversample"),
    *("gateway_host", "gateway_port", "gateway_url", "dynamic_sampling", "min_trained_ratio", "max_rollout_tokens"),
    *("max_batch_tokens", "max_staleness", "max_failures", "outage_seconds", "failures", "failed_reward"),
    *("side_calls", "allow", "memory_mb"),
)
"""Settings that the rollout process reads; all others reach it as slime's flags."""


def own_options(settings: SlimeSettings) -> dict[str, Any]:
    """The options that are meant for slime, by its names; those that a setting stands for are refused."""
    options = {name.removeprefix("--").replace("_", "-"): value for name, value in settings.options.items()}
    for name in options:
        if name in SETTINGS:
            raise ConfigError(f"--{name} has a setting of its own", hint=f"give {SETTINGS[name]}")
        if name in _SLIMES_LOOP and settings.plug == "rollout":
            instead = _SLIMES_LOOP[name]
            hint = (f"give {instead}, or " if instead else "") + "plug=generate, which leaves the loop to slime"
            raise ConfigError(f"--{name} belongs to slime's own rollout function, which is not used", hint=hint)
    if options.get("rollout-top-p", 1) != 1:
        hint = "slime wants the tokens of every nucleus, which no gateway records"
        raise ConfigError("--rollout-top-p has to be 1", hint=hint)
    return options


def flags(settings: SlimeSettings, data: str, eval_data: str | None, config: str) -> dict[str, Any]:
    """All flags but the model's own, by name; those of `options` win."""
    rollouts = settings.rows_per_step * settings.n
    options = own_options(settings)
    told: dict[str, Any] = {
        **_sizes(settings),
        **_checkpoints(settings),
        "prompt-data": data,
        "input-key": "prompt",
        "metadata-key": "metadata",
        "rollout-shuffle": True,
        "rollout-seed": settings.seed,
        "seed": settings.seed + 1,  # Megatron wants a positive one
        "num-rollout": settings.steps,
        "rollout-batch-size": settings.rows_per_step,
        "n-samples-per-prompt": settings.n,
        "global-batch-size": None if "num-steps-per-rollout" in options else rollouts,
        "rollout-temperature": settings.temperature,
        "rollout-max-response-len": settings.max_tokens,
        "rollout-max-context-len": settings.context_limit,
        **PLUGS[settings.plug],
        "custom-reward-post-process-path": f"{_HOME}.rewards.post_process",
        "custom-config-path": config,
        **_evaluation(settings, eval_data),
        **_training(settings),
    }
    return {name: value for name, value in (told | options).items() if value is not None and value is not False}


def rendered(told: Mapping[str, Any]) -> list[str]:
    """Flags as words of a command.

    >>> rendered({"colocate": True, "lr": 1e-06, "rollout-stop": ["a", "b"]})
    ['--colocate', '--lr', '1e-06', '--rollout-stop', 'a', 'b']
    """
    words: list[str] = []
    for name, value in told.items():
        words.append(f"--{name}")
        if isinstance(value, (list, tuple)):
            words += [str(one) for one in value]
        elif value is not True:
            words.append(json.dumps(value) if isinstance(value, Mapping) else str(value))
    return words


def custom_config(settings: SlimeSettings) -> dict[str, Any]:
    """What slime lays on its arguments: the section `agentcore`, and further keys for functions of one's own."""
    if "agentcore" in settings.custom_config:
        raise ConfigError("custom_config can't have a section agentcore", hint="give its keys as settings")
    known = dataclasses.asdict(settings) | {"output": str(settings.folder.resolve())}
    for name in ("agent", "store"):  # Ray's workers stand elsewhere
        if known[name] and (known[name].startswith(".") or Path(known[name]).exists()):
            known[name] = str(Path(known[name]).resolve())
    section = {name: known[name] for name in _OF_ROLLOUTS if known[name] not in (None, {}, ())}
    return {**settings.custom_config, "agentcore": section}


def _sizes(settings: SlimeSettings) -> dict[str, Any]:
    return {
        "actor-num-nodes": settings.nodes,
        "actor-num-gpus-per-node": settings.gpus,
        "num-gpus-per-node": settings.gpus,
        "colocate": settings.rollout_gpus is None,
        "rollout-num-gpus": settings.rollout_gpus,
    }


def _checkpoints(settings: SlimeSettings) -> dict[str, Any]:
    place = str((settings.folder / "checkpoints").resolve())
    return {
        "hf-checkpoint": str(Path(settings.model).resolve()),
        "ref-load": str(Path(settings.ref_load or settings.model).resolve()),
        "load": place,
        "save": place,
        "save-interval": settings.save_every,
    }


def _evaluation(settings: SlimeSettings, eval_data: str | None) -> dict[str, Any]:
    if eval_data is None:
        return {}
    return {
        "eval-prompt-data": ["held-out", eval_data],
        "eval-interval": settings.eval_every or settings.steps,
        "n-samples-per-eval-prompt": settings.eval_samples,
    }


def _training(settings: SlimeSettings) -> dict[str, Any]:
    return {
        "advantage-estimator": "grpo",
        "eps-clip": 0.2,
        "eps-clip-high": 0.28,
        "use-tis": True,
        "optimizer": "adam",
        "lr": settings.learning_rate,
        "lr-decay-style": "constant",
        "weight-decay": 0.1,
        "adam-beta1": 0.9,
        "adam-beta2": 0.98,
        "use-dynamic-batch-size": True,
        "max-tokens-per-gpu": settings.max_tokens_per_gpu,
        "balance-data": True,
        "recompute-granularity": "full",
        "recompute-method": "uniform",
        "recompute-num-layers": 1,
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
        "accumulate-allreduce-grads-in-fp32": True,
        "attention-softmax-in-fp32": True,
    }
