"""What a backend is, how it is found, and what it plans.

Backends are entry points of the group `agentcore_rl.backends`, ours among them, so that others can add theirs:

    [project.entry-points."agentcore_rl.backends"]
    mine = "my_package.backend:BACKEND"
"""

from __future__ import annotations

import difflib
import importlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Protocol, runtime_checkable

from ..agent.redaction import HIDDEN
from ..errors import ConfigError
from .settings import TrainSettings

GROUP = "agentcore_rl.backends"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run would do: shown by `--dry-run`, and carried out by `launch.py`."""

    backend: str
    settings: Mapping[str, Any]
    command: tuple[str, ...] = ()
    """What is started; empty where the loop runs in this process."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set for it, beside those there are."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that are written first: path and text."""
    notes: tuple[str, ...] = ()
    """What was checked, and what could not be."""

    def text(self) -> str:
        """The plan for people: as a shell would be told it, or as a file of settings."""
        lines = [f"# {note}" for note in self.notes]
        for path, content in self.files.items():
            lines += [f"# {path}", *(f"#   {line}" for line in content.splitlines())]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        if self.command:
            lines.append(" \\\n    ".join(shlex.quote(part) for part in self.command))
        else:
            lines += ["# in this process, with", *map(_toml, self.settings, self.settings.values())]
        return "\n".join(line for line in lines if line)


@runtime_checkable
class Backend(Protocol):
    """One trainer."""

    name: str
    extra: str
    """What to install for it: `pip install 'agentcore-rl-toolkit[extra]'`."""
    settings: type[TrainSettings]

    def plan(self, settings: Any) -> Plan:
        """Check what can be checked without a GPU, and say what would be done. Starts and writes nothing."""

    def train(self, settings: Any) -> dict[str, Any]:
        """Train; gives the run's figures. `interrupted` is true if it was ended early, with what there was saved."""


def names() -> list[str]:
    """The backends that are installed."""
    return sorted({entry.name for entry in metadata.entry_points(group=GROUP)})


def find(name: str) -> Backend:
    """A backend by its name."""
    for entry in metadata.entry_points(group=GROUP):
        if entry.name == name:
            found = entry.load()
            if not isinstance(found, Backend):
                raise ConfigError(f"the entry point {entry.value} of {GROUP} is no backend")
            return found
    close = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean {close[0]}?" if close else f"there is: {', '.join(names())}"
    raise ConfigError(f"no backend named {name!r} is installed", hint=hint)


def require(module: str, extra: str, what: str) -> Any:
    """Import what a backend needs, or say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"pip install 'agentcore-rl-toolkit[{extra}]'"
        missing = f"{what} needs {error.name or module}, which is not installed"
        raise ImportError(f"{missing}\nhint: {hint}", name=error.name) from error


def lazily(package: str, homes: Mapping[str, str], extra: str) -> Callable[[str], Any]:
    """A package's `__getattr__`: names from the modules they live in, imported when they are used."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(require(package + homes[name], extra, f"{package}.{name}"), name)

    return get


def _toml(name: str, value: Any) -> str:
    """A setting as a line of TOML; none for what is not set."""
    if isinstance(value, Mapping):
        value = dict.fromkeys(value, HIDDEN) if name == "env" else value
        value = {key: known for key, known in value.items() if known is not None}
        inner = ", ".join(f"{json.dumps(key)} = {json.dumps(known)}" for key, known in value.items())
        return f"{name} = {{ {inner} }}" if inner else ""
    return "" if value in (None, ()) else f"{name} = {json.dumps(value)}"
