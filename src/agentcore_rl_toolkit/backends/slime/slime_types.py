"""slime's own types, where slime has to be importable. Nothing else here imports it."""

from __future__ import annotations

import importlib
from typing import Any

_HINT = (
    "clone https://github.com/THUDM/slime and put its folder on PYTHONPATH, or run in its image; on our side: "
    "pip install 'agentcore-rl-toolkit[slime]'"
)


def train_output(samples: list[list[list[Any]]], metrics: dict[str, float]) -> Any:
    """What a rollout function returns for a step."""
    return _their("rollout.base_types").RolloutFnTrainOutput(samples=samples, metrics=metrics)


def eval_output(data: dict[str, dict[str, Any]], metrics: dict[str, float]) -> Any:
    """What it returns for an evaluation."""
    return _their("rollout.base_types").RolloutFnEvalOutput(data=data, metrics=metrics)


def dataset(path: str, *, prompt_key: str, metadata_key: str) -> list[Any]:
    """The samples of one of slime's data files."""
    samples: list[Any] = (
        _their("utils.data").Dataset(path, None, None, None, prompt_key=prompt_key, metadata_key=metadata_key).samples
    )
    return samples


def _their(module: str) -> Any:
    try:
        return importlib.import_module(f"slime.{module}")
    except ImportError as error:
        raise ImportError(f"slime can't be imported: {error}\nhint: {_HINT}", name=error.name) from error
