"""The model: one forward pass, without gradients and without dropout, and which experts its tokens went through.

The module may be a trainer's. So no copy of a weight is made, nothing is run in inference mode (tensors made there
can't be used in autograd, and some models cache such tensors), and the training flags are put back whenever the decoder
rests.
"""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.cache_utils import Cache

from ...errors import ConfigError
from ..checkpoints import is_adapter
from .kv_cache import attention_layers

TOO_BIG = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def load(model: str | Path, device: str | None, dtype: torch.dtype | None) -> nn.Module:
    """Load a model from a folder or the hub; an adapter's folder with its base model, merged."""
    try:
        if is_adapter(model):
            loaded = _merged(str(model), dtype)
        else:
            loaded = AutoModelForCausalLM.from_pretrained(str(model), dtype=dtype or "auto")
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't load the model {model}: {error}") from error
    module: nn.Module = loaded.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return module.eval()


def _merged(adapter: str, dtype: torch.dtype | None) -> Any:
    try:
        from peft import AutoPeftModelForCausalLM
    except ImportError:
        raise ConfigError(f"{adapter} is an adapter, which needs peft", hint="pip install peft") from None
    return AutoPeftModelForCausalLM.from_pretrained(adapter, dtype=dtype or "auto").merge_and_unload()


def out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in TOO_BIG)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Onto the device, without waiting for what it is doing."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def as_bytes(routes: Tensor) -> bytes:
    data: bytes = routes.contiguous().numpy().tobytes()
    return data


class Runner:
    """A causal language model and what the engine has to know of it."""

    def __init__(self, model: nn.Module, *, autocast: torch.dtype | None = None, routes: bool = False) -> None:
        if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
            raise ConfigError("prompt and prefix tuning put tokens before the prompt, which this engine can't follow")
        self.model = model
        self.base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        config = self.config = self.base.config.get_text_config(decoder=True)
        self.layers, self.slides = attention_layers(config)
        self.device: torch.device = self.base.get_input_embeddings().weight.device
        self.vocab_size: int = self.base.get_input_embeddings().weight.shape[0]
        self.context_length: int | None = getattr(config, "max_position_embeddings", None)
        # A mask made here saves making one in the model, which would read it back from the device.
        self.whole_mask = config._attn_implementation == "sdpa" and not self.slides
        self.rope_moves = any(kind in str(getattr(config, "rope_parameters", None)) for kind in ("dynamic", "longrope"))
        """Whether frequencies depend on the longest of a pass, which models remember."""
        self._last_only = "logits_to_keep" in inspect.signature(self.base.forward).parameters
        self.autocast = autocast
        self._resting: list[nn.Module] = []
        self.experts = _Experts(self.base) if routes else None

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a turn, by the model's own settings."""
        ids: set[int] = set()
        for config in (self.base.config, getattr(self.base, "generation_config", None)):
            value = getattr(config, "eos_token_id", None)
            ids.update([value] if isinstance(value, int) else value or ())
        return frozenset(ids)

    @property
    def route_shape(self) -> tuple[int, int]:
        """Numbers a token, and bytes a number; nothing if routes are not asked for."""
        return (0, 0) if self.experts is None else (self.experts.width, self.experts.itemsize)

    @property
    def route_bytes(self) -> int:
        width, itemsize = self.route_shape
        return width * itemsize

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache
    ) -> tuple[Tensor, Tensor | None]:
        """The logits after the last id of each row, and the routes of all ids."""
        self._quiet()
        keep = {"logits_to_keep": 1} if self._last_only else {}
        cast = contextlib.nullcontext() if self.autocast is None else torch.autocast(ids.device.type, self.autocast)
        listen = contextlib.nullcontext() if self.experts is None else self.experts.listen()
        with torch.no_grad(), cast, listen:
            output = self.model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                return_dict=True,
                **keep,
            )
            logits = output.logits[:, -1].to(self.device)
            return logits, None if self.experts is None else self.experts.heard(len(ids))

    def _quiet(self) -> None:
        """Dropout off. Only the flags are touched, since `train()` of a wrapper may do more."""
        if self.model.training or self.base.training:
            self._resting += [module for module in self.model.modules() if module.training]
            for module in self._resting:
                module.training = False

    def rest(self) -> None:
        """Leave the module as it was found."""
        for module in self._resting:
            module.training = True
        self._resting.clear()

    def close(self) -> None:
        self.rest()
        if self.experts is not None:
            self.experts.close()


class _Experts:
    """Listens to which experts the routers choose, in the layers that have them."""

    def __init__(self, model: nn.Module) -> None:
        modules = [m for m in model.modules() if "top_k_index" in inspect.signature(m.forward).parameters]
        if not modules:
            raise ConfigError(f"routes=True, but {type(model).__name__} has no experts to route to")
        self._chosen: list[Tensor] | None = None
        self._hooks = [m.register_forward_pre_hook(self._hear, with_kwargs=True) for m in modules]
        config: Any = model.config
        text = config.get_text_config(decoder=True)
        self.top_k: int = getattr(text, "num_experts_per_tok", None) or text.top_k_experts
        self.width = len(modules) * self.top_k
        count = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 65536
        self.itemsize = 1 if count <= 256 else 2

    def _hear(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._chosen is not None:  # a trainer's own passes are none of our business
            self._chosen.append(kwargs["top_k_index"] if "top_k_index" in kwargs else args[1])

    @contextlib.contextmanager
    def listen(self) -> Any:
        self._chosen = []
        try:
            yield
        finally:
            self._chosen = None

    def heard(self, rows: int) -> Tensor:
        """Rows × tokens × width, on the CPU."""
        assert self._chosen is not None
        device = self._chosen[0].device
        kind = torch.uint8 if self.itemsize == 1 else torch.int16
        chosen = [index.reshape(rows, -1, self.top_k).to(device, kind) for index in self._chosen]
        return torch.cat(chosen, dim=-1).cpu()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
