"""Settings from a TOML, YAML or JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError


def read_settings_file(path: Path) -> dict[str, Any]:
    """The settings of a file, by its suffix; TOML for any but .yaml, .yml and .json."""
    kind = {".yaml": "YAML", ".yml": "YAML", ".json": "JSON"}.get(path.suffix, "TOML")
    load, invalid = _reader(kind)
    try:
        values = load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    except invalid as error:
        raise ConfigError(f"{path} is not valid {kind}: {error}") from None
    if not isinstance(values, dict):
        hint = "write settings as name = value" if kind == "TOML" else "write an object with the settings"
        raise ConfigError(f"{path} has no settings: it holds a {type(values).__name__}", hint=hint)
    return values


def _reader(kind: str) -> tuple[Callable[[str], Any], Any]:
    """What parses a kind of file, and its exception."""
    try:
        if kind == "TOML":
            import tomllib

            return tomllib.loads, tomllib.TOMLDecodeError
        if kind == "YAML":
            import yaml

            return yaml.safe_load, yaml.YAMLError
    except ImportError:
        hint = "write the settings as YAML or JSON" if kind == "TOML" else "pip install pyyaml, or write TOML"
        needed = "Python 3.11" if kind == "TOML" else "PyYAML"
        raise ConfigError(f"reading {kind} needs {needed}", hint=hint) from None
    return json.loads, ValueError
