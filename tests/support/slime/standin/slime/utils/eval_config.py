"""`slime.utils.eval_config`: what is said of one set of held-out rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class EvalDatasetConfig:
    name: str
    path: str
    input_key: str | None = None
    metadata_key: str | None = None
    n_samples_per_eval_prompt: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_response_len: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    metadata_overrides: dict[str, Any] = field(default_factory=dict)
