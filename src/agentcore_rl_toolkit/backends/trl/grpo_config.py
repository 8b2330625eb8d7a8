"""A run's settings as TRL takes them: its configuration, the model with its tokenizer, and the adapter."""

from __future__ import annotations

import math
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import transformers
from trl import GRPOConfig

from ...engine.checkpoints import resolve_model
from ...engine.transformers.model_runner import load
from ...errors import ConfigError
from ...rollout.signal.credit import TurnCredit
from ..base import is_installed
from ..loop.mismatch import Truncation
from ..settings import MOST_RATIO
from .backend import SftSettings, TrlSettings

_DEFAULTS = {
    "lr_scheduler_type": "constant",
    "beta": 0.0,
    "log_completions": False,
    "ddp_find_unused_parameters": False,
    "dataloader_pin_memory": torch.cuda.is_available(),  # without a GPU PyTorch warns about it
    "vllm_importance_sampling_correction": False,  # the policy's ratio already uses the sampler's logprobs
}

ROW_MEANS = frozenset({"grpo", "sapo"})
"""Losses that average over a row's tokens and then over rows: the rows of a rollout share its weight."""
ROW_SUMS = frozenset({"dr_grpo", "luspo"})
"""Losses that sum tokens and divide by the number of rows, which must become the number of trained rollouts."""
MICRO_BATCH_MEANS = frozenset({"bnpo"})
"""Losses that average over the tokens of each micro-batch, and then over the micro-batches that have any.

All other losses average over the tokens of a step, where every token counts once anyway.
"""
WEIGHS_BY_CURVE = frozenset({"sapo", "vespo"})
"""Losses that weigh the ratio to the sampler by a bounded curve, and truncate nothing."""


