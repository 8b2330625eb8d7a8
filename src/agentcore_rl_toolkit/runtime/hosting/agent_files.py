"""Which files of an agent's folder its sessions get: code and data, without secrets, results and environments.

Every runtime and every image uses this one rule. Agents' code is hostile, and a folder often holds more than the agent:
credentials, earlier results (with the answers to the data rows), virtual environments, version control.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Container, Iterator
from typing import NamedTuple

_SECRETS = (
    ".env", ".env.*", ".envrc", ".aws", ".azure", ".config", ".docker", ".git-credentials", ".gnupg", ".kube",
    ".netrc", "_netrc", ".npmrc", ".pgpass", ".pypirc", ".ssh", ".*_history", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    "id_rsa*", "*.key", "*.p12", "*.pfx",
)  # fmt: skip
_UNNEEDED = (
    "runs", ".venv*", "venv", "node_modules", ".tox", ".nox", ".direnv", ".git", ".hg", ".svn",
)  # fmt: skip
_CACHES = ("__pycache__", ".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".DS_Store")
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
_STORE_MARKS = (".new", ".announced")  # folders that a directory store keeps
_RUN_MARKS = ("metrics.jsonl", "rollouts")  # files that a training run keeps
_CODE = (
    ".py", ".pyi", ".pyx", ".so", ".sh", ".sql", ".toml", ".yaml", ".yml", ".cfg", ".ini", ".txt", ".md", ".j2",
    ".jinja", ".jinja2", ".prompt",
)  # fmt: skip
_MOST_FILES = 5000


def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(name) for name in names), re.IGNORECASE)


_ALLOWED = _pattern((".env.example", ".env.sample", ".env.template"))
_KINDS = {"secret": _pattern(_SECRETS), "unneeded": _pattern(_UNNEEDED), "": _pattern(_CACHES)}
Fingerprint = dict[str, tuple[int, int]]


class AgentFile(NamedTuple):
    """One file, folder or link below an agent's folder."""

    path: str
    relative: str
    excluded: str | None
    """Why sessions don't get it: `secret`, `unneeded` (results, environments, history), or empty for caches."""
    is_folder: bool
    stat: os.stat_result


def walk_agent_folder(folder: str, base: str = "") -> Iterator[AgentFile]:
    """Everything below the folder, each folder before its contents; excluded folders are not entered."""
    is_home = not base and os.path.realpath(folder) == os.path.realpath(os.path.expanduser("~"))
    try:
        names = sorted(os.listdir(os.path.join(folder, base)))
    except OSError:
        return
    for name in names:
        relative = os.path.join(base, name)
        path = os.path.join(folder, relative)
        try:
            found = os.lstat(path)
        except OSError:
            continue
        is_folder = stat.S_ISDIR(found.st_mode)
        excluded = _reason_to_exclude(path, name, found)
        if excluded is None and is_home and name.startswith("."):  # programs keep credentials in hidden files there
            excluded = "secret"
        yield AgentFile(path, relative, excluded, is_folder, found)
        if is_folder and excluded is None:
            yield from walk_agent_folder(folder, relative)


def agent_files(folder: str) -> list[str]:
    """The files that sessions get, links included."""
    return [file.path for file in walk_agent_folder(folder) if file.excluded is None and not file.is_folder]


def excluded_paths(folder: str) -> list[str]:
    """What sessions don't get, apart from caches, as paths below the folder."""
    return [f"{file.relative}{'/' * file.is_folder}" for file in walk_agent_folder(folder) if file.excluded]


def copy_agent_folder(source: str, target: str, empty: Container[str] = ()) -> None:
    """Copy what sessions get, except unreadable files. Files and top-level folders in `empty` become empty ones."""
    os.makedirs(target, exist_ok=True)
    for file in walk_agent_folder(source):
        top, below, _ = file.relative.partition("/")
        if file.excluded is not None or (below and top in empty):
            continue
        copy = os.path.join(target, file.relative)
        with contextlib.suppress(OSError):
            if file.is_folder:
                os.makedirs(copy, exist_ok=True)
                os.chmod(copy, stat.S_IMODE(file.stat.st_mode) | 0o700)
            elif file.relative in empty:
                open(copy, "x").close()
            else:
                shutil.copy2(file.path, copy, follow_symlinks=False)


def pack_agent_folder(folder: str) -> bytes:
    """What `copy_agent_folder` would copy, as a tar archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for file in walk_agent_folder(folder):
            if file.excluded is None:
                member = archive.gettarinfo(file.path, file.relative)
                member = member.replace(uid=0, gid=0, uname="", gname="", deep=False)
                if member.isreg():
                    with open(file.path, "rb") as content:
                        archive.addfile(member, content)
                else:
                    archive.addfile(member)
    return packed.getvalue()


def unpack_agent_folder(packed: bytes, folder: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="fully_trusted")  # `pack_agent_folder` made it


def fingerprint(folder: str, known: Fingerprint | None = None) -> Fingerprint:
    """Changes when the agent's code does, prompts and settings included.

    Data files don't count: output written into the folder would reload the agent with every line. A JSON file counts
    if it is in `known`, the fingerprint of the loaded code: tool schemas are JSON, and so are new results.
    """
    found: Fingerprint = {}
    for file in walk_agent_folder(folder):
        suffix = os.path.splitext(file.path)[1].lower()
        wanted = suffix in _CODE or (suffix == ".json" and (known is None or file.path in known))
        fits = len(found) < _MOST_FILES or suffix == ".py"
        if file.excluded is None and not file.is_folder and wanted and fits:
            found[file.path] = (file.stat.st_mtime_ns, file.stat.st_size)
        elif file.excluded == "secret":  # a new secret in a mounted folder has to be covered
            found[file.path] = (0, 0)
    return found


def _reason_to_exclude(path: str, name: str, found: os.stat_result) -> str | None:
    if _ALLOWED.fullmatch(name) is None:
        for kind, pattern in _KINDS.items():
            if pattern.fullmatch(name):
                return kind
    if stat.S_ISDIR(found.st_mode):
        return "unneeded" if _is_environment_or_results(path) else None
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
        return ""  # sockets, pipes and devices
    return "secret" if name.lower().endswith(".pem") and _is_private_key(path) else None


def _is_environment_or_results(folder: str) -> bool:
    def has(name: str) -> bool:
        return os.path.exists(os.path.join(folder, name))

    return any(map(has, _ENVIRONMENT_MARKS + _STORE_MARKS)) or all(map(has, _RUN_MARKS))


def _is_private_key(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return b"PRIVATE KEY" in file.read(1 << 16)
    return False
