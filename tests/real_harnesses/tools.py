"""The tools that a user of a library would write for the task, and the model's calls of them. Standard library only."""

from __future__ import annotations

import subprocess
from pathlib import Path

from real_harnesses.harness import call


def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: The file to read.
    """
    return Path(path).read_text()


def edit_file(path: str, old: str, new: str) -> str:
    """Replace a text in a file.

    Args:
        path: The file to edit.
        old: The text to replace.
        new: The text to put in its place.
    """
    Path(path).write_text(Path(path).read_text().replace(old, new))
    return "done"


def run_command(command: str) -> str:
    """Run a shell command.

    Args:
        command: The command to run.
    """
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False).stdout


def tool_steps() -> list[str]:
    """The task in calls of these tools."""
    return [
        call("read_file", path="notes.txt"),
        call("read_file", path="todo.txt"),
        call("edit_file", path="todo.txt", old="buy bread", new="buy milk"),
        call("run_command", command="wc -l todo.txt"),
    ]
