"""Tasks, read from the folder `data` of AppWorld's root."""

from __future__ import annotations

import json
import os
from pathlib import Path


class Task:
    def __init__(self, instruction: str, answer: str) -> None:
        self.instruction, self.answer = instruction, answer

    @classmethod
    def load(
        cls,
        task_id: str,
        storage_type: str = "memory",
        load_ground_truth: bool = True,
        ground_truth_mode: str = "minimal",
        include_api_response_schemas: bool = True,
    ) -> Task:
        home = _data() / "tasks" / task_id
        if not home.exists():
            raise Exception(f"The task directory ({home}) doesn't exist.")
        return cls(**json.loads((home / "specs.json").read_text()))


def load_task_ids(
    dataset_name: str = "train",
    difficulty: int | None = None,
    num_tasks_per_scenario: int | None = None,
    only_tagged: list[str] | None = None,
) -> list[str]:
    return (_data() / "datasets" / f"{dataset_name}.txt").read_text().split()


def _data() -> Path:
    return Path(os.environ["APPWORLD_ROOT"], "data")
