"""The agent's tools, bound to one session's workspace. What goes wrong is told to the model as text."""

import re
import shlex
from typing import Any

from strands import tool

from . import java
from .workspace import Refused, Workspace

_LINES = 200
# Goals, and options that name no file: a path given to Maven could lead anywhere.
_MAVEN = re.compile(r"[a-z][\w.:-]*|-D[\w.-]+(=[\w.,:#*!+-]*)?|-P[\w.,!-]+|-[qXeUo]")


def tools(workspace: Workspace) -> list[Any]:
    """Tools for this workspace."""

    @tool
    def shell(command: str, seconds: int = 120) -> str:
        """Run a bash command in the project's folder.

        Args:
            command: The command.
            seconds: After so many seconds it is stopped.
        """
        return str(workspace.run(["bash", "-c", command], seconds))

    @tool
    def read_file(path: str, first_line: int = 1) -> str:
        """Read a file, 200 lines at a time.

        Args:
            path: The file, relative to the project's folder.
            first_line: Where to begin.
        """
        lines = workspace.read(path).splitlines()
        part = lines[max(0, first_line - 1) :][:_LINES]
        left = len(lines) - max(0, first_line - 1) - len(part)
        return "\n".join(part) + (f"\n[{left} more lines]" if left > 0 else "")

    @tool
    def write_file(path: str, content: str) -> str:
        """Write a file; what was in it is replaced.

        Args:
            path: The file, relative to the project's folder.
            content: All of its text.
        """
        workspace.write(path, content)
        return "written"

    @tool
    def edit_file(path: str, old: str, new: str) -> str:
        """Replace a text that is in a file exactly once.

        Args:
            path: The file, relative to the project's folder.
            old: The text, with enough around it to be the only one.
            new: What takes its place.
        """
        text = workspace.read(path)
        count = text.count(old) if old else 0
        if count != 1:
            raise Refused(f"{path}: the old text is there {count} times, not once")
        workspace.write(path, text.replace(old, new))
        return "edited"

    @tool
    def maven(goals: str) -> str:
        """Run Maven in the project's folder.

        Args:
            goals: Goals and options, e.g. `-q dependency:tree` or `test -Dtest=ShopTest`.
        """
        words = shlex.split(goals)
        for word in words:
            if not _MAVEN.fullmatch(word) or ".." in word:
                raise Refused(f"{word}: only goals, -D, -P, -q, -X, -e, -U and -o")
        if not java.is_maven(workspace.root):
            raise Refused("there is no pom.xml: build does without Maven")
        return str(workspace.run(["mvn", "-B", "-ntp", *words]))

    @tool
    def build() -> str:
        """Build the project from scratch and run its tests, with Maven or, where there is no pom.xml, with javac."""
        return str(java.build(workspace.root, workspace.seconds_left()))

    return [shell, read_file, write_file, edit_file, maven, build]
