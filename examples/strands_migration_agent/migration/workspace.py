"""A folder of one session, with the project in it: its files are reached here, and no others.

Paths come from a model. Absolute ones, `..`, and links that lead out of the folder are refused, in archives too.
"""

import contextlib
import difflib
import os
import shutil
import tarfile
import tempfile
import time
from pathlib import Path, PurePosixPath
from types import TracebackType

from .command import Ended, run
from .task import GITHUB, Task

PROJECTS = Path(__file__).parents[1] / "projects"
_LONGEST_COMMAND = 300
_LONGEST_FETCH = 300
_LARGEST_FILE = 1 << 20
LARGEST_ARCHIVE = 512 << 20
MOST_FILES = 50_000


class Refused(ValueError):
    """Something a tool doesn't do; the message is for the model."""


class Workspace:
    """`with Workspace(task) as workspace`: the project in its own folder, gone at the end."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._folder = Path(tempfile.mkdtemp(prefix="migration-")).resolve()
        self.root = self._folder / "project"
        self.deadline = time.monotonic() + task.seconds
        try:
            self.root.mkdir()
            fill(self.root, task)
            shutil.copytree(self.root, self._folder / "before", symlinks=True, ignore=shutil.ignore_patterns(".git"))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Workspace":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def path(self, name: str) -> Path:
        """Where `name` is, if that is inside."""
        pure = PurePosixPath(name)
        if not name or "\0" in name:
            raise Refused("a path is missing")
        if pure.is_absolute() or ".." in pure.parts:
            raise Refused(f"{name}: give a path inside the project, without .. and not absolute")
        path = self.root / pure
        if not path.resolve().is_relative_to(self.root):
            raise Refused(f"{name}: it leads out of the project through a link")
        return path

    def read(self, name: str) -> str:
        path = self.path(name)
        if not path.is_file():
            raise Refused(f"{name}: there is no such file")
        if path.stat().st_size > _LARGEST_FILE:
            raise Refused(f"{name}: larger than {_LARGEST_FILE} bytes; look at a part of it with the shell")
        return path.read_text(errors="replace")

    def write(self, name: str, content: str) -> None:
        path = self.path(name)
        if path.exists() and not path.is_file():
            raise Refused(f"{name}: not a file")
        if len(content) > _LARGEST_FILE:
            raise Refused(f"{name}: more than {_LARGEST_FILE} characters")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def run(self, command: list[str], seconds: float = _LONGEST_COMMAND) -> Ended:
        """A command in the project, for as long as one may take and the session has left."""
        return run(command, self.root, max(1, min(seconds, self.seconds_left())))

    def patch(self) -> str:
        """What has been changed in text files, as a patch."""
        before, after = _texts(self._folder / "before"), _texts(self.root)
        lines: list[str] = []
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name, "").splitlines(), after.get(name, "").splitlines()
            lines += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", lineterm="")
        return "\n".join(lines)

    def seconds_left(self) -> float:
        """What the next command may take."""
        if self.root.is_symlink() or not self.root.is_dir():
            raise Refused("the project's folder is gone")
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Refused("the session's time is up: say what you have done and stop")
        return min(left, _LONGEST_COMMAND)


def _texts(root: Path) -> dict[str, str]:
    """All files of a project that are text and its own: not what a build makes, and no links."""
    found = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in (".git", "target")]
        for path in (Path(folder, name) for name in files):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= _LARGEST_FILE:
                with contextlib.suppress(UnicodeDecodeError):
                    found[path.relative_to(root).as_posix()] = path.read_text()
    return found


def fill(root: Path, task: Task) -> None:
    """Put the task's project into an empty folder."""
    if GITHUB.fullmatch(task.project):
        _clone(root, task)
    elif (PROJECTS / task.project).is_dir():
        shutil.copytree(PROJECTS / task.project, root, dirs_exist_ok=True)
    elif (PROJECTS / f"{task.project}.tar.gz").is_file():
        unpack(PROJECTS / f"{task.project}.tar.gz", root)
    else:
        raise ValueError(f"there is no project {task.project!r} in {PROJECTS.name}/")


def unpack(archive: Path, root: Path) -> None:
    """An archive of plain files, all of them inside; anything else is refused before a file is written."""
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        if len(members) > MOST_FILES or sum(member.size for member in members) > LARGEST_ARCHIVE:
            raise Refused(f"{archive.name}: too large")
        for member in members:
            if member.name.startswith("/") or ".." in PurePosixPath(member.name).parts:
                raise Refused(f"{archive.name}: {member.name} is not inside the archive's folder")
            if not member.isfile() and not member.isdir():
                raise Refused(f"{archive.name}: {member.name} is not a plain file")
        tar.extractall(root, filter="data")


def _clone(root: Path, task: Task) -> None:
    """One commit of a repository, without its history."""
    for command in (
        ["git", "init", "-q"],
        ["git", "fetch", "-q", "--depth", "1", task.project, task.base_commit or "HEAD"],
        ["git", "-c", "advice.detachedHead=false", "checkout", "-q", "FETCH_HEAD"],
    ):
        ended = run(command, root, _LONGEST_FETCH, environment=dict(os.environ) | {"GIT_TERMINAL_PROMPT": "0"})
        if not ended.ok:
            raise RuntimeError(f"{task.project} could not be fetched: {ended}")
