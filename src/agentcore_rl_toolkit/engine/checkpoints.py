"""Finds the folder of a model or tokenizer, and what its small files say. It loads no weights."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from ..errors import ConfigError
from . import tiny

ADAPTER_FOLDER = "lora_adapter"
"""The adapter in a checkpoint of verl's actor."""
_WEIGHTS = ("config.json", "adapter_config.json")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def resolve_model(model: str) -> str:
    """The folder of a model, absolute, because adapters keep the path of their base model: `tiny`, a folder with one,
    or the newest checkpoint of a run; a hub id as it is.

    >>> resolve_model("Qwen/Qwen3-0.6B")
    'Qwen/Qwen3-0.6B'
    >>> resolve_model("tiny") == str(tiny.path())
    True
    """
    if model == tiny.NAME:
        return str(tiny.path())
    folder = Path(model).absolute()
    if not folder.is_dir():
        _refuse_missing(model, Path(model))
        return model
    if _has_weights(folder):
        return str(folder)
    checkpoints = [path for path in (folder / "checkpoints").glob("checkpoint-*") if _has_weights(path)]
    checkpoints = checkpoints or list(_verl_checkpoints(folder / "checkpoints"))
    if checkpoints:  # a running or killed run may have written a part of the newest one
        return str(max([path for path in checkpoints if is_written(path)] or checkpoints, key=_step))
    found = ", ".join(sorted(os.listdir(folder))[:8]) or "nothing"
    raise ConfigError(
        f"{model} does not contain a model: found {found}",
        hint="give a folder with config.json or adapter_config.json, or the output folder of a run",
    )


def _refuse_missing(model: str, folder: Path) -> None:
    """Refuse what can only be a path: asking the hub for it takes a minute, and its answer hides the typo."""
    beside = folder.parent.iterdir() if "/" in model and folder.parent.is_dir() else ()
    runs = sorted(path.name for path in beside if (path / "run.json").is_file())
    if runs:
        raise ConfigError(f"no model found at {model}", hint=f"{folder.parent} has the runs {', '.join(runs[:8])}")
    if model.startswith((".", "/", "~")):
        raise ConfigError(f"no model found at {model}", hint="give a folder, a hub id, or `tiny`")
    if "/" not in model and get_close_matches(model.lower(), [tiny.NAME], cutoff=0.75):
        raise ConfigError(f"no model found at {model}", hint=f"did you mean {tiny.NAME}?")


def resolve_tokenizer(model: str) -> str:
    """The folder of a tokenizer: `model` if it holds one, with or without weights; otherwise the model's folder."""
    return model if _has(Path(model), _TOKENIZER) else resolve_model(model)


def step_checkpoint(run: str, step: int) -> str:
    """The folder of the checkpoint that a run wrote after a step."""
    checkpoints = Path(run, "checkpoints")
    found = {_step(path): path for path in (*checkpoints.glob("checkpoint-*"), *_verl_checkpoints(checkpoints))}
    if step not in found:
        hint = f"it has those of {', '.join(map(str, sorted(found))) or 'none'}"
        raise ConfigError(f"{run} has no checkpoint of step {step}", hint=hint)
    return str(found[step])


def is_adapter(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder has an adapter (LoRA) instead of whole weights."""
    return Path(folder, "adapter_config.json").is_file() and not Path(folder, "config.json").is_file()


def sampling_defaults(folder: str | os.PathLike[str]) -> dict[str, float]:
    """The sampling settings in a model folder's `generation_config.json`, as servers apply them; those it lacks are
    left out.
    """
    try:
        found = json.loads(Path(folder, "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    values = {name: found.get(name) for name in _SAMPLING} if isinstance(found, dict) else {}
    numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
    return numbers | ({"top_k": numbers["top_k"] or -1} if "top_k" in numbers else {})


def context_length(model: str) -> int | None:
    """The context length in a model folder's `config.json`."""
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = config.get("max_position_embeddings") or (config.get("text_config") or {}).get("max_position_embeddings")
    return int(found) if found else None


def context_warning(limit: int | None, model: str) -> str | None:
    """What to say of a context limit that is above the model's own."""
    own = context_length(resolve_model(model))
    if limit is None or own is None or limit <= own:
        return None
    return f"warning: context_limit={limit} has no effect: {model} has a context of {own} tokens"


def is_written(checkpoint: Path) -> bool:
    """Whether TRL wrote a checkpoint to its end: this file comes last, and a kill or a full disk may cut it off."""
    try:
        return isinstance(json.loads((checkpoint / "trainer_state.json").read_bytes()), dict)
    except (OSError, ValueError):
        return False


def verl_step(folder: Path) -> int | None:
    """The step of the newest complete checkpoint in verl's checkpoint folder: verl writes this file last."""
    try:
        return int((folder / "latest_checkpointed_iteration.txt").read_text())
    except (OSError, ValueError):
        return None


def _verl_checkpoints(folder: Path) -> Iterator[Path]:
    """verl's complete checkpoints in Transformers' format. verl writes config.json even where it saves no weights."""
    latest = verl_step(folder)
    places = [folder.glob(f"global_step_*/actor/{name}") for name in ("huggingface", ADAPTER_FOLDER)]
    for path in itertools.chain(*places):
        whole = latest is not None and _step(path) <= latest
        if whole and _has_weights(path) and any(path.glob("*.safetensors")):
            yield path


def _has_weights(folder: Path) -> bool:
    return _has(folder, _WEIGHTS)


def _has(folder: Path, names: tuple[str, ...]) -> bool:
    return any((folder / name).is_file() for name in names)


def _step(path: Path) -> int:
    found = re.search(r"(?:checkpoint-|global_step_)(\d+)(?:/actor/(?:huggingface|lora_adapter))?$", path.as_posix())
    return int(found[1]) if found else -1
