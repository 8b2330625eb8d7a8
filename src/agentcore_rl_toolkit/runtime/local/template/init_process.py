"""Inside a session: its first process, which runs none of the agent's code and alone talks to the runtime.

The template forks it before any of the agent's code ran. It starts the app in a child, makes sockets inside the
session's network for the runtime to listen on, passes SIGTERM on, and reaps orphans. When it ends, the kernel ends the
rest of the session. It is not dumpable, so the agent's code can neither read nor trace it, and can't reach the channel
to the runtime:

    → {inet, inet6}, how many sockets it has attached of each family; the first message unasked
    ← {inet, inet6, hosts}: make so many more, after adding these lines to `/etc/hosts`
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable

from ..sandbox import syscalls as linux
from ..sandbox.namespaces import HOSTS
from .channel import Channel

Body = Callable[[], None]
"""What the app's process does."""

IMPORT_FAILED = 81
"""Exit code of a session that could not import the agent."""
LARGEST_ASSIGNMENT = 1 << 18
_AHEAD = 2
"""Sockets that are made unasked: for the results, and for a model."""


class InitProcess:
    """The first process of one session."""

    def __init__(self, protections: list[str], control: int, keep: Iterable[int], body: Body) -> None:
        """`keep` are the descriptors that the app gets besides its standard ones; all others are closed."""
        self._protections, self._body, self._keep = set(protections), body, set(keep)
        self._channel = Channel(socket.socket(fileno=control)) if control >= 0 else None
        has_hosts = "filesystem" in self._protections
        self._hosts = os.open(HOSTS, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC) if has_hosts else -1
        self._app = -1

    def run(self) -> int:
        """Run the app until it ends, and return its exit code."""
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if linux.is_linux():
            linux.set_dumpable(False)  # before the app exists
        self._app = os.fork()
        if self._app == 0:
            _run_app(self._body, self._keep)
        channel = () if self._channel is None else (self._channel.fileno(),)
        close_all_but({0, 1, 2, self._hosts, wake, waker, *channel})
        signal.signal(signal.SIGTERM, lambda *_: _kill(self._app, signal.SIGTERM))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        if channel and "network" in self._protections:
            self._send_sockets(_AHEAD, 0)
        while (code := self._reap()) is None:
            readable, _, _ = select.select([wake, *channel], [], [])
            if wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            elif not self._handle_message():
                return 0
        return code

    def _reap(self) -> int | None:
        """Collect ended children; the app's exit code once it is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == 0:
                return None
            if pid == self._app:
                return exit_code(status)

    def _handle_message(self) -> bool:
        """Handle the runtime's next message; False when the runtime has closed the channel."""
        assert self._channel is not None
        message, _ = self._channel.receive()
        if message is None:
            _kill(self._app, signal.SIGKILL)
            return False
        if message["hosts"] and self._hosts >= 0:
            with contextlib.suppress(OSError):  # the session's disk is full
                os.write(self._hosts, message["hosts"].encode())
        self._send_sockets(message["inet"], message["inet6"])
        return True

    def _send_sockets(self, inet: int, inet6: int) -> None:
        """Pass on sockets of the session's network, or as many as can be made."""
        assert self._channel is not None
        made: list[socket.socket] = []
        counts = {}
        for name, family, count in (("inet", socket.AF_INET, inet), ("inet6", socket.AF_INET6, inet6)):
            before = len(made)
            with contextlib.suppress(OSError):  # this machine may lack IPv6
                made += [socket.socket(family) for _ in range(count)]
            counts[name] = len(made) - before
        self._channel.send(counts, [found.fileno() for found in made])
        for found in made:
            found.close()


def _run_app(body: Body, keep: set[int]) -> None:
    code = 1
    try:
        close_all_but({0, 1, 2, *keep})
        _limit_open_files()
        if linux.is_linux():
            linux.set_dumpable(True)  # debuggers and other tools rely on it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        body()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _limit_open_files() -> None:
    """Halve the app's limit on open files, for good.

    The kernel counts the descriptors that wait in sockets for all processes of a user together, and lets a process
    pass on more while they are below its own limit on open files. So with a lower limit, no session can use up what
    the inits of all sessions, and the runtime of an ordinary user, need to pass on theirs.
    """
    most = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def read_assignment(descriptor: int) -> dict[str, str] | None:
    """In the app's process: wait for the session's variables; None if the session is not needed."""
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(LARGEST_ASSIGNMENT)
    variables: dict[str, str] | None = json.loads(data) if data else None
    return variables


def close_all_but(keep: set[int]) -> None:
    """Close every other descriptor of this process."""
    kept = [-1, *sorted(descriptor for descriptor in keep if descriptor >= 0)]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for below, above in zip(kept, [*kept[1:], most], strict=True):
        if below + 1 < above:  # given an empty range, Python closes everything
            os.closerange(below + 1, above)


def exit_code(status: int) -> int:
    """As shells report it: 128 plus the signal's number for a killed process."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
