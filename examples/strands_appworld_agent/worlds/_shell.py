"""Where the agent's code runs in the built-in world: a separate process that can call `apis` and little else.

Run by path under `python -I`, never imported. The state of the apps is not here: a call goes to the other end of the
socket, so that code can change nothing but through an API. The audit hook keeps it from files, processes and networks.
It is no security boundary: that is the session's sandbox.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import linecache
import os
import resource
import socket
import sys
import sysconfig
import traceback
from typing import Any

_LONGEST_OUTPUT = 20_000
_MEMORY = 512 << 20
_CPU_SECONDS = 120
_REFUSED = (
    "ctypes", "fcntl", "ftplib", "glob", "http", "mmap", "os", "pty", "resource", "shutil", "signal", "smtplib",
    "socket", "sqlite3", "subprocess", "syslog", "tempfile", "urllib", "webbrowser",
)  # fmt: skip
_READ_BY_IMPORT = {"open", "os.listdir", "os.scandir"}
_REFUSED_MODULES = {"_posixsubprocess", "ctypes", "_ctypes", "multiprocessing", "subprocess"}


class ApiError(Exception):
    """An API said no."""


class Apis:
    """`apis.<app>.<api>(…)`: every call is a question to the other end."""

    def __init__(self, lines: Lines) -> None:
        self.__dict__["_lines"] = lines

    def __getattr__(self, app: str) -> Any:
        return _App(self._lines, app)


class _App:
    def __init__(self, lines: Lines, app: str) -> None:
        self._lines, self._app = lines, app

    def __getattr__(self, api: str) -> Any:
        def call(*args: Any, **arguments: Any) -> Any:
            if args:
                raise TypeError("APIs take keyword arguments only")
            self._lines.send({"call": [self._app, api], "arguments": arguments})
            reply = self._lines.receive()
            if "error" in reply:
                raise ApiError(reply["error"])
            return reply["value"]

        return call


class Lines:
    """Lines of JSON over the socket."""

    def __init__(self, descriptor: int) -> None:
        self._file = socket.socket(fileno=descriptor).makefile("rwb")

    def send(self, message: dict[str, Any]) -> None:
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()

    def receive(self) -> dict[str, Any]:
        line = self._file.readline()
        if not line:
            os._exit(0)
        message: dict[str, Any] = json.loads(line)
        return message


def run(code: str, namespace: dict[str, Any], number: int) -> str:
    """What the code printed, and its traceback if it failed."""
    out, name = io.StringIO(), f"<python-input-{number}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)  # tracebacks show its lines
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            exec(compile(code, name, "exec"), namespace)
        except BaseException as error:
            return _short(out.getvalue()) + "Execution failed. Traceback:\n" + _short(_trace(error))
    return _short(out.getvalue()) or "Execution successful."


def _trace(error: BaseException) -> str:
    """The traceback, with the code's own frames only."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("<python-input-")]
    lines = [*traceback.format_list(frames[-8:]), *traceback.format_exception_only(error)]
    return "".join(lines).replace("__main__.", "")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_OUTPUT else f"{text[:_LONGEST_OUTPUT]}\n… {len(text) - _LONGEST_OUTPUT} more\n"


def _confine() -> None:
    """Limits on this process, and from then on nothing but Python's own library to read."""
    for what, most in (
        (resource.RLIMIT_CPU, _CPU_SECONDS),
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 32),
    ):
        with contextlib.suppress(OSError, ValueError):  # a stricter one is in force, or the system has no such limit
            resource.setrlimit(what, (most, most))
    library = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))

    def watch(event: str, args: Any) -> None:
        if event in _READ_BY_IMPORT:
            path = args[0]
            writes = event == "open" and any(letter in (args[1] or "") for letter in "wax+")
            if writes or not isinstance(path, str) or not (os.path.realpath(path) + os.sep).startswith(library):
                raise PermissionError(f"{path!r} is out of reach; use the apis")
        elif event.split(".")[0] in _REFUSED or (event == "import" and args[0] in _REFUSED_MODULES):
            raise PermissionError(f"{args[0] if event == 'import' else event} is out of reach; use the apis")

    sys.addaudithook(watch)


def main() -> None:
    lines = Lines(int(sys.argv[1]))
    namespace: dict[str, Any] = {"__name__": "__main__", "apis": Apis(lines)}
    _confine()
    for number in itertools.count(1):
        lines.send({"output": run(lines.receive()["code"], namespace, number)})


if __name__ == "__main__":
    main()
