"""Attention of a step in fixed shapes: Transformers' own copies keys and values for each query head that shares them.

A step has one query a head, so the heads that share keys can be rows of one query instead. Anything else is left to
Transformers. The model's setting is only changed while a pass is prepared, and put back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "agentcore_rl_shared_heads"
KNOWN = {"dropout", "scaling", "is_causal", "position_ids", "use_cache", "output_router_logits"}
"""What may be asked of attention; whatever else a model asks for is Transformers' matter."""


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    rows, heads, count, width = query.shape
    shared = key.shape[1]
    others = {name for name, setting in settings.items() if setting is not None} - KNOWN
    if count > 1 or heads == shared or attention_mask is None or others:
        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
        return found
    query = query.reshape(rows, shared, heads // shared, width)
    output = scaled_dot_product_attention(query, key, value, attention_mask, scale=settings.get("scaling"))
    return output.reshape(rows, 1, heads, value.shape[-1]), None


AttentionInterface.register(NAME, _attend)


@contextmanager
def sharing(config: Any) -> Iterator[None]:
    """Passes of a model with this configuration attend so."""
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
