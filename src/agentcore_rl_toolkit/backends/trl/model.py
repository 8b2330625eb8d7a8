"""The policy: a Transformers model, its tokenizer and its adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from ...engine.checkpoints import resolve_model
from ...errors import ConfigError
from .backend import TrlSettings


def load(settings: TrlSettings) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    place = resolve_model(settings.model)
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).to(device)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model {settings.model!r} can't be loaded: {error}") from error
    if settings.chat_template is not None:
        tokenizer.chat_template = Path(settings.chat_template).read_text()
    if tokenizer.chat_template is None:
        raise ConfigError(f"{settings.model} has no chat template", hint="give one with chat_template")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def knows_tools(tokenizer: Any) -> bool:
    """Whether the chat template tells the model which tools there are."""
    function = {"name": "probe_of_tools", "description": "", "parameters": {"type": "object", "properties": {}}}
    try:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "hi"}], tools=[{"type": "function", "function": function}], tokenize=False
        )
    except Exception:  # whatever a template does
        return False
    return "probe_of_tools" in text


def adapter(settings: TrlSettings) -> Any:
    """The adapter to train, None if all weights are."""
    if not settings.lora_rank:
        return None
    try:
        from peft import LoraConfig
    except ImportError:
        raise ConfigError("an adapter needs peft", hint="pip install peft") from None
    return LoraConfig(
        r=settings.lora_rank, lora_alpha=2 * settings.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
