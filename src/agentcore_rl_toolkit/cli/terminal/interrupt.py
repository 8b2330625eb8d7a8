"""Ctrl-C, for every verb: the first one always gets through, a second one ends the process at once.

Python raises `KeyboardInterrupt` wherever the main thread happens to be. In a finalizer, or in a callback from C,
nobody can catch it: Python tells `sys.unraisablehook` and goes on as if it had not come. Such a one is sent again,
until it arrives where it can be caught. A process that ignores Ctrl-C, as shells start background jobs, goes on
ignoring it. Imports little: until it is loaded, Ctrl-C prints a traceback.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

CODE = 128 + signal.SIGINT
"""What an interrupted command exits with."""
_AGAIN_SECONDS = 0.05


class Interrupts:
    """Handles Ctrl-C within a `with` block, in a program that has no handler of its own."""

    def __init__(self, until_exit: bool = False) -> None:
        """`until_exit`: the process ends after the block, and Ctrl-C then ends it at once and silently."""
        self.came = False
        """Whether there was one."""
        self._until_exit = until_exit
        self._ours = False
        self._again = False
        self._told: Any = None

    def __enter__(self) -> Interrupts:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._ours = True
            self._told, sys.unraisablehook = sys.unraisablehook, self._dropped
            signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            self._ours = False
            signal.signal(signal.SIGINT, signal.SIG_DFL if self._until_exit else signal.default_int_handler)
            sys.unraisablehook = self._told

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        if self._again:
            self._again = False
        elif self.came:
            end_at_once()
        self.came = True
        raise KeyboardInterrupt

    def _dropped(self, dropped: Any) -> None:
        """Python could not raise an exception; if it is ours, it comes again in a moment."""
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            self._told(dropped)
        elif threading.get_ident() == threading.main_thread().ident:
            with contextlib.suppress(RuntimeError):
                # `threading` takes locks, which this thread may hold where it was interrupted.
                _thread.start_new_thread(self._send_again, ())

    def _send_again(self) -> None:
        time.sleep(_AGAIN_SECONDS)
        if self._ours:
            self._again = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def stop_when_asked(stop: asyncio.Event) -> None:
    """For a server on the running loop: Ctrl-C and SIGTERM set `stop`, and a second Ctrl-C ends it at once."""
    import asyncio

    loop, presses = asyncio.get_running_loop(), itertools.count(1)

    def pressed() -> None:
        if next(presses) > 1:
            end_at_once()
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGINT, pressed)


def end_at_once() -> None:
    """End the process without cleaning up: somebody has lost patience with that."""
    with contextlib.suppress(OSError):
        os.write(2, b"ended at once; sessions may still be running\n")
    os._exit(CODE)