def trl_config(settings: TrlSettings, processes: int = 1) -> GRPOConfig:
    """TRL's own configuration for this run."""
    rollouts = settings.rows_per_step * settings.n
    if rollouts % processes or (rollouts // processes) % settings.n:
        raise ConfigError(f"rows_per_step={settings.rows_per_step} can't be shared by {processes} processes")
    ours = shared_fields(settings, rollouts // processes)
    ours |= {
        "max_steps": settings.steps,
        "num_generations": settings.n,
        "steps_per_generation": ours["gradient_accumulation_steps"],
        "loss_type": settings.loss_name,
        "temperature": settings.temperature,
        "fp16": False,
        "report_to": [] if settings.report_to == "none" else settings.report_to.split(","),
        "remove_unused_columns": False,
    }
    if settings.vllm is not None:
        ours |= _vllm_fields(settings.vllm)
    config = make_config(GRPOConfig, settings, ours, _DEFAULTS | _truncation(settings))
    if settings.turn_credit is not None and settings.options.get("scale_rewards") not in (None, False, "none"):
        raise ConfigError(
            "scale_rewards has no effect on turns: dividing by a spread would bias them", hint="leave it out"
        )
    check_config(config, by_token(settings.turn_credit, settings.teacher))
    if settings.async_steps and config.num_iterations > 1:
        raise ConfigError(
            f"num_iterations={config.num_iterations} can't be used with async_steps: rollouts would become older than "
            "it says",
            hint="leave one of them out",
        )
    return config


def shared_fields(settings: TrlSettings | SftSettings, rows: int) -> dict[str, Any]:
    """The fields that all of TRL's configurations have, for an update with `rows` rows in each process."""
    batch = next(size for size in range(min(settings.batch_size, rows), 0, -1) if rows % size == 0)
    return {
        "output_dir": str(settings.folder / "checkpoints"),
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": rows // batch,
        "learning_rate": settings.learning_rate,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "bf16": settings.dtype == "bfloat16",
        "use_cpu": settings.device == "cpu",
        "seed": settings.seed,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": settings.save_every,
        "save_total_limit": settings.keep,
        "disable_tqdm": True,
    }


def make_config(kind: Any, settings: TrlSettings | SftSettings, ours: dict[str, Any], defaults: dict[str, Any]) -> Any:
    """TRL's configuration of a run: the user's options win over `defaults`, and may not be one of `ours`."""
    for name in sorted(ours.keys() & settings.options.keys()):
        raise ConfigError(f"options.{name} can't be given: a setting of the run decides it")
    try:
        return kind(**defaults | dict(settings.options), **ours)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"TRL refuses its settings: {error}", hint=f"options are fields of {kind.__name__}"
        ) from error


def _truncation(settings: TrlSettings) -> dict[str, Any]:
    """Where TRL truncates the policy's ratio to the sampler, which may be several updates behind.

    TRL's default for `cispo` is 0.2, which would be the weight of nearly every token.
    """
    if settings.loss_name == "cispo":
        return {"epsilon_high": MOST_RATIO}
    if not settings.async_steps or settings.loss_name in WEIGHS_BY_CURVE:
        return {}
    return {"delta": MOST_RATIO}


def loss_truncation(config: GRPOConfig) -> Truncation | None:
    """Where the loss truncates the ratio of a token to the sampler; None if it takes one ratio for a whole row."""
    if config.importance_sampling_level != "token":
        return None
    if config.loss_type in WEIGHS_BY_CURVE:
        return Truncation()
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    if config.loss_type == "cispo":
        return Truncation.symmetric(0.0, high)
    most_bad = math.inf if config.delta is None else config.delta
    return Truncation(most=1 + high, most_bad=most_bad, least_bad=1 - config.epsilon)


def _vllm_fields(vllm: str) -> dict[str, Any]:
    if not is_installed("vllm"):
        hint = "pip install vllm; TRL also needs it to send weights to a server"
        raise ConfigError("sampling with vLLM needs vllm, which is not installed here", hint=hint)
    fields = {"use_vllm": True, "vllm_enable_sleep_mode": False}  # sessions may sample at any time
    if vllm == "colocate":
        return fields | {"vllm_mode": "colocate"}
    return fields | {"vllm_mode": "server", "vllm_server_base_url": vllm}


def check_weight_transfer(settings: TrlSettings) -> None:
    """TRL sends weights to a server over NCCL, which needs GPUs."""
    to_server = settings.vllm not in (None, "colocate")
    if to_server and (settings.device == "cpu" or not torch.cuda.is_available()):
        hint = "set vllm=colocate, or leave it out"
        raise ConfigError("TRL sends weights to a vLLM server from a GPU, and this machine has none", hint=hint)
    if to_server and shares_only_gpu(settings.vllm or "", Path("/dev")):
        raise ConfigError(
            f"TRL sends weights to {settings.vllm} from one GPU to another, and this machine has only one",
            hint="set vllm=colocate, or run the server on a machine or a GPU of its own",
        )


def shares_only_gpu(url: str, devices: Path) -> bool:
    """Whether a server at this URL has to use the trainer's GPU; NCCL would wait for minutes, and then fail."""
    return len([*devices.glob("nvidia[0-9]*")]) == 1 and _is_this_machine(urlsplit(url).hostname or "")


def _is_this_machine(host: str) -> bool:
    """Whether a name or an address is one of this machine's: only those can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def by_token(credit: TurnCredit | None, teacher: object | None) -> str | None:
    """The setting that gives each token of a row its own advantage, if one does."""
    return "credit=turn weighs turns" if credit is not None else "a teacher weighs tokens" if teacher else None


def check_config(config: GRPOConfig, by_token: str | None = None) -> None:
    """Refuse a configuration that would not train on the rollouts as they are, or would never start.

    `by_token` says what gives each token its own advantage.
    """
    if config.use_vllm and config.vllm_importance_sampling_correction:
        raise ConfigError(
            "vllm_importance_sampling_correction=True would correct for the sampler twice",
            hint="leave it out: the policy's ratio already uses the sampler's logprobs",
        )
    if config.use_vllm and config.vllm_mode == "colocate" and config.vllm_tensor_parallel_size > 1:
        raise ConfigError(
            f"vllm_tensor_parallel_size={config.vllm_tensor_parallel_size} can't be used with vllm=colocate: the "
            "processes that share a model would wait for each other forever, because each one samples for its own "
            "sessions",
            hint="set it to 1, or give the URL of a vLLM server that spreads the model over several GPUs",
        )
    if config.beta and config.loss_type in ROW_MEANS | ROW_SUMS:
        raise ConfigError(
            f"beta={config.beta:g} can't be used with loss={config.loss_type}: TRL would weigh the KL term by rows "
            "instead of rollouts",
            hint="set loss=dapo, which weighs every token alike, or beta=0",
        )
    if by_token is not None:
        _check_tokens(config, by_token)


def _check_tokens(config: GRPOConfig, by_token: str) -> None:
    """Refuse settings that give all tokens of a row one advantage."""
    if config.importance_sampling_level != "token" or config.loss_type == "vespo":
        named = f"importance_sampling_level={config.importance_sampling_level} with loss={config.loss_type}"
        raise ConfigError(
            f"{named} weighs whole rows, and {by_token}", hint="leave them out, or set credit=rollout without a teacher"
        )
    if config.use_liger_kernel:
        raise ConfigError(f"Liger's loss takes one advantage per row, and {by_token}")


def load_policy(settings: TrlSettings | SftSettings) -> tuple[Any, Any]:
    """Load the model and its tokenizer; an adapter is merged into its base model, whose weights would not train."""
    path = resolve_model(settings.model)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokenizer of {settings.model!r} can't be loaded: {error}") from error
    model = load(path, settings.device, torch.float32).requires_grad_()  # peft freezes the base model
    if settings.chat_template is not None:
        tokenizer.chat_template = Path(settings.chat_template).read_text()
    if tokenizer.chat_template is None:
        raise ConfigError(f"{settings.model} has no chat template", hint="give one with chat_template")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def renders_tools(tokenizer: Any) -> bool:
    """Whether the chat template shows the model its tools."""
    function = {"name": "probe_of_tools", "description": "", "parameters": {"type": "object", "properties": {}}}
    try:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "hi"}], tools=[{"type": "function", "function": function}], tokenize=False
        )
    except Exception:  # a template may raise anything
        return False
    return "probe_of_tools" in text


def adapter_config(settings: TrlSettings | SftSettings) -> Any:
    """The LoRA adapter to train; None if all weights are trained."""
    if not settings.lora_rank:
        return None
    try:
        from peft import LoraConfig
    except ImportError:
        raise ConfigError("an adapter needs peft", hint="pip install peft") from None
    return LoraConfig(
        r=settings.lora_rank, lora_alpha=2 * settings.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
