"""The model: one forward pass, without gradients and without dropout.

The module may be a trainer's. So the runner copies no weight, avoids inference mode (autograd can't use tensors made
there, and some models cache such tensors), and restores the training flags whenever the decoder is idle.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.cache_utils import Cache

from ...errors import ConfigError
from ..checkpoints import is_adapter
from .kv_cache import attention_layers

_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def load(model: str | Path, device: str | None, dtype: torch.dtype | None) -> nn.Module:
    """Load a model from a folder or the hub; an adapter's folder with its base model, merged."""
    try:
        if is_adapter(model):
            loaded = _load_merged(str(model), dtype)
        else:
            loaded = AutoModelForCausalLM.from_pretrained(str(model), dtype=dtype or "auto")
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't load the model {model}: {error}") from error
    module: nn.Module = loaded.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return module.eval()


def _load_merged(adapter: str, dtype: torch.dtype | None) -> Any:
    try:
        from peft import AutoPeftModelForCausalLM
    except ImportError:
        raise ConfigError(f"{adapter} is an adapter, which needs peft", hint="pip install peft") from None
    return AutoPeftModelForCausalLM.from_pretrained(adapter, dtype=dtype or "auto").merge_and_unload()


def out_of_memory(error: BaseException) -> bool:
    """PyTorch reports some of these as plain runtime errors, known only by their text."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)


class ModelRunner:
    def __init__(self, model: nn.Module, *, autocast: torch.dtype | None = None, own_stream: bool = False) -> None:
        if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
            raise ConfigError("prompt and prefix tuning put tokens before the prompt, which this engine can't follow")
        self.model = model
        self.base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        config = self.base.config.get_text_config(decoder=True)
        self.layers, self.has_sliding_window = attention_layers(config)
        self.device: torch.device = self.base.get_input_embeddings().weight.device
        self.vocab_size: int = self.base.get_input_embeddings().weight.shape[0]
        self.context_length: int | None = getattr(config, "max_position_embeddings", None)
        self.takes_4d_mask = config._attn_implementation == "sdpa" and not self.has_sliding_window
        self._last_only = "logits_to_keep" in inspect.signature(self.base.forward).parameters
        self.autocast, self._own_stream = autocast, own_stream
        self._was_training: list[nn.Module] = []

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a turn, by the model's own settings."""
        ids: set[int] = set()
        for config in (self.base.config, getattr(self.base, "generation_config", None)):
            value = getattr(config, "eos_token_id", None)
            ids.update([value] if isinstance(value, int) else value or ())
        return frozenset(ids)

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Work on its own stream on a GPU, if it was asked for; its small passes go before large ones."""
        if not self._own_stream or self.device.type != "cuda":
            yield
            return
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(torch.cuda.Stream(self.device, priority=-1)):
            yield

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache) -> Tensor:
        """The logits after the last id of each row."""
        self._disable_dropout()
        keep = {"logits_to_keep": 1} if self._last_only else {}
        cast = contextlib.nullcontext() if self.autocast is None else torch.autocast(ids.device.type, self.autocast)
        with torch.no_grad(), cast:
            output = self.model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                return_dict=True,
                **keep,
            )
            logits: Tensor = output.logits[:, -1].to(self.device)
            return logits

    def _disable_dropout(self) -> None:
        """Clear the training flags directly, since `train()` of a wrapper may do more."""
        if self.model.training or self.base.training:
            self._was_training += [module for module in self.model.modules() if module.training]
            for module in self._was_training:
                module.training = False

    def restore_training(self) -> None:
        for module in self._was_training:
            module.training = True
        self._was_training.clear()
