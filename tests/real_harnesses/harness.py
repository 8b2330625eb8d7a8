"""What a harness is to these tests: where it is installed, what the model has to say in its tools, how it is run.

The task is the same for all: read two files, edit one, run a command, answer. Only the standard library is imported
here, since harnesses written in Python run in environments of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TASK = (
    "Read notes.txt and todo.txt, change buy bread to buy milk in todo.txt, run `wc -l todo.txt`, and say what changed."
)
ANSWER = "The list now says buy milk."
MODEL = "policy"


def call(name: str, **arguments: Any) -> str:
    """A tool call as Qwen3 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True)
class Place:
    """Where one run takes place."""

    folder: Path
    """The harness's own installation."""
    work: Path
    """The folder with the files to read and edit."""
    home: Path
    """The home directory, empty before."""
    session: Mapping[str, Any]
    """The gateway's session."""

    def path(self, name: str) -> str:
        return str(self.work / name)

    def bin(self, name: str) -> str:
        """A command of the installation."""
        npm = self.folder / "node_modules" / ".bin" / name
        return str(npm if npm.exists() else self.folder / "bin" / name)


@dataclass(frozen=True)
class Harness:
    """One agent that people use, with its default settings."""

    name: str
    packages: Sequence[str]
    """What npm or pip installs."""
    steps: Callable[[Place], Sequence[str]]
    """What the model says, turn by turn."""
    command: Callable[[Place], Sequence[str]]
    npm: bool = False
    python: tuple[int, int] = (3, 11)
    """The oldest Python that it runs on, if it is one of PyPI's."""
    env: Callable[[Place], Mapping[str, str]] = field(default=lambda place: {})
    mark: str = ""
    """What a prompt of the task itself has besides the task's words; other calls are side calls."""
    rows: int = 1
    """The fewest rows that its sessions can be folded into."""
    why: str = ""
    """Why it is not one."""


def task(directory: Path) -> None:
    """Write the files of the task."""
    (directory / "notes.txt").write_text("Shopping is on Friday.\n")
    (directory / "todo.txt").write_text("buy bread\nbuy tea\n")


def script(place: Place, name: str) -> list[str]:
    """The command of a harness that is a Python library: its own module, run in its own environment."""
    module = f"real_harnesses.harnesses.{name}"
    return [str(place.folder / "bin" / "python"), "-m", module, place.session["base_url"], TASK]
