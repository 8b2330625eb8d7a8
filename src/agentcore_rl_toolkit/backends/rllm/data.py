"""Rows as a data set that rLLM knows by name. Training takes the rows themselves, never what was read back.

rLLM keeps data sets as tables, where a field that a row lacks becomes null and 3 may become 3.0; an agent has to get
exactly the payload that its row is.
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
    """The name of a file's rows among rLLM's data sets.

    >>> dataset_name("data/gsm8k train.jsonl")
    'agentcore_gsm8k_train'
    """
    return "agentcore_" + "".join(c if c.isalnum() or c in "-_" else "_" for c in Path(path).stem)


def register(path: str, name: str, split: str) -> Any:
    """Register a file's rows with rLLM; gives its `Dataset`, which holds the rows as they are in the file."""
    from rllm.data.dataset import Dataset, DatasetRegistry

    rows, problems = read_rows(path)
    for problem in problems:
        logger.warning("%s: %s; the other lines are used", path, problem)
    check_ids(path, rows)
    try:
        return DatasetRegistry.register_dataset(name, rows, split, source=path, description="rows for an agent")
    except (TypeError, ValueError, NotImplementedError) as error:  # pyarrow's errors are of these kinds
        logger.warning("%s: no table can hold these rows (%s): they are trained on, but not registered", path, error)
        return Dataset(rows, name, split)


def check_ids(path: str, rows: Sequence[dict[str, Any]]) -> None:
    """rLLM takes a row's `id` for that of its group, and the client makes it a part of the result's key."""
    seen: set[str] = set()
    for row in rows:
        if not row.get("id"):
            continue
        given = str(row["id"])
        if given in seen:
            hint = "give each row an id of its own, or none"
            raise ConfigError(f"{path} has several rows of id {given!r}, which rLLM takes for one group", hint=hint)
        seen.add(given)
        try:
            RolloutId("check", given, "check")
        except KeyInvalid as error:
            hint = "rLLM hands a row's id on, and results are stored under it: use letters, digits, '-' and '_'"
            raise ConfigError(f"{path}: the id {given!r} can't be part of a key", hint=hint) from error
