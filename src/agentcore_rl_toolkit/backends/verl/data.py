"""JSONL as verl's dataset (`data.custom_cls`): each row is a payload, which the agent gets unchanged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from ...rows import read_rows, row_title

logger = logging.getLogger(__name__)


class JsonlRows(Dataset):  # type: ignore[misc]
    """The rows of one or several JSONL files.

    verl's logs and dumps get their own fields: `raw_prompt` from the row's `prompt`, `reward_model` from its `answer`,
    `data_source` from the file's name.
    """

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any = None,
        config: Any = None,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        paths = [data_files] if isinstance(data_files, str) else list(data_files)
        self._rows: list[tuple[str, dict[str, Any]]] = []
        for path in paths:
            rows, problems = read_rows(str(Path(path).expanduser()))
            for problem in problems:
                logger.warning("%s: %s; left out", path, problem)
            self._rows += [(Path(path).stem, row) for row in rows]
        if max_samples > 0:
            self._rows = self._rows[:max_samples]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        source, row = self._rows[index]
        return {
            "raw_prompt": messages(row),
            "payload": row,
            "index": index,
            "data_source": source,
            "reward_model": {"ground_truth": row.get("answer")},
        }


def messages(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The prompt that verl shows for a row; the agent gets the whole row."""
    prompt = row.get("prompt")
    return prompt if isinstance(prompt, list) else [{"role": "user", "content": row_title(row)}]
