"""What a template's Python imports from, and what sessions see of it: the interpreter, and installed packages.

Called in a template, which is a Python without the caller's script folder and without `PYTHONPATH` (`-I`), so that
`sys.path` is the installation's own. Packages in `site-packages` are trusted, as the interpreter is: templates preload
them. Folders that are imported from in another way (editable installs, `.pth` files, `PYTHONPATH`) are often whole
projects: of those, sessions see the modules and packages, without secrets, results and environments.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata

from ...hosting.agent_files import entries

_PACKAGES = ("site-packages", "dist-packages")
_MODULE = (".py", ".so", ".pyd")
_METADATA = (".dist-info", ".egg-info")


def trusted_folders() -> list[str]:
    """The standard library, and where packages are installed."""
    paths = sysconfig.get_paths()
    stdlib = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib")}
    stdlib |= {os.path.join(path, "lib-dynload") for path in stdlib}
    found = [path for path in sys.path if os.path.isdir(path)]
    return [p for p in found if os.path.basename(p) in _PACKAGES or os.path.realpath(p) in stdlib]


def shown_paths(python_path: list[str]) -> tuple[list[str], list[str]]:
    """What sessions see of the host at its own place, and what of that is hidden again."""
    shown = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    trusted = trusted_folders()
    shown.update(trusted)
    projects = [path for path in (*sys.path, *python_path) if os.path.isdir(path) and path not in trusted]
    modules = {module for project in projects for module in _modules_in(project)} | set(_editable_modules())
    modules = {path for path in modules if not _below(path, shown)}
    hidden = [
        entry.path for path in sorted(modules) if os.path.isdir(path) for entry in entries(path) if entry.left_out
    ]
    return _without_nested(shown | {os.path.realpath(path) for path in shown} | modules), hidden


def _modules_in(folder: str) -> Iterator[str]:
    """What can be imported from a folder, and the metadata beside it."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            is_module = name.endswith(_METADATA) or (name.endswith(_MODULE) and os.path.isfile(path))
            if is_module or (name.isidentifier() and _is_package(path)):
                yield path


def _is_package(path: str, depth: int = 2) -> bool:
    """Whether a folder holds modules, if need be further down, as namespace packages do."""
    with contextlib.suppress(OSError):
        if os.path.exists(os.path.join(path, "pyvenv.cfg")):
            return False
        names = os.listdir(path)
        if any(name.endswith(_MODULE) for name in names):
            return True
        inner = [os.path.join(path, name) for name in names if depth > 0 and name.isidentifier()]
        return any(_is_package(folder, depth - 1) for folder in inner)
    return False


def _editable_modules() -> Iterator[str]:
    """Packages of editable installs that no entry of `sys.path` leads to: their finders know where they are."""
    for distribution in metadata.distributions():
        with contextlib.suppress(Exception):
            if not json.loads(distribution.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
                continue
            names = (distribution.read_text("top_level.txt") or "").split()
            for name in {*names, distribution.metadata["Name"].replace("-", "_")}:
                spec = importlib.util.find_spec(name)
                if spec is not None:
                    yield from spec.submodule_search_locations or [spec.origin or ""]


def _below(path: str, folders: set[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _without_nested(paths: set[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted(paths, key=len):
        if os.path.isabs(path) and path != "/" and not _below(path, set(kept)):
            kept.append(path)
    return kept
