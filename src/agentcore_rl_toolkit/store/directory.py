"""The store in a directory, for one machine: `put_if_absent` by hard link, announcements as files.

    <root>/<exp_id>/<input_id>/<session_id>.json     the documents
    <root>/.new/                                     documents being written; a crash leaves them here, unread
    <root>/.announced/<exp_id, quoted>/<time>-<id>   one small file per announcement; its reader removes it

Many processes may use it: a document appears whole or not at all, and one writer of a key wins. A symbolic link that
leads out of the root is never followed.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn
from urllib.parse import quote

from ..errors import KeyInvalid, KeyNotFound, ResultUnreadable, StoreError, StoreUnavailable
from ..types import RolloutId, check_key, check_prefix
from .base import FolderStore

_TEMPORARY = frozenset(
    {errno.EAGAIN, errno.EINTR, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ESTALE}
)

_LONGEST_KEY = 4096
_POLL_SECONDS = 0.01
_POLL_SHARE = 0.05
"""The part of a core that a reader's polls take: where many announcements wait for others, it polls less often."""
KEPT_SECONDS = 60.0
"""An announcement without a taker for this long is removed; the client still looks for the result."""


class LocalStore(FolderStore):
    """Documents in one directory. Open it with `open_store`."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).resolve()
        super().__init__(str(self._root))
        self._new = self._root / ".new"
        self._passed: dict[Path, dict[str, float]] = {}
        """Announcements left for other readers, by folder, with the time of the first look at them."""
        self._waits_no_more = threading.Event()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        try:
            return self._write_once(path, data)
        except OSError as error:
            self._fail(error, f"could not store {key!r}")

    def get(self, key: str, *, limit: int | None = None) -> bytes:
        try:
            with _open_file(self._path(key)) as file:
                size = os.fstat(file.fileno()).st_size
                if limit is not None and size > limit:
                    raise ResultUnreadable(f"{key!r} in {self.url} is {size:,} bytes long; {limit:,} are read")
                data = file.read(size)
                self.usage["bytes_read"] += len(data)
                return data
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise KeyNotFound(f"nothing is stored under {key!r} in {self.url}") from None
        except OSError as error:
            self._fail(error, f"could not read {key!r}")

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    def keys(self, prefix: str = "") -> Iterator[str]:
        folder = check_prefix(prefix).rpartition("/")[0]
        if not self._holds(self._root / folder):
            return
        try:
            for key in self._walk(self._root / folder, f"{folder}/" if folder else ""):
                if key.startswith(prefix):
                    yield key
        except OSError as error:
            self._fail(error, f"could not list {prefix!r}")

    def announce(self, key: str) -> None:
        folder = self._announced(RolloutId.from_key(key).exp_id)
        try:
            self._write_once(folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}", key.encode(), durable=False)
        except OSError as error:
            self._fail(error, f"could not announce {key!r}")

    def find(self, keys: Sequence[str]) -> tuple[set[str], list[str]]:
        root = f"{self._root}{os.sep}"
        return {key for key in keys if os.path.exists(root + check_key(key))}, []

    def announcements(self, exp_id: str, wait_seconds: float, wanted: Callable[[str], bool] | None = None) -> list[str]:
        folder = self._announced(exp_id)
        deadline = time.monotonic() + wait_seconds
        try:
            while True:
                began = time.thread_time()  # a clock would count the time that a busy machine lets this thread wait
                keys = list(self._read_announcements(folder, wanted))
                spent, now = time.thread_time() - began, time.monotonic()
                if keys or now >= deadline:
                    return keys
                if self._waits_no_more.wait(min(deadline - now, max(_POLL_SECONDS, spent / _POLL_SHARE))):
                    return []
        except OSError as error:
            self._fail(error, f"could not read announcements of {exp_id!r}")

    def stop_waiting(self) -> None:
        self._waits_no_more.set()

    def _read_announcements(self, folder: Path, wanted: Callable[[str], bool] | None) -> Iterator[str]:
        """The announcements that this reader removed, oldest first."""
        try:
            names = sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        now, known = time.monotonic(), self._passed.get(folder, {})
        passed = self._passed[folder] = {name: known[name] for name in names if name in known}
        for name in names:
            if name in passed and now - passed[name] < KEPT_SECONDS:
                continue
            path = folder / name
            try:
                with _open_file(path) as file:
                    key = file.read(_LONGEST_KEY).decode(errors="replace")
                mine = wanted is None or wanted(key)
                if not mine and name not in passed:
                    passed[name] = now
                    continue
                path.unlink()
            except (FileNotFoundError, IsADirectoryError, PermissionError, ResultUnreadable):
                continue  # another reader was first, or the file is not an announcement
            if mine:
                yield key

    def _write_once(self, path: Path, data: bytes, *, durable: bool = True) -> bool:
        """Write `path` whole unless it exists. True if it was written."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._new.mkdir(exist_ok=True)
        draft = self._new / uuid.uuid4().hex
        try:
            with open(draft, "xb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            try:
                os.link(draft, path)
            except FileExistsError:
                if path.is_dir():
                    raise StoreError(f"{path} is a folder, with other keys below it") from None
                return False
        finally:
            draft.unlink(missing_ok=True)
        if durable:
            _sync_directory(path.parent)
        return True

    def _walk(self, folder: Path, base: str) -> Iterator[str]:
        """Keys under `folder`, in the order of the whole keys (so `a.json` comes before `a/b.json`)."""
        try:
            with os.scandir(folder) as entries:
                visible = [entry for entry in entries if self._lists(entry)]
                names = [e.name + "/" if e.is_dir(follow_symlinks=False) else e.name for e in visible]
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in sorted(names):
            if name.endswith("/"):
                yield from self._walk(folder / name, base + name)
            else:
                yield base + name

    def _lists(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith("."):
            return False
        return not entry.is_symlink() or (os.path.isfile(entry.path) and self._holds(entry.path))

    def _announced(self, exp_id: str) -> Path:
        return self._inside(self._root / ".announced" / quote(exp_id, safe=""))

    def _path(self, key: str) -> Path:
        return self._inside(self._root / check_key(key))

    def _inside(self, path: Path) -> Path:
        if not self._holds(path):
            raise KeyInvalid(f"{path} leaves the store {self.url} through a symbolic link")
        return path

    def _holds(self, path: str | os.PathLike[str]) -> bool:
        """Whether `path` is in the store once every symbolic link is followed."""
        return Path(os.path.realpath(path)).is_relative_to(self._root)

    def _fail(self, error: OSError, what: str) -> NoReturn:
        kind = StoreUnavailable if error.errno in _TEMPORARY else StoreError
        hint = None
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP) and not isinstance(error, FileNotFoundError):
            hint = "the directory must allow writing and hard links; some network and FAT file systems don't"
        raise kind(f"{what} in {self.url}: {error}", hint=hint) from error


def _open_file(path: Path) -> BinaryIO:
    """Open a regular file to read; raises for anything else, such as a pipe, whose reader would block."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ResultUnreadable(f"{path} is not a file")
    return file


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
