"""Which installed packages a template imports before it is forked: those that the agent will import in every session.

Importing an SDK takes a session a second of work; forking a process that has it costs nothing. But the agent's own code
must not run in a template, which has the rights to build sandboxes. So a throwaway session imports the agent first and
reports what it imported (`observe`), and the template imports of that what is installed on this machine (`preload`).
Packages are trusted as the interpreter is; the agent's folder, editable installs and `PYTHONPATH` are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import agentcore_rl_toolkit

from .sdk_warmup import rehearse_sdks
from .session_server import load_server, rehearse

_MOST_NAMES = 20_000
_IMPORTLIB = "<frozen importlib"
_FINDERS = ("BuiltinImporter", "FrozenImporter", "PathFinder", "DistutilsMetaFinder")
"""Python's, and the one of setuptools; others, such as those of editable installs, know folders of their own."""
_PROGRAMS = frozenset({"antigravity", "ensurepip", "idlelib", "pip", "test", "this", "turtledemo"})
"""Packages with modules that do something when they are imported."""


class _Observer:
    """An audit hook: which modules come with what the agent imports, and which of them can be imported without it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/") + "/"
        self._seen, self._threads = set(sys.modules), threading.active_count()
        self.names: list[str] = []
        """What was imported, in order, without what started threads, while the environment was as it was given."""
        self.changed: set[str] | None = None
        """Top-level packages that were there when the agent first changed the environment; None if it never did."""

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.changed is not None:
            return
        if event == "import" and self._from_agent(through_imports=True):
            self.take()
        elif event in ("os.putenv", "os.unsetenv") and self._from_agent():
            self.take()
            self.changed = _top_levels(sys.modules)  # what is imported from here on may depend on it

    def take(self) -> None:
        """Note what has been imported since the last time; nothing if a thread has been started as well."""
        new = [name for name in sys.modules if name not in self._seen]
        self._seen.update(new)
        count = threading.active_count()
        if count <= self._threads:
            self.names += [name for name in new if self.changed is None or name.partition(".")[0] in self.changed]
        self._threads = count

    def _from_agent(self, *, through_imports: bool = False) -> bool:
        """Whether the agent's code does this, not a package that it imports."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self._folder):
                return True
            if name.startswith(_IMPORTLIB) != through_imports:
                return False
            frame = frame.f_back
        return False


def observe(folder: str, python_path: Iterable[str], load: Callable[[], Any]) -> dict[str, Any]:
    """In a throwaway session: import the agent, rehearse serving and model calls; gives what that imported.

    Modules in the agent's folder and in `python_path` are its own, whatever is installed under the same name.
    """
    observer = _Observer(folder)
    sys.addaudithook(observer)
    app = load()
    if observer.changed is None:
        observer.take()
    else:
        observer._seen.update(sys.modules)
    for rehearsal in (rehearse(app), rehearse_sdks()):
        with contextlib.suppress(Exception):
            asyncio.run(asyncio.wait_for(rehearsal, 10))
    observer._threads = threading.active_count()  # those of event loops, which end with them
    observer.take()
    folders = tuple(place.rstrip("/") + "/" for place in (folder, *python_path))
    own = _top_levels(name for name, module in list(sys.modules.items()) if _is_below(module, folders))
    return {"imported": observer.names, "own": sorted(own)}


def preload(report: dict[str, Any], trusted: Iterable[str]) -> list[str]:
    """In the template: import what a report names and is installed; gives what forbids forking afterwards."""
    ours = os.path.dirname(agentcore_rl_toolkit.__file__)  # wherever it is installed from
    folders = tuple(os.path.realpath(path).rstrip("/") + "/" for path in (*trusted, ours))
    before = unsafe_to_fork()
    with _importing_only_from(folders):
        load_server()
        if not any(_is_installed(name, folders) for name in _texts(report.get("own"))):
            # Otherwise a file of the agent has a package's name, and takes its place wherever it is imported.
            for name in _texts(report.get("imported")):
                if _is_installed(name, folders):
                    with contextlib.suppress(Exception, SystemExit):
                        importlib.import_module(name)
    return sorted(unsafe_to_fork() - before)


@contextlib.contextmanager
def _importing_only_from(folders: tuple[str, ...]) -> Iterator[None]:
    """Have imports find nothing elsewhere: packages try optional ones, whose names an editable project may have."""
    path, finders = sys.path[:], sys.meta_path[:]
    sys.path[:] = [place for place in path if (os.path.realpath(place) + "/").startswith(folders)]
    sys.meta_path[:] = [finder for finder in finders if _name_of(finder) in _FINDERS]
    try:
        yield
    finally:
        sys.path[:] = _with_additions(path, sys.path)
        sys.meta_path[:] = _with_additions(finders, sys.meta_path)


def _with_additions(before: list[Any], now: list[Any]) -> list[Any]:
    """What was there before, with what packages have put in front of some of it, and behind."""
    first = next((at for at, item in enumerate(now) if item in before), len(now))
    return [*now[:first], *before, *(item for item in now[first:] if item not in before)]


def unsafe_to_fork() -> set[str]:
    """What a fork would duplicate in a broken state: threads, and descriptors that others talk to."""
    found = set()
    if not os.path.isdir("/proc/self/task"):
        return {f"thread {t.name}" for t in threading.enumerate() if t is not threading.main_thread()}
    for task in os.listdir("/proc/self/task"):
        if task != str(os.getpid()):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
                found.add(f"thread {task} ({file.read().strip()})")
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if target.startswith(("socket:", "anon_inode:")):
                found.add(f"descriptor {descriptor} ({target})")
    return found


def _texts(value: Any) -> list[str]:
    """A report comes from the agent's process, and may hold anything."""
    return [item for item in value if isinstance(item, str)][:_MOST_NAMES] if isinstance(value, list) else []


def _is_installed(name: str, folders: tuple[str, ...]) -> bool:
    """Whether a module's top-level package is the interpreter's or in `site-packages`. Finding it runs none of it."""
    top = name.partition(".")[0]
    if top in _PROGRAMS or any(part.startswith("__") for part in name.split(".")):
        return False
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec(top)
        if spec is not None:
            places = list(spec.submodule_search_locations or []) or [spec.origin or ""]
            return all((os.path.realpath(place) + "/").startswith(folders) for place in places)
    return False


def _name_of(finder: Any) -> str:
    return str(getattr(finder, "__name__", type(finder).__name__))


def _top_levels(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _is_below(module: Any, folders: tuple[str, ...]) -> bool:
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and path.startswith(folders)
