"""The runs below the folders that were named. A run is known by its path below its folder, and by nothing else.

Nothing outside of the folders is read: links that lead out of them are left out, and a run with such a link in it is
refused. An opened run stays open; a later question reads only what has been appended since.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ...errors import ConfigError
from ...rollout.run_folder import Run, open_run

_MARKS = ("index", "metrics.jsonl", "run.json", "rollouts", "evaluations")
_MORE = ("summary.json", "guards.jsonl", "ratios")
_DEEPEST, _MOST_FOLDERS, _MOST_RUNS = 5, 20_000, 2_000
_MOST_OPEN = 12
_FRESH_SECONDS = 2.0
"""How old the list of runs may be."""
T = TypeVar("T")


class FileMemory:
    """What was worked out from files and folders, until they change: the list of runs asks about all of them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, Callable[..., Any]], tuple[object, Any]] = {}

    def read(self, path: Path, work: Callable[[Path], T]) -> T:
        """What `work`, a function that stays the same, says about the path."""
        try:
            found = path.stat()
            state: object = found.st_mtime_ns, found.st_size, found.st_ino
        except OSError:
            state = None
        known = self._known.get((path, work))
        if known is None or known[0] != state:
            known = self._known[path, work] = state, work(path)
        answer: T = known[1]
        return answer


class OpenRun:
    """A run that stays open, for several threads. Figures of the whole run are worked out once for each state of it."""

    def __init__(self, path: Path, root: Path, files: FileMemory) -> None:
        check_links(path, root)
        self.files = files
        self._root, self._run = root, open_run(path)
        self._lock = threading.Lock()
        self._known: dict[Any, Any] = {}
        self.changes = 0
        """Counts the states that were seen."""

    def use(self, work: Callable[[Run], T]) -> T:
        """Do something with the run as it is now; no other thread does meanwhile."""
        with self._lock:
            self._refresh()
            return work(self._run)

    def known(self, key: Any, work: Callable[[Run], T]) -> T:
        """What `work` says about the run as it is now, from memory if it has been asked."""

        def remembered(run: Run) -> T:
            if key not in self._known:
                self._known[key] = work(run)
            found: T = self._known[key]
            return found

        return self.use(remembered)

    def _refresh(self) -> None:
        check_links(self._run.path, self._root)
        if self._run.refresh():
            self.changes += 1
            self._known.clear()


class RunCatalog:
    """Finds the runs below some folders, and opens them."""

    def __init__(self, folders: Iterable[str | os.PathLike[str]]) -> None:
        self._roots = list(dict.fromkeys(Path(os.path.realpath(folder)) for folder in folders))
        for root in self._roots:
            if not root.is_dir():
                raise ConfigError(f"{root} is not a folder", hint="name a folder of runs, or one run")
        self.files = FileMemory()
        self._found: dict[str, tuple[Path, Path]] = {}
        self._looked = -_FRESH_SECONDS
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._lock = threading.Lock()

    def runs(self) -> dict[str, Path]:
        """Every run by its id, in the order of the ids."""
        with self._lock:
            if time.monotonic() - self._looked >= _FRESH_SECONDS:
                self._found = {name: (path, root) for root in self._roots for name, path in self._look(root)}
                self._looked = time.monotonic()
            return {name: path for name, (path, _) in sorted(self._found.items())}

    def check(self, name: str) -> str | None:
        """Why a run can't be read; None if it can."""
        path, root = self._found[name]
        return next((str(problem) for problem in _problems(path, root, self.files)), None)

    def open(self, name: str) -> OpenRun:
        if name not in self.runs():
            raise ConfigError(f"no run is named {name!r}", hint="the first page lists all")
        with self._lock:
            opened = self._open.get(name)
            if opened is None:
                opened = self._open[name] = OpenRun(*self._found[name], self.files)
            self._open.move_to_end(name)
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
            return opened

    def _look(self, root: Path) -> Iterator[tuple[str, Path]]:
        """The runs below a folder, which may be one itself; those near it first, and none in stores of results."""
        waiting, seen, found = deque([(root, 0)]), 0, 0
        while waiting and seen < _MOST_FOLDERS and found < _MOST_RUNS:
            folder, depth = waiting.popleft()
            seen += 1
            is_run, is_store, folders = self.files.read(folder, _contents)
            if is_run:
                found += 1
                first = root.name if len(self._roots) > 1 or folder == root else ""
                path = folder.relative_to(root).as_posix()
                yield "/".join(part for part in (first, path) if part not in ("", ".")), folder
            elif depth < _DEEPEST and not (depth and is_store):
                waiting += [(child, depth + 1) for child in folders]


def check_links(path: Path, root: Path) -> None:
    """Raise a `ConfigError` if a file of a run is not a plain one below `root`."""
    for problem in _problems(path, root, FileMemory()):
        raise problem


def _problems(path: Path, root: Path, files: FileMemory) -> Iterator[ConfigError]:
    for folder in (path, *(path / name for name in ("index", "rollouts", "evaluations", "ratios"))):
        for entry in files.read(folder, _unusual):
            problem = _problem_of(entry, root) if folder != path or entry.name in (*_MARKS, *_MORE) else None
            if problem is not None:
                yield problem


def _unusual(folder: Path) -> list[Path]:
    """What is neither a plain file nor a folder."""
    try:
        with os.scandir(folder) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
            ]
    except OSError:
        return []


def _problem_of(path: Path, root: Path) -> ConfigError | None:
    """Why a link, pipe or device may not be read; None if it leads to a file or a folder below `root`."""
    if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
        hint = "name the folder it leads to on the command line"
        return ConfigError(f"{path} is a link that leads out of {root}", hint=hint)
    return None if path.is_dir() or path.is_file() else ConfigError(f"{path} is not a file")


def _contents(folder: Path) -> tuple[bool, bool, list[Path]]:
    """Whether a folder is a run, whether it is a store of results, and the folders in it; links are not followed."""
    try:
        with os.scandir(folder) as entries:
            is_folder = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except OSError:
        return False, False, []
    folders = sorted(name for name, one in is_folder.items() if one and not name.startswith("."))
    is_run = any(name in is_folder for name in _MARKS)
    return is_run, is_folder.get(".new", False), [folder / name for name in folders]
