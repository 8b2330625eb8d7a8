"""`Child`: a process that answers lines of JSON over its own socket, and cannot outlast its time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_LONGEST_LINE = 4 << 20

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class ChildLost(Exception):
    """The process ended, or it had to be ended; the message says why."""


class Child:
    """A command that is given the descriptor of its socket as its last argument, and a folder that goes with it."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="world-", ignore_cleanup_errors=True)
        self.folder = self._folder.name
        self._socket, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
        self._received = b""
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                cwd=self.folder,
                env={**environ, "HOME": self.folder, "TMPDIR": self.folder},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            self._socket.close()
            self._errors.close()
            self._folder.cleanup()
            raise
        finally:
            theirs.close()

    def ask(self, message: dict[str, Any], seconds: float, answer: Answer | None = None) -> dict[str, Any]:
        """Send a message and wait for what it comes to; what has a `call` in it is a question, and is answered."""
        deadline = time.monotonic() + seconds
        self._send(message)
        while True:
            reply = self._line(deadline)
            if answer is None or "call" not in reply:
                return reply
            self._send(answer(reply))

    def close(self) -> None:
        """End the process, all that it started, and its folder."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        self._errors.close()
        self._folder.cleanup()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.settimeout(30)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise ChildLost(self._last_words()) from None

    def _line(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._received:
            if len(self._received) > _LONGEST_LINE:
                raise ChildLost("it said too much at once")
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                chunk = self._socket.recv(65536)
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise ChildLost(self._last_words())
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        try:
            reply = json.loads(line)
        except ValueError:
            raise ChildLost("it said something that is no JSON") from None
        return reply if isinstance(reply, dict) else {}

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else "it ended without a word"
