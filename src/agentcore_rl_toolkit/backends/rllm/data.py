"""Rows as a registered dataset of rLLM. Training uses the rows themselves, never what rLLM reads back.

rLLM stores datasets as tables, where a missing field becomes null and 3 may become 3.0. An agent must get exactly the
payload that its row is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError, KeyInvalid
from ...rows import read_rows
from ...types import RolloutId

logger = logging.getLogger(__name__)


def dataset_name(path: str) -> str:
    """The name of a file's rows among rLLM's datasets.

    >>> dataset_name("data/gsm8k train.jsonl")
    'agentcore_gsm8k_train'
    """
    return "agentcore_" + "".join(c if c.isalnum() or c in "-_" else "_" for c in Path(path).stem)


def register(path: str, name: str, split: str) -> Any:
    """Register a file's rows with rLLM; returns its `Dataset`, which holds the rows unchanged."""
    from rllm.data.dataset import Dataset, DatasetRegistry

    rows, problems = read_rows(path)
    for problem in problems:
        logger.warning("%s: %s; the other lines are used", path, problem)
    check_ids(path, rows)
    try:
        return DatasetRegistry.register_dataset(name, rows, split, source=path, description="rows for an agent")
    except (TypeError, ValueError, NotImplementedError) as error:  # pyarrow's errors have these types
        logger.warning("%s: no table can hold these rows (%s): they are trained on, but not registered", path, error)
        return Dataset(rows, name, split)


def check_ids(path: str, rows: Sequence[dict[str, Any]]) -> None:
    """Refuse ids that repeat or can't be part of a key: rLLM groups rollouts by `id`, and stores results under it."""
    seen: set[str] = set()
    for row in rows:
        if not row.get("id"):
            continue
        given = str(row["id"])
        if given in seen:
            hint = "give each row its own id, or leave ids out"
            raise ConfigError(f"{path} has several rows with id {given!r}, which rLLM treats as one group", hint=hint)
        seen.add(given)
        try:
            RolloutId("check", given, "check")
        except KeyInvalid as error:
            hint = "results are stored under the id: use letters, digits, '-' and '_'"
            raise ConfigError(f"{path}: the id {given!r} can't be part of a key", hint=hint) from error
