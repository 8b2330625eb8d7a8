"""An agent's folder as its sessions see it: a copy, made when their template starts.

So nothing that appears in the folder later is in it: secrets, or the results of other rollouts. What makes the folder
too large to copy is shown itself: its largest files, read-only, or if those would be too many, its largest folders.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from ...hosting.agent_files import copy_agent_folder, entries
from ..sandbox import syscalls as linux

_LARGEST_COPY = 256 << 20
_FEW = 64
_KEPT = "/.large"


class Large(NamedTuple):
    """A file or folder that is shown itself."""

    relative: str
    kept: str
    """Where sessions find it in their root."""
    is_folder: bool
    hidden: list[tuple[str, bool]]
    """What is covered in a folder, and whether it is one itself."""


def lay_out(folder: str, root: str, empty: str) -> list[Large]:
    """Put the agent's files at `/.agent` of `root`, a file system of its own; gives what is shown beside the copy."""
    found = list(entries(folder))
    sizes = {entry.relative: entry.stat.st_size for entry in found if entry.left_out is None and _is_file(entry.stat)}
    large = []
    for number, relative in enumerate(too_large(sizes)):
        kept, is_folder = f"{_KEPT}/{number}", relative not in sizes
        inside = [entry for entry in found if entry.left_out and entry.relative.startswith(relative + "/")]
        # A link is left alone: what it leads to is covered itself, or not there.
        hidden = [(e.relative[len(relative) + 1 :], e.is_folder) for e in inside if not stat.S_ISLNK(e.stat.st_mode)]
        _show(os.path.join(folder, relative), root + kept, is_folder)
        for name, hides_folder in hidden:
            cover(f"{root}{kept}/{name}", hides_folder, empty)
        large.append(Large(relative, kept, is_folder, hidden))
    copy_agent_folder(folder, f"{root}/.agent", empty={item.relative for item in large})
    return large


def too_large(sizes: Mapping[str, int], most: int = _LARGEST_COPY) -> list[str]:
    """The files and folders without which files of these `sizes` are no more than `most` bytes; as few as will do.

    >>> too_large({"app.py": 1, "weights/a.bin": 60, "weights/b.bin": 50}, 100)
    ['weights/a.bin']
    """
    by_size = sorted(sizes, key=lambda path: -sizes[path])
    files = _until_small(by_size, sizes, sum(sizes.values()), most)
    if len(files) <= _FEW:
        return files
    folders: Counter[str] = Counter()
    for path, size in sizes.items():
        if "/" in path:
            folders[path.partition("/")[0]] += size
    whole = _until_small([name for name, _ in folders.most_common()], folders, sum(sizes.values()), most)
    left = {path: size for path, size in sizes.items() if path.partition("/")[0] not in whole}
    return whole + _until_small([path for path in by_size if path in left], left, sum(left.values()), most)


def show_large(item: Large, upper: str, work: str, empty: str) -> None:
    """In a session: show it in `/app`; what the session changes in a folder lands in `upper`."""
    path = f"/app/{item.relative}"
    if not item.is_folder:
        linux.mount(item.kept, path, None, linux.MS_BIND)
        return
    options = f"lowerdir={item.kept},upperdir={upper},workdir={work}"
    linux.mount("overlay", path, "overlay", linux.MS_NOSUID | linux.MS_NODEV, options)
    for name, is_folder in item.hidden:  # an overlay looks through the covers below it
        cover(f"{path}/{name}", is_folder, empty)


def cover(path: str, is_folder: bool, empty: str) -> None:
    """Have an empty folder, or the file `empty`, in the place of what sessions must not see."""
    safe = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY
    with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
        if is_folder:
            linux.mount("tmpfs", path, "tmpfs", safe, "mode=755,size=4k")
        else:
            linux.mount(empty, path, None, linux.MS_BIND)
            linux.mount("none", path, None, linux.MS_REMOUNT | linux.MS_BIND | safe)  # all covers are the same file


def _until_small(paths: list[str], sizes: Mapping[str, int], total: int, most: int) -> list[str]:
    taken = []
    for path in paths:
        if total <= most:
            break
        taken.append(path)
        total -= sizes[path]
    return taken


def _show(path: str, target: str, is_folder: bool) -> None:
    os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)
    if not is_folder:
        open(target, "x").close()
    linux.bind_read_only(path, target)


def _is_file(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode)
