"""A run's settings as slime's flags and its custom configuration, and the other names that settings may have. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...rollout.signal.rescore import absolute
from ..settings import RolloutSettings
from .rewards import ADVANTAGES

if TYPE_CHECKING:
    from .backend import SlimeSettings

_PACKAGE = "agentcore_rl_toolkit.backends.slime"
HOOKS = {
    "rollout": {"rollout-function-path": f"{_PACKAGE}.rollout.generate_rollout"},
    "generate": {"custom-generate-function-path": f"{_PACKAGE}.generate.generate"},
}
"""Where slime calls us: for all rollouts of a step, or for each sample of its own loop."""

_SAME_VALUE = {
    "hf-checkpoint": "model",
    "num-rollout": "steps",
    "rollout-batch-size": "rows_per_step",
    "n-samples-per-prompt": "n",
    "prompt-data": "data",
    "eval-interval": "eval_every",
    "n-samples-per-eval-prompt": "eval_samples",
    "rollout-temperature": "temperature",
    "rollout-max-response-len": "max_tokens",
    "rollout-max-context-len": "context_limit",
    "lr": "learning_rate",
}
_FROM_SETTING = {"eval-prompt-data": "eval_data", "custom-config-path": "custom_config", "save": "output"}
SETTINGS = _SAME_VALUE | _FROM_SETTING | {"load": "output"}
"""Flags that a setting stands for. Options may not give them, so each has one place."""

ALIASES = {flag.replace("-", "_"): name for flag, name in _SAME_VALUE.items()} | {
    "acr_timeout": "timeout",
    "acr_tps_limit": "tps_limit",
    "max_concurrent": "concurrency",
    "num_gpus": "gpus",
}
"""Other names of settings: slime's flags, and the keywords of the first toolkit's `SlimeRunner`."""

_FLAG_KEYWORDS = {
    "rollout_gpus_per_engine": "rollout-num-gpus-per-engine",
    "tp_size": "tensor-model-parallel-size",
} | {
    name: name.replace("_", "-")
    for name in (
        *("adam_beta2", "eps_clip", "eps_clip_high", "wandb_group", "wandb_project", "weight_decay"),
        *("sglang_context_length", "sglang_data_parallel_size", "sglang_mem_fraction_static"),
        *("sglang_reasoning_parser", "sglang_tool_call_parser"),
    )
}
"""Keywords of the first toolkit's `SlimeRunner` that stand for a flag of slime."""

_REMOVED = {
    "cumulative_token_mode": "the gateway always continues from the exact tokens of the previous turn",
    "cuda_home": "set CUDA_HOME and LD_LIBRARY_PATH in the environment",
    "gateway_log_level": "the gateway logs with the run",
    "max_pool_connections": "concurrency decides the number of connections",
    "model_id": "sessions get the model's own name",
    "renderer_family": "the model decides the gateway's renderer",
    "reward_postprocessing": "rewards become advantages by group; give options custom-reward-post-process-path",
}
"""Keywords of the first toolkit's `SlimeRunner` that have no effect here, with the reason. They are refused."""

_SLIMES_LOOP = {
    "dynamic-sampling-filter-path": "dynamic_sampling",
    "over-sampling-batch-size": "oversample",
    "partial-rollout": "",
    "rollout-sample-filter-path": "",
    "rollout-all-samples-process-path": "",
    "rollout-sample-hook-path": "",
}
"""Flags of slime's own rollout function, and the settings that replace them."""

_ONE_ADVANTAGE = ("custom-advantage-function-path", "normalize-advantages", "custom-reward-post-process-path")
"""Flags that make other advantages than those of turns."""

_NOT_FOR_ROLLOUTS = {*SETTINGS.values(), "seed", "options"} - {"output"}


def flag_name(option: str) -> str:
    """An option's name as slime writes it: `--use_tis` is `use-tis`."""
    return option.removeprefix("--").replace("_", "-")


def flags(settings: SlimeSettings, config: Path) -> dict[str, Any]:
    """All flags except the model's own, by name; `options` win. `config` is the path of the custom configuration."""
    options = _slime_options(settings)
    checkpoints = str((settings.folder / "checkpoints").resolve())
    ours: dict[str, Any] = {flag: getattr(settings, name) for flag, name in _SAME_VALUE.items()} | {
        "actor-num-nodes": settings.nodes,
        "actor-num-gpus-per-node": settings.gpus,
        "num-gpus-per-node": settings.gpus,
        "colocate": settings.rollout_gpus is None,
        "rollout-num-gpus": settings.rollout_gpus,
        "hf-checkpoint": str(Path(settings.model).resolve()),
        "ref-load": str(Path(settings.ref_load or settings.model).resolve()),
        "load": checkpoints,
        "save": checkpoints,
        "save-interval": settings.save_every,
        "prompt-data": settings.data_file,
        "input-key": "prompt",
        "metadata-key": "metadata",
        "rollout-shuffle": True,
        "rollout-seed": settings.seed,
        "seed": settings.seed + 1,  # Megatron wants a positive one
        "global-batch-size": None if "num-steps-per-rollout" in options else settings.rows_per_step * settings.n,
        **HOOKS[settings.hook],
        "custom-reward-post-process-path": f"{_PACKAGE}.rewards.post_process",
        "custom-config-path": config,
        "eval-prompt-data": ["held-out", settings.eval_file] if settings.eval_data else None,
        "eval-interval": (settings.eval_every or settings.steps) if settings.eval_data else None,
        "n-samples-per-eval-prompt": settings.eval_samples if settings.eval_data else None,
        "max-tokens-per-gpu": settings.max_tokens_per_gpu,
        "custom-advantage-function-path": ADVANTAGES if settings.turn_credit is not None else None,
        **_TRAINING,
    }
    return {name: value for name, value in (ours | options).items() if value is not None and value is not False}


