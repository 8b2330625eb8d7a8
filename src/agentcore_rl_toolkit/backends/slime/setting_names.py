"""Other names of a run's settings: slime's own, and those of the first toolkit's `SlimeRunner`. Pure.

What has a setting here is that setting; what is a flag of slime's becomes one of `options`; what has no use any more is
refused with the reason, because a line that does nothing would be worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError

OTHER_NAMES = {
    "acr_timeout": "timeout",
    "acr_tps_limit": "tps_limit",
    "eval_interval": "eval_every",
    "hf_checkpoint": "model",
    "lr": "learning_rate",
    "max_concurrent": "concurrency",
    "n_samples_per_eval_prompt": "eval_samples",
    "n_samples_per_prompt": "n",
    "num_gpus": "gpus",
    "prompt_data": "data",
    "rollout_batch_size": "rows_per_step",
    "rollout_max_context_len": "context_limit",
    "rollout_max_response_len": "max_tokens",
    "rollout_temperature": "temperature",
}
"""Names that stand for a setting of ours."""

FLAGS = {
    "adam_beta2": "adam-beta2",
    "eps_clip": "eps-clip",
    "eps_clip_high": "eps-clip-high",
    "rollout_gpus_per_engine": "rollout-num-gpus-per-engine",
    "sglang_context_length": "sglang-context-length",
    "sglang_data_parallel_size": "sglang-data-parallel-size",
    "sglang_mem_fraction_static": "sglang-mem-fraction-static",
    "sglang_reasoning_parser": "sglang-reasoning-parser",
    "sglang_tool_call_parser": "sglang-tool-call-parser",
    "tp_size": "tensor-model-parallel-size",
    "wandb_group": "wandb-group",
    "wandb_project": "wandb-project",
    "weight_decay": "weight-decay",
}
"""Names that stand for a flag of slime's."""

_GONE = {
    "cumulative_token_mode": "the gateway always goes on from the exact tokens of the turn before",
    "cuda_home": "set CUDA_HOME and LD_LIBRARY_PATH in the environment",
    "gateway_log_level": "the gateway logs with the run",
    "max_pool_connections": "connections follow from concurrency",
    "model_id": "sessions are told the model's own name",
    "renderer_family": "the gateway finds the renderer from the model",
    "reward_postprocessing": "rewards become advantages by group; give options custom-reward-post-process-path",
}


def understood(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, with what is meant for slime among their `options`."""
    kept = {name: value for name, value in values.items() if name not in FLAGS and name != "extra_flags"}
    for name in kept:
        if name in _GONE:
            raise ConfigError(f"{name} is no setting any more", hint=f"leave it out: {_GONE[name]}")
    flags = {FLAGS[name]: value for name, value in values.items() if name in FLAGS}
    if flags.get("wandb-project"):
        flags = {"use-wandb": True, **flags}
    flags |= _parsed(values.get("extra_flags") or [])
    options = kept.get("options") or {}
    given = {str(name).removeprefix("--").replace("_", "-") for name in options}
    for name in flags:
        if name in given:
            raise ConfigError(f"{name} is given twice", hint="give it among options")
    return kept | ({"options": {**flags, **options}} if flags else {})


def _parsed(words: Any) -> dict[str, Any]:
    """Flags in words of a command, by name.

    >>> _parsed(["--colocate", "--lr-decay-style", "constant", "--rollout-stop=a"])
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
