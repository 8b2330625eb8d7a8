"""An agent's code: where it is, which files belong to it, and how its app is loaded from them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

from ..errors import ConfigError

_NOT_COPIED = shutil.ignore_patterns(".git", ".hg", ".venv*", "venv", ".env", "__pycache__", "node_modules", "runs")


def find_agent(target: str | os.PathLike[str], name: str | None = None) -> tuple[str, str, str]:
    """The name, the folder and the entry (`file.py` in it, or `module:app`) of what a user calls an agent.

    A folder means the `rl_app.py` in it.

    >>> find_agent("my.agents:app")[0]
    'agents'
    """
    text = os.fspath(target)
    if text.endswith(".py") or os.sep in text or os.path.isfile(os.path.join(text, "rl_app.py")):
        path = Path(text).resolve()
        if path.is_dir():
            path = path / "rl_app.py"
        if not path.is_file():
            raise ConfigError(f"there is no agent at {path}", hint="name a Python file, or module:app")
        default = path.parent.name if path.stem in ("rl_app", "app", "main", "basic_app") else path.stem
        folder, entry = str(path.parent), path.name
    else:
        folder, entry, default = os.getcwd(), text, text.partition(":")[0].split(".")[-1]
    fit = "".join(c if c.isalnum() or c == "_" else "_" for c in (name or default))[:48] or "agent"
    return fit, folder, entry


def copy_agent_folder(source: str, target: str) -> None:
    """Copy what belongs to an agent: not its history, environments, secrets or runs."""
    shutil.copytree(source, target, symlinks=True, ignore=_NOT_COPIED, dirs_exist_ok=True)


def agent_files(folder: str) -> list[str]:
    """The files that `copy_agent_folder` would copy, or the source files only if there are very many."""
    found: list[str] = []
    for base, folders, files in os.walk(folder):
        skipped = _NOT_COPIED(base, folders + files)
        folders[:] = [name for name in folders if name not in skipped]
        found += [os.path.join(base, name) for name in files if name not in skipped]
        if len(found) > 5000:
            return [path for path in found if path.endswith(".py")]
    return found


def fingerprint(folder: str) -> tuple[tuple[str, int, int], ...]:
    """Changes when a file of the agent does."""
    stats = []
    for path in agent_files(folder):
        with contextlib.suppress(OSError):
            found = os.stat(path)
            stats.append((path, found.st_mtime_ns, found.st_size))
    return tuple(stats)


def pack_agent_folder(folder: str) -> bytes:
    """What `copy_agent_folder` would copy, as bytes that another machine can unpack."""

    def chosen(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = os.path.basename(member.name)
        return None if _NOT_COPIED("", [name]) else member.replace(uid=0, gid=0, uname="", gname="", deep=False)

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, arcname=".", filter=chosen)
    return packed.getvalue()


def unpack_agent_folder(packed: bytes, folder: str) -> None:
    """The inverse of `pack_agent_folder`."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="fully_trusted")  # it is from ourselves


def load_app(folder: str, entry: str) -> Any:
    """Import the agent, with its folder as the working directory, and find its app."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    module_name, _, attribute = entry.partition(":")
    if module_name.endswith(".py"):
        name = os.path.basename(module_name).removesuffix(".py")
        loader = importlib.util.spec_from_file_location(name, os.path.join(folder, module_name))
        if loader is None or loader.loader is None:
            raise ImportError(f"{module_name} can't be imported")
        module = importlib.util.module_from_spec(loader)
        sys.modules[name] = module
        loader.loader.exec_module(module)
    else:
        module = importlib.import_module(module_name)
    return _find_app(module, attribute)


def _find_app(module: Any, attribute: str) -> Any:
    from bedrock_agentcore.runtime import BedrockAgentCoreApp

    if attribute:
        if not hasattr(module, attribute):
            raise ImportError(f"{module.__name__} has no {attribute!r}")
        return getattr(module, attribute)
    apps = [(name, value) for name, value in vars(module).items() if isinstance(value, BedrockAgentCoreApp)]
    for name, value in apps:
        if name == "app" or len(apps) == 1:
            return value
    raise ImportError(f"{module.__name__} has no app: `app = AgentCoreRLApp()` at the top level is what is looked for")
