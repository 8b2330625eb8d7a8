"""A checkout of slime, read without importing it: the flags of a model, and the flags that slime has."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import itertools
import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError

_PARSERS = ("slime/utils/arguments.py", "slime/backends/sglang_utils/arguments.py")
_SIMILARITY = 0.85
_FLAG = re.compile(r"--[a-z0-9][a-z0-9-]*")
_SGLANG_PREFIXES = ("sglang-", "router-")
"""Flags that SGLang and its router define."""


@dataclass(frozen=True)
class Checkout:
    """A folder with slime in it."""

    folder: Path

    @classmethod
    def find(cls, folder: str | None) -> Checkout:
        """The checkout in `folder`, in SLIME_DIR, or where Python finds slime."""
        named = folder or os.environ.get("SLIME_DIR") or _installed()
        hint = "clone https://github.com/THUDM/slime and give its folder: slime_dir, or SLIME_DIR"
        if named is None:
            raise ConfigError("slime was not found", hint=hint)
        found = cls(Path(named).expanduser().resolve())
        if not found.script().is_file() or not (found.folder / _PARSERS[0]).is_file():
            raise ConfigError(f"{found.folder} is not a checkout of slime", hint=hint)
        return found

    def script(self, *, asynchronous: bool = False) -> Path:
        """The program that trains."""
        return self.folder / ("train_async.py" if asynchronous else "train.py")

    def model_flags(self, model_type: str) -> list[str]:
        """The flags of a model, from the script that slime has for it."""
        script = self.folder / "scripts" / "models" / f"{model_type}.sh"
        if not script.is_file():
            known = sorted(path.stem for path in script.parent.glob("*.sh"))
            close = difflib.get_close_matches(model_type, known, 3, 0.3)
            hint = f"model_type is the name of a script in {script.parent}: {', '.join(close or known)}"
            raise ConfigError(f"slime has no model type {model_type!r}", hint=hint)
        shell = ["bash", "--noprofile", "--norc", "-c", 'source "$1" >&2 && printf "%s\\0" "${MODEL_ARGS[@]}"']
        ran = subprocess.run([*shell, "bash", str(script)], capture_output=True, text=True, cwd=script.parent)
        flags = ran.stdout.split("\0")[:-1]
        if ran.returncode or not flags or not flags[0]:
            raise ConfigError(f"{script} sets no MODEL_ARGS: {ran.stderr.strip()[-500:] or 'its output is empty'}")
        return flags

    def check_flags(self, names: Sequence[str]) -> list[str]:
        """The flags that neither slime nor SGLang has. slime ignores unknown flags, so a near miss is refused."""
        known = {flag.removeprefix("--") for path in _PARSERS for flag in _flags(self.folder / path)}
        unknown = [name for name in names if name not in known and not name.startswith(_SGLANG_PREFIXES)]
        for name in unknown:
            positive = name.removeprefix("no-")
            close = [] if positive in known else difflib.get_close_matches(name, known, 1, _SIMILARITY)
            if close:
                raise ConfigError(f"slime has no flag --{name}", hint=f"did you mean --{close[0]}?")
        return [name for name in unknown if name.removeprefix("no-") not in known]


def check_model(model: Path, flags: Sequence[str]) -> None:
    """Refuse a model that the flags don't describe."""
    config = _text_config(model)
    values = dict(itertools.pairwise(flags))
    for flag, key in {"--num-layers": "num_hidden_layers", "--hidden-size": "hidden_size"}.items():
        if flag in values and key in config and values[flag] != str(config[key]):
            hint = "model_type and model (model_dir) must be the same model"
            raise ConfigError(f"{model} has {key} {config[key]}, but slime gets {flag} {values[flag]}", hint=hint)


def _text_config(model: Path) -> dict[str, Any]:
    path = model / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        hint = "model (model_dir) must be a folder with a Hugging Face checkpoint"
        raise ConfigError(f"{path} can't be read: {error}", hint=hint) from None
    text: dict[str, Any] = config.get("text_config", config)
    return text


def _flags(path: Path) -> set[str]:
    """All strings in a parser's source that look like a flag."""
    texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and _FLAG.fullmatch(text)}


def _installed() -> str | None:
    spec = importlib.util.find_spec("slime")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return str(Path(places[0]).parent) if places else None
