"""A run's settings as TRL takes them."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from trl import GRPOConfig

from ...errors import ConfigError
from .backend import TrlSettings

_DEFAULTS = {
    "lr_scheduler_type": "constant",
    "beta": 0.0,
    "log_completions": False,
    "ddp_find_unused_parameters": False,
    "dataloader_pin_memory": torch.cuda.is_available(),  # elsewhere PyTorch warns of it
    "vllm_importance_sampling_correction": False,  # the ratio is taken to the sampler's logprobs in the first place
}


ROW_MEANS = frozenset({"grpo", "sapo"})
"""Losses that average over a row's tokens and then over rows: the rows of a rollout share its weight."""
ROW_SUMS = frozenset({"dr_grpo", "luspo"})
"""Losses that add up tokens and divide by the number of rows, which must be the number of trained rollouts.

All others average over tokens, where every token counts once anyhow.
"""


def trl_config(settings: TrlSettings, processes: int = 1) -> GRPOConfig:
    """TRL's own configuration for this run."""
    rollouts = settings.rows_per_step * settings.n
    if rollouts % processes or (rollouts // processes) % settings.n:
        raise ConfigError(f"rows_per_step={settings.rows_per_step} can't be shared by {processes} processes")
    local = rollouts // processes
    batch = next(size for size in range(min(settings.batch_size, local), 0, -1) if local % size == 0)
    ours: dict[str, Any] = {
        "output_dir": str(settings.folder / "checkpoints"),
        "max_steps": settings.steps,
        "num_generations": settings.n,
        "per_device_train_batch_size": batch,
        "steps_per_generation": local // batch,
        "gradient_accumulation_steps": local // batch,
        "learning_rate": settings.learning_rate,
        "loss_type": settings.loss,
        "temperature": settings.temperature,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "bf16": settings.dtype == "bfloat16",
        "fp16": False,
        "use_cpu": settings.device == "cpu",
        "seed": settings.seed,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": settings.save_every,
        "save_total_limit": settings.keep,
        "report_to": [] if settings.report_to == "none" else settings.report_to.split(","),
        "remove_unused_columns": False,
        "disable_tqdm": True,
    }
    if settings.vllm is not None:
        if importlib.util.find_spec("vllm") is None:
            hint = "pip install vllm; for a server too, because TRL sends it weights through it"
            raise ConfigError("sampling with vLLM needs it installed here", hint=hint)
        ours |= {"use_vllm": True, "vllm_mode": "colocate" if settings.vllm == "colocate" else "server"}
        if settings.vllm != "colocate":
            ours["vllm_server_base_url"] = settings.vllm
        ours["vllm_enable_sleep_mode"] = False  # sessions may ask at any time
    for name in sorted(ours.keys() & settings.options.keys()):
        raise ConfigError(f"options.{name} can't be given: it follows from the run's own settings")
    try:
        config = GRPOConfig(**_DEFAULTS | dict(settings.options), **ours)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"TRL refuses its settings: {error}", hint="options are fields of GRPOConfig") from error
    check_config(config)
    return config


def check_config(config: GRPOConfig) -> None:
    """Refuse what would train on something else than the rollouts, or never start."""
    if config.use_vllm and config.vllm_importance_sampling_correction:
        raise ConfigError(
            "vllm_importance_sampling_correction=True would correct for the sampler twice",
            hint="leave it out: the policy's ratio is taken to the sampler's logprobs already",
        )
    if config.use_vllm and config.vllm_mode == "colocate" and config.vllm_tensor_parallel_size > 1:
        raise ConfigError(
            f"vllm_tensor_parallel_size={config.vllm_tensor_parallel_size} can't be used with vllm=colocate: the "
            "processes that share a model would wait for each other forever, as each one samples for its own sessions",
            hint="set it to 1, or give the URL of a vLLM server that spreads the model over several GPUs",
        )
    if config.beta and config.loss_type in ROW_MEANS | ROW_SUMS:
        raise ConfigError(
            f"beta={config.beta:g} can't be used with loss={config.loss_type}: TRL would weigh the KL term by rows "
            "instead of rollouts",
            hint="set loss=dapo, which weighs every token alike, or beta=0",
        )
