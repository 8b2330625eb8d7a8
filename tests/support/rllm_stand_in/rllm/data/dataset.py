"""The registry: tables on disk, and the rows as they were given in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas


class Dataset:
    def __init__(self, data: list[dict[str, Any]], name: str, split: str) -> None:
        self.data, self.name, self.split = data, name, split

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.data[index]


class DatasetRegistry:
    @classmethod
    def register_dataset(
        cls, name: str, data: list[dict[str, Any]], split: str = "default", source: str = "", description: str = ""
    ) -> Dataset:
        folder = Path(os.environ["RLLM_HOME"]) / "datasets" / name
        folder.mkdir(parents=True, exist_ok=True)
        pandas.DataFrame(data).to_parquet(folder / f"{split}.parquet")
        return Dataset(data, name, split)
