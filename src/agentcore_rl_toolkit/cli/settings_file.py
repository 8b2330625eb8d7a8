"""Settings from a TOML, YAML or JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ConfigError


def read_settings_file(path: Path) -> dict[str, Any]:
    """The settings of a file, by its suffix; TOML for any but .yaml, .yml and .json."""
    kind, load, invalid = {".yaml": _yaml, ".yml": _yaml, ".json": _json}.get(path.suffix, _toml)()
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


def _json() -> tuple[str, Any, Any]:
    return "JSON", json.loads, ValueError


def _toml() -> tuple[str, Any, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        raise ConfigError("reading TOML needs Python 3.11", hint="write the settings as YAML or JSON") from None
    return "TOML", tomllib.loads, tomllib.TOMLDecodeError


def _yaml() -> tuple[str, Any, Any]:
    try:
        import yaml
    except ImportError:
        raise ConfigError("reading YAML needs PyYAML", hint="pip install pyyaml, or write TOML") from None
    return "YAML", yaml.safe_load, yaml.YAMLError
