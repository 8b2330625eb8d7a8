"""Which files of an agent's folder its sessions get: its code and data, without secrets, results and environments.

One rule for every runtime and for images. Agents' code is untrusted, and a folder often holds more than the agent:
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
_NO_SECRETS = (".env.example", ".env.sample", ".env.template")
_RESULTS = ("runs",)
_ENVIRONMENTS = (".venv*", "venv", "node_modules", ".tox", ".nox", ".direnv")
_HISTORY = (".git", ".hg", ".svn")
_LEFTOVERS = ("__pycache__", ".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".DS_Store")
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
_STORE_MARKS = (".new", ".announced")  # what a directory store keeps beside its results
_RUN_MARKS = ("metrics.jsonl", "rollouts")  # what a training run keeps
_CODE = (
    ".py", ".pyi", ".pyx", ".so", ".sh", ".sql", ".toml", ".yaml", ".yml", ".cfg", ".ini", ".txt", ".md", ".j2",
    ".jinja", ".jinja2", ".prompt",
)  # fmt: skip
_MOST_FILES = 5000


def _pattern(*groups: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(name) for group in groups for name in group), re.IGNORECASE)


_ALLOWED = _pattern(_NO_SECRETS)
_KINDS = {
    "secret": _pattern(_SECRETS),
    "results": _pattern(_RESULTS),
    "environment": _pattern(_ENVIRONMENTS),
    "history": _pattern(_HISTORY),
    "": _pattern(_LEFTOVERS),
}
Fingerprint = dict[str, tuple[int, int]]


class Entry(NamedTuple):
    """One file, folder or link below an agent's folder."""

    path: str
    relative: str
    left_out: str | None
    """Why sessions don't get it: `secret`, `results`, `environment`, `history`, or empty for what nobody would miss."""
    is_folder: bool
    stat: os.stat_result


def entries(folder: str, base: str = "") -> Iterator[Entry]:
    """Everything below the folder, each folder before what is in it; not what is inside of something left out."""
    hidden = not base and os.path.realpath(folder) == os.path.realpath(os.path.expanduser("~"))
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
        why = _why_left_out(path, name, found)
        if why is None and hidden and name.startswith("."):  # in a home directory, whose programs keep anything there
            why = "secret"
        yield Entry(path, relative, why, is_folder, found)
        if is_folder and why is None:
            yield from entries(folder, relative)


def agent_files(folder: str) -> list[str]:
    """The files that sessions get, links included."""
    return [entry.path for entry in entries(folder) if entry.left_out is None and not entry.is_folder]


def left_out(folder: str) -> list[str]:
    """What sessions don't get and somebody might miss, as paths below the folder."""
    return [f"{entry.relative}{'/' * entry.is_folder}" for entry in entries(folder) if entry.left_out]


def copy_agent_folder(source: str, target: str, empty: Container[str] = ()) -> None:
    """Copy what sessions get. A file that can't be read is not copied, and the agent will say so if it needs it.

    Of files and of folders at the top that are in `empty`, only the name is copied.
    """
    os.makedirs(target, exist_ok=True)
    for entry in entries(source):
        top, below, _ = entry.relative.partition("/")
        if entry.left_out is not None or (below and top in empty):
            continue
        copy = os.path.join(target, entry.relative)
        with contextlib.suppress(OSError):
            if entry.is_folder:
                os.makedirs(copy, exist_ok=True)
                os.chmod(copy, stat.S_IMODE(entry.stat.st_mode) | 0o700)
            elif entry.relative in empty:
                open(copy, "x").close()
            else:
                shutil.copy2(entry.path, copy, follow_symlinks=False)


def pack_agent_folder(folder: str) -> bytes:
    """What `copy_agent_folder` would copy, as bytes that another machine can unpack."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for entry in entries(folder):
            if entry.left_out is None:
                member = archive.gettarinfo(entry.path, entry.relative)
                member = member.replace(uid=0, gid=0, uname="", gname="", deep=False)
                if member.isreg():
                    with open(entry.path, "rb") as file:
                        archive.addfile(member, file)
                else:
                    archive.addfile(member)
    return packed.getvalue()


def unpack_agent_folder(packed: bytes, folder: str) -> None:
    """The inverse of `pack_agent_folder`."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="fully_trusted")  # it is from ourselves


def fingerprint(folder: str, known: Fingerprint | None = None) -> Fingerprint:
    """Changes when the agent's code does: files that programs and people write, prompts and settings included.

    Data don't count, so that output written into the folder doesn't load the agent again with every line. A JSON file
    counts if it is in `known`, the fingerprint of what was loaded: tool schemas are JSON, and so are new results.
    """
    found: Fingerprint = {}
    for entry in entries(folder):
        suffix = os.path.splitext(entry.path)[1].lower()
        wanted = suffix in _CODE or (suffix == ".json" and (known is None or entry.path in known))
        room = len(found) < _MOST_FILES or suffix == ".py"
        if entry.left_out is None and not entry.is_folder and wanted and room:
            found[entry.path] = (entry.stat.st_mtime_ns, entry.stat.st_size)
        elif entry.left_out == "secret":  # that there is one: a folder that is shown as it is has to hide it
            found[entry.path] = (0, 0)
    return found


def _why_left_out(path: str, name: str, found: os.stat_result) -> str | None:
    if _ALLOWED.fullmatch(name) is None:
        for kind, pattern in _KINDS.items():
            if pattern.fullmatch(name):
                return kind
    if stat.S_ISDIR(found.st_mode):
        return _kind_of_folder(path)
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
        return ""  # sockets, pipes and devices
    return "secret" if name.lower().endswith(".pem") and _is_private_key(path) else None


def _kind_of_folder(path: str) -> str | None:
    if any(os.path.exists(os.path.join(path, mark)) for mark in _ENVIRONMENT_MARKS):
        return "environment"
    if any(os.path.isdir(os.path.join(path, mark)) for mark in _STORE_MARKS):
        return "results"
    if all(os.path.exists(os.path.join(path, mark)) for mark in _RUN_MARKS):
        return "results"
    return None


def _is_private_key(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return b"PRIVATE KEY" in file.read(1 << 16)
    return False