_TRAINING = {
    "advantage-estimator": "grpo",
    "eps-clip": 0.2,
    "eps-clip-high": 0.28,
    "use-tis": True,
    "optimizer": "adam",
    "lr-decay-style": "constant",
    "weight-decay": 0.1,
    "adam-beta1": 0.9,
    "adam-beta2": 0.98,
    "use-dynamic-batch-size": True,
    "balance-data": True,
    "recompute-granularity": "full",
    "recompute-method": "uniform",
    "recompute-num-layers": 1,
    "attention-dropout": 0.0,
    "hidden-dropout": 0.0,
    "accumulate-allreduce-grads-in-fp32": True,
    "attention-softmax-in-fp32": True,
}


def write_flags(flags: Mapping[str, Any]) -> list[str]:
    """Flags as words of a command.

    >>> write_flags({"colocate": True, "lr": 1e-06, "rollout-stop": ["a", "b"]})
    ['--colocate', '--lr', '1e-06', '--rollout-stop', 'a', 'b']
    """
    words: list[str] = []
    for name, value in flags.items():
        words.append(f"--{name}")
        if isinstance(value, (list, tuple)):
            words += [str(one) for one in value]
        elif value is not True:
            words.append(json.dumps(value) if isinstance(value, Mapping) else str(value))
    return words


def read_flags(words: Any) -> dict[str, Any]:
    """Flags by name, from words of a command.

    >>> read_flags(["--colocate", "--lr-decay-style", "constant", "--rollout-stop=a"])
    {'colocate': True, 'lr-decay-style': 'constant', 'rollout-stop': 'a'}
    """
    if not isinstance(words, (list, tuple)):
        raise ConfigError(f"extra_flags must be a list, not {words!r}", hint='write ["--flag", "value"]')
    found: dict[str, list[str]] = {}
    for word in map(str, words):
        if word.startswith("--"):
            name, separator, value = word.removeprefix("--").partition("=")
            found[name] = values = [value] if separator else []
        elif not found:
            raise ConfigError(f"extra_flags {words} doesn't start with a flag", hint="flags start with --")
        else:
            values.append(word)
    return {name: True if not values else values[0] if len(values) == 1 else values for name, values in found.items()}


def move_flags_to_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose keywords for slime's flags are moved to `options`; refuses keywords without an effect."""
    kept = {name: value for name, value in values.items() if name not in _FLAG_KEYWORDS and name != "extra_flags"}
    for name in kept:
        if name in _REMOVED:
            raise ConfigError(f"the setting {name} was removed", hint=f"leave it out: {_REMOVED[name]}")
    moved = {_FLAG_KEYWORDS[name]: value for name, value in values.items() if name in _FLAG_KEYWORDS}
    if moved.get("wandb-project"):
        moved = {"use-wandb": True, **moved}
    moved |= read_flags(values.get("extra_flags") or [])
    options = kept.get("options") or {}
    for name in map(flag_name, map(str, options)):
        if name in moved:
            raise ConfigError(f"{name} is given twice", hint="give it only in options")
    return kept | ({"options": {**moved, **options}} if moved else {})


def custom_config(settings: SlimeSettings) -> dict[str, Any]:
    """The file that slime adds to its arguments: our settings in the section `agentcore`, and the user's own keys."""
    if "agentcore" in settings.custom_config:
        raise ConfigError("custom_config can't have a section agentcore", hint="give its keys as settings")
    values = dataclasses.asdict(settings) | {"output": str(settings.folder.resolve()), "env": settings.hidden_env}
    for name in ("agent", "store"):  # Ray's workers have another working directory
        if values[name] and (values[name].startswith(".") or Path(values[name]).exists()):
            values[name] = str(Path(values[name]).resolve())
    if settings.reward is not None:
        values["reward"] = absolute(settings.reward)
    values["guards_from"] = [str(Path(path).resolve()) for path in settings.guards_from]
    names = [spec.name for spec in dataclasses.fields(RolloutSettings) if spec.name not in _NOT_FOR_ROLLOUTS]
    names += ["guard", "guards_from"]
    section = {name: values[name] for name in names if values[name] not in (None, {}, (), [])}
    return {**settings.custom_config, "agentcore": section}


def _slime_options(settings: SlimeSettings) -> dict[str, Any]:
    """The user's options, by slime's names; refuses those that a setting stands for."""
    options = {flag_name(name): value for name, value in settings.options.items()}
    for name in options:
        if name in SETTINGS:
            raise ConfigError(f"--{name} has its own setting", hint=f"give {SETTINGS[name]}")
        if name in _SLIMES_LOOP and settings.hook == "rollout":
            instead = _SLIMES_LOOP[name]
            hint = (f"give {instead}, or " if instead else "") + "hook=generate, which keeps slime's own loop"
            raise ConfigError(f"--{name} belongs to slime's own rollout function, which this run replaces", hint=hint)
    for name in _ONE_ADVANTAGE if settings.turn_credit is not None else ():
        if options.get(name):
            raise ConfigError(f"--{name} would replace the advantages of turns", hint="leave it out, or credit=rollout")
    if options.get("rollout-top-p", 1) != 1:
        hint = "slime needs the tokens of every nucleus, which the gateway doesn't record"
        raise ConfigError("--rollout-top-p must be 1", hint=hint)
    return options
