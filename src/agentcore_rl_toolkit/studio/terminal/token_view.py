"""The tokens of training rows: which are trained on, how likely each was, and which are masked.

On a terminal, trained tokens are green (fainter the less likely), masked ones red. Elsewhere trained tokens are between
⟦ ⟧ and masked ones between ⟨ ⟩.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from ...common.text_table import escape
from ...gateway.record.trajectory import Row
from ..server.rollout_answers import split_text
from .safe_text import DIM, GREENS, RED, Paint

_MARKS = {"trained": ("⟦", "⟧"), "masked": ("⟨", "⟩"), "prompt": ("", "")}


def show_tokens(rows: Iterable[Row], decode: Callable[[list[int]], str], paint: Paint) -> Iterator[str]:
    """Each row under a heading."""
    for number, row in enumerate(rows):
        versions = ", ".join(dict.fromkeys(name for name, _, _ in row.versions))
        heading = f"row {number}: {len(row.token_ids)} tokens, {row.trained} trained, weight {row.weight:.3f}"
        yield paint(DIM, f"── {heading}{f', weights {escape(versions)}' if versions else ''} ──")
        yield _row_text(row, decode, paint)


def _row_text(row: Row, decode: Callable[[list[int]], str], paint: Paint) -> str:
    texts = split_text(row.token_ids.tolist(), decode)
    kinds = [_kind(bool(mask), float(value)) for mask, value in zip(row.loss_mask, row.logprobs, strict=True)]
    tokens = zip(kinds, texts, row.logprobs.tolist(), strict=True)
    parts = []
    for kind, run in groupby(tokens, key=lambda one: one[0]):
        opening, closing = _MARKS[kind] if not paint.colour else ("", "")
        shown = "".join(paint(_colour(kind, logprob), escape(text)) if kind != "prompt" else escape(text)
                        for _, text, logprob in run)  # fmt: skip
        parts.append(f"{opening}{shown}{closing}")
    return "".join(parts)


def _kind(trained: bool, logprob: float) -> str:
    if trained:
        return "trained"
    return "prompt" if math.isnan(logprob) else "masked"


def _colour(kind: str, logprob: float) -> str:
    return GREENS[sum(logprob > bound for bound in (-3, -1, -0.1))] if kind == "trained" else RED
