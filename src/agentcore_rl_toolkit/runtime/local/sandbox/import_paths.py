"""Python in a sandbox: how it starts, where it imports from, and what sessions see of those folders.

A template starts as `python -I`, without the caller's script folder and `PYTHONPATH`, because it has rights that an
agent's code must not get: a plain `python -m` would import modules from the working directory, often the agent's
folder. Packages in `site-packages` are as trusted as the interpreter, and templates preload them. Folders on
`sys.path` for other reasons (editable installs, `.pth` files, `PYTHONPATH`) are often whole projects: sessions see
only the modules and packages in them, without secrets, results and environments.
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
from pathlib import Path

from ...hosting.agent_files import walk_agent_folder

WORKING_DIRECTORY = "/"
_START = """
import sys
home = sys.argv.pop(1)
if home not in sys.path:
    sys.path.insert(0, home)
    import agentcore_rl_toolkit
    sys.path.append(sys.path.pop(0))
from {module} import main
main()
"""
_PACKAGES = ("site-packages", "dist-packages")
_MODULE = (".py", ".so", ".pyd")
_METADATA = (".dist-info", ".egg-info")


def isolated_command(module: str) -> list[str]:
    """The command that runs `main` of one of the toolkit's modules; run it in `WORKING_DIRECTORY`."""
    home = str(Path(__file__).resolve().parents[4])
    return [sys.executable, "-I", "-u", "-B", "-c", _START.format(module=module), home]


def trusted_folders() -> list[str]:
    """The standard library, and the folders of installed packages."""
    paths = sysconfig.get_paths()
    stdlib = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib")}
    stdlib |= {os.path.join(path, "lib-dynload") for path in stdlib}
    found = [path for path in sys.path if os.path.isdir(path)]
    return [p for p in found if os.path.basename(p) in _PACKAGES or os.path.realpath(p) in stdlib]


def visible_paths(python_path: list[str]) -> tuple[list[str], list[str]]:
    """The host's paths that sessions see for their imports, and the paths below those that are covered."""
    visible = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    trusted = trusted_folders()
    visible.update(trusted)
    projects = [path for path in (*sys.path, *python_path) if os.path.isdir(path) and path not in trusted]
    modules = {module for project in projects for module in _modules_in(project)} | set(_editable_modules())
    modules = {path for path in modules if not _is_below(path, visible)}
    covered: list[str] = []
    for folder in sorted(path for path in modules if os.path.isdir(path)):
        excluded = [file.path for file in walk_agent_folder(folder) if file.excluded]
        excluded = [path for path in excluded if not _is_below(path, visible)]  # such as the environment itself
        if any(_is_below(path, set(excluded)) for path in visible):
            modules.discard(folder)  # it can be shown neither with what is excluded nor without the environment
        else:
            covered += excluded
    return _without_nested(visible | {os.path.realpath(path) for path in visible} | modules), covered


def _modules_in(folder: str) -> Iterator[str]:
    """The modules and packages in a folder, and the metadata beside them."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            is_module = name.endswith(_METADATA) or (name.endswith(_MODULE) and os.path.isfile(path))
            if is_module or (name.isidentifier() and _is_package(path)):
                yield path


def _is_package(path: str, depth: int = 2) -> bool:
    """Whether a folder holds modules, directly or, as namespace packages do, a few levels down."""
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
    """Packages of editable installs that are not on `sys.path`; their import finders know where they are."""
    for distribution in metadata.distributions():
        with contextlib.suppress(Exception):
            if not json.loads(distribution.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
                continue
            names = (distribution.read_text("top_level.txt") or "").split()
            for name in {*names, distribution.metadata["Name"].replace("-", "_")}:
                spec = importlib.util.find_spec(name)
                if spec is not None:
                    yield from spec.submodule_search_locations or [spec.origin or ""]


def _is_below(path: str, folders: set[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _without_nested(paths: set[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted(paths, key=len):
        if os.path.isabs(path) and path != "/" and not _is_below(path, set(kept)):
            kept.append(path)
    return kept
