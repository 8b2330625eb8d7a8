"""Inside a session: its first process, which runs none of the agent's code and alone talks to the runtime.

The template forks it before any of the agent's code ran. It starts the app in a child, listens inside the session's
network where the runtime says, passes SIGTERM on, and reaps orphans. When it ends, the kernel ends the rest of the
session. It is not dumpable, so the agent's code can neither read nor trace it, and can't reach the channel to the
runtime:

    ← assign {env, listen}      → listening {opened}, with a socket for each opened address
    ← listen {listen}           → the same, for a later rollout of the session
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
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

Body = Callable[[int], None]
"""What the app's process does; it gets a descriptor to read the session's variables from, once assigned."""

IMPORT_FAILED = 81
"""Exit code of a session that could not import the agent."""
_LARGEST_ASSIGNMENT = 1 << 18
_PIPE, _F_SETPIPE_SZ = 4096, 1031


class InitProcess:
    """The first process of one session."""

    def __init__(self, protections: list[str], control: int, keep: Iterable[int], body: Body) -> None:
        """`keep` are the descriptors that the app gets besides its standard ones; all others are closed."""
        self._protections, self._body, self._keep = set(protections), body, set(keep)
        self._channel = Channel(socket.socket(fileno=control)) if control >= 0 else None
        self._names: dict[str, str] = {}
        has_hosts = "filesystem" in self._protections
        self._hosts = os.open(HOSTS, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC) if has_hosts else -1
        self._app = self._assigned = -1

    def run(self) -> int:
        """Run the app until it ends, and return its exit code."""
        awaited, self._assigned = os.pipe()
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if linux.is_linux():
            linux.set_dumpable(False)  # before the app exists
        self._app = os.fork()
        if self._app == 0:
            _run_app(self._body, awaited, {*self._keep, awaited})
        channel = () if self._channel is None else (self._channel.fileno(),)
        close_all_but({0, 1, 2, self._hosts, self._assigned, wake, waker, *channel})
        signal.signal(signal.SIGTERM, lambda *_: _kill(self._app, signal.SIGTERM))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
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
        if "network" in self._protections:
            opened = [self._listen(host, port) for host, port in message["listen"]]
            sockets = [found for found in opened if found is not None]
            answer = {"op": "listening", "opened": [found is not None for found in opened]}
            self._channel.send(answer, [s.fileno() for s in sockets])
            for found in sockets:
                found.close()
        if message["op"] == "assign":
            self._assign(json.dumps(message["env"]).encode())
        return True

    def _assign(self, variables: bytes) -> None:
        with contextlib.suppress(OSError):  # the app has ended already
            if len(variables) > _PIPE:  # don't block on an app that is still importing
                fcntl.fcntl(self._assigned, _F_SETPIPE_SZ, _LARGEST_ASSIGNMENT)
            os.write(self._assigned, variables)
        os.close(self._assigned)

    def _listen(self, host: str, port: int) -> socket.socket | None:
        """Listen inside the session's network at an address outside of it; the runtime accepts the connections."""
        address = "127.0.0.1" if host == "localhost" else host if _is_ip(host) else self._address_for(host)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), family=family, backlog=128)
        return None

    def _address_for(self, name: str) -> str:
        """The address of a host name inside the session, whose `/etc/hosts` gets a line for it."""
        if name not in self._names:
            number = len(self._names) + 1
            self._names[name] = f"127.1.{number // 250}.{number % 250 + 1}"
            if self._hosts >= 0:
                with contextlib.suppress(OSError):  # the session's disk is full
                    os.write(self._hosts, f"{self._names[name]} {name}\n".encode())
        return self._names[name]


def _run_app(body: Body, awaited: int, keep: set[int]) -> None:
    code = 1
    try:
        close_all_but({0, 1, 2, *keep})
        if linux.is_linux():
            linux.set_dumpable(True)  # debuggers and other tools rely on it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        body(awaited)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def read_assignment(descriptor: int) -> dict[str, str] | None:
    """In the app's process: wait for the session's variables; None if the session is not needed."""
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(_LARGEST_ASSIGNMENT)
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


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
