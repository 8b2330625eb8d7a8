"""Copies a process's output from a pipe to a file of bounded size.

A session gets a pipe, not a file, so it can neither preallocate gigabytes nor fill the disk. Output is read at a
bounded rate, and only the end of a long log is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

_CHUNK = 1 << 16
_PAUSE_SECONDS = 0.01  # after a full chunk: 6.5 MB a second and session, at most
_LARGEST = 4 << 20
_LARGEST_ENDED = 1 << 18
_DROPPED = b"... earlier output was dropped ...\n"


def read_end(path: Path, length: int) -> bytes:
    """The last bytes of a log."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - length))
        return file.read(length)


class OutputLog:
    """One process's standard output and error, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._size = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._readable)
        self.path.touch(0o600)

    def close_write_end(self) -> None:
        """Call it once the process has the descriptor; the log ends when the process's copies are closed."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def tail(self, length: int) -> str:
        """The end of the output so far."""
        self.drain()
        with contextlib.suppress(OSError):
            return read_end(self.path, length).decode(errors="replace").strip()
        return ""

    def close(self) -> None:
        """Read the rest of the output, and keep the end of the log."""
        self.close_write_end()
        if self._read >= 0:
            self.drain()
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = -1
            self._keep_end(_LARGEST_ENDED)

    def _readable(self) -> None:
        if self._copy_chunk() == _CHUNK:
            self._loop.remove_reader(self._read)
            self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._read >= 0:
            self._loop.add_reader(self._read, self._readable)

    def drain(self) -> None:
        """Read what the pipe holds now, at most 16 chunks."""
        for _ in range(16):
            if self._read < 0 or not self._copy_chunk():
                return

    def _copy_chunk(self) -> int:
        try:
            data = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._loop.remove_reader(self._read)  # the process has ended
            return 0
        with contextlib.suppress(OSError), self.path.open("ab") as file:  # a full disk must not end the runtime
            file.write(data)
            self._size += len(data)
        if self._size > _LARGEST:
            self._keep_end(_LARGEST // 2)
        return len(data)

    def _keep_end(self, length: int) -> None:
        if self._size <= length:
            return
        with contextlib.suppress(OSError):
            with self.path.open("rb") as file:
                file.seek(-length, os.SEEK_END)
                kept = file.read()
            self.path.write_bytes(_DROPPED + kept)
            self._size = len(_DROPPED) + len(kept)
