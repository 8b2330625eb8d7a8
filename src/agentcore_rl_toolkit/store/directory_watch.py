"""Waiting for a file to appear in a directory: inotify on Linux, a short sleep elsewhere.

A wait may return early for no reason; callers look again. It never returns late on Linux: what appears between
two looks wakes the next wait at once.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from pathlib import Path

_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80
_NAP_SECONDS = 0.02


class DirectoryWatch:
    """Watches one directory that exists."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = _inotify(directory)

    def wait(self, seconds: float) -> None:
        """Return when something may have appeared, or after `seconds`."""
        if self._descriptor is None:
            time.sleep(min(seconds, _NAP_SECONDS))
            return
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if poll.poll(seconds * 1000):
            try:
                os.read(self._descriptor, 65536)
            except BlockingIOError:  # another thread read it
                return

    def close(self) -> None:
        """Release the watch."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _inotify(directory: Path) -> int | None:
    """A descriptor that becomes readable when a file appears in `directory`; None where there is no inotify."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            return None  # out of inotify instances: naps are slower, but right
        if libc.inotify_add_watch(descriptor, os.fsencode(directory), _IN_CREATE | _IN_MOVED_TO) < 0:
            os.close(descriptor)
            return None
    except AttributeError:  # a libc without inotify
        return None
    return descriptor
