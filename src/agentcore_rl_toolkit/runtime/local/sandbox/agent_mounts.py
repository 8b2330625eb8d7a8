"""Puts an agent's files into the root of its sessions: as a copy, made when their template starts.

Nothing that appears in the folder later is in the copy, so neither new secrets nor other rollouts' results are. A
folder too large to copy has its largest files mounted instead, read-only, or its largest folders if those files are
too many.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from ...hosting.agent_files import copy_agent_folder, walk_agent_folder
from . import syscalls as linux

_LARGEST_COPY = 256 << 20
_MOST_FILES = 64
_MOUNTS = "/.large"


class Mounted(NamedTuple):
    """A file or folder that is mounted instead of copied."""

    relative: str
    source: str
    """Where sessions find it in their root."""
    is_folder: bool
    covered: list[tuple[str, bool]]
    """The excluded paths in a folder, and whether each is itself a folder."""


def place_agent_files(folder: str, root: str, empty: str) -> list[Mounted]:
    """Copy the agent's files to `/.agent` of `root`, a separate file system; returns the mounted paths."""
    found = list(walk_agent_folder(folder))
    sizes = {f.relative: f.stat.st_size for f in found if f.excluded is None and stat.S_ISREG(f.stat.st_mode)}
    mounted = []
    for number, relative in enumerate(choose_mounts(sizes)):
        source, is_folder = f"{_MOUNTS}/{number}", relative not in sizes
        inside = [file for file in found if file.excluded and file.relative.startswith(relative + "/")]
        # A link needs no cover: its target is covered, or missing in the session.
        covered = [(f.relative[len(relative) + 1 :], f.is_folder) for f in inside if not stat.S_ISLNK(f.stat.st_mode)]
        _mount_read_only(os.path.join(folder, relative), root + source, is_folder)
        for name, covers_folder in covered:
            cover(f"{root}{source}/{name}", covers_folder, empty)
        mounted.append(Mounted(relative, source, is_folder, covered))
    copy_agent_folder(folder, f"{root}/.agent", empty={item.relative for item in mounted})
    return mounted


def choose_mounts(sizes: Mapping[str, int], most: int = _LARGEST_COPY) -> list[str]:
    """The fewest files and folders to mount so that the other files have at most `most` bytes.

    >>> choose_mounts({"app.py": 1, "weights/a.bin": 60, "weights/b.bin": 50}, 100)
    ['weights/a.bin']
    """
    by_size = sorted(sizes, key=lambda path: -sizes[path])
    files = _first_until_small(by_size, sizes, sum(sizes.values()), most)
    if len(files) <= _MOST_FILES:
        return files
    folders: Counter[str] = Counter()
    for path, size in sizes.items():
        if "/" in path:
            folders[path.partition("/")[0]] += size
    whole = _first_until_small([name for name, _ in folders.most_common()], folders, sum(sizes.values()), most)
    left = {path: size for path, size in sizes.items() if path.partition("/")[0] not in whole}
    return whole + _first_until_small([path for path in by_size if path in left], left, sum(left.values()), most)


def mount_in_session(item: Mounted, upper: str, work: str, empty: str) -> None:
    """In a session: mount the item in `/app`. The session's changes to a folder go to `upper`."""
    path = f"/app/{item.relative}"
    if not item.is_folder:
        linux.mount(item.source, path, None, linux.MS_BIND)
        return
    options = f"lowerdir={item.source},upperdir={upper},workdir={work}"
    linux.mount("overlay", path, "overlay", linux.MS_NOSUID | linux.MS_NODEV, options)
    for name, is_folder in item.covered:  # an overlay ignores the mounts in its lower folder
        cover(f"{path}/{name}", is_folder, empty)


def cover(path: str, is_folder: bool, empty: str) -> None:
    """Hide a path: mount an empty folder, or the file `empty`, over it."""
    safe = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
        if is_folder:
            linux.mount("tmpfs", path, "tmpfs", safe, "mode=755,size=4k")
        else:
            linux.mount(empty, path, None, linux.MS_BIND)
            linux.mount("none", path, None, linux.MS_REMOUNT | linux.MS_BIND | safe)  # all covers share this file


def _first_until_small(paths: list[str], sizes: Mapping[str, int], total: int, most: int) -> list[str]:
    taken = []
    for path in paths:
        if total <= most:
            break
        taken.append(path)
        total -= sizes[path]
    return taken


def _mount_read_only(path: str, target: str, is_folder: bool) -> None:
    os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)
    if not is_folder:
        open(target, "x").close()
    linux.bind_read_only(path, target)
