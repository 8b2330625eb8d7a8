"""Ctrl-C, for every verb: the first one always arrives, a second one ends the process at once.

Python raises `KeyboardInterrupt` wherever the main thread happens to be. In a finalizer or a callback from C no code
can catch it, and Python drops it after calling `sys.unraisablehook`. `Interrupts` then sends it again, until it arrives
where it can be caught. A process that ignores Ctrl-C, like a shell's background job, keeps ignoring it. This module
imports little: until it is loaded, Ctrl-C prints a traceback.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator
    from types import FrameType

CODE = 128 + signal.SIGINT
"""The exit code of an interrupted command."""
_RESEND_SECONDS = 0.05


class Interrupts:
    """Handles Ctrl-C within a `with` block, unless the program has its own handler."""

    def __init__(self, until_exit: bool = False) -> None:
        """`until_exit`: the process ends after the block, and Ctrl-C then ends it silently."""
        self.came = False
        """Whether Ctrl-C was pressed."""
        self._until_exit = until_exit
        self._installed = False
        self._resent = False
        self._hook: Any = None

    def __enter__(self) -> Interrupts:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._installed = True
            self._hook, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            self._installed = False
            signal.signal(signal.SIGINT, signal.SIG_DFL if self._until_exit else signal.default_int_handler)
            sys.unraisablehook = self._hook

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._resent:
            self._resent = False
        elif self.came:
            _exit_at_once()
        self.came = True
        raise KeyboardInterrupt

    def _on_unraisable(self, dropped: Any) -> None:
        """Send a dropped `KeyboardInterrupt` again; leave other exceptions to the hook that was there."""
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            self._hook(dropped)
        elif threading.get_ident() == threading.main_thread().ident:
            with contextlib.suppress(RuntimeError):
                # `threading.Thread` takes locks that this thread may hold where it was interrupted.
                _thread.start_new_thread(self._resend, ())

    def _resend(self) -> None:
        time.sleep(_RESEND_SECONDS)
        if self._installed:
            self._resent = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[list[int]]:
    """SIGTERM interrupts the block as Ctrl-C does, even if Ctrl-C is ignored; yields a list of the signals received."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    def on_terminate(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if ignored and len(came) == 1 and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, previous)


def stop_on_signals(stop: asyncio.Event) -> None:
    """For a server on the running loop: Ctrl-C and SIGTERM set `stop`; a second Ctrl-C ends the process at once."""
    import asyncio

    loop = asyncio.get_running_loop()
    pressed = False

    def on_interrupt() -> None:
        nonlocal pressed
        if pressed:
            _exit_at_once()
        pressed = True
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGINT, on_interrupt)


def _exit_at_once() -> None:
    """End the process without cleaning up."""
    with contextlib.suppress(OSError):
        os.write(2, b"ended at once; sessions may still be running\n")
    os._exit(CODE)
