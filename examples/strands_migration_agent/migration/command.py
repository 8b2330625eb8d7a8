"""One command, bounded: its time, its output, its environment, and what it leaves running."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_OUTPUT = 8_000
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "JAVA_HOME", "MAVEN_OPTS", "MAVEN_ARGS")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None
    """Its exit status; None if its time was up."""
    output: str
    """Its standard output and error, the middle cut out of a long one."""

    @property
    def ok(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        status = "stopped: its time was up" if self.code is None else f"exit status {self.code}"
        return f"{self.output.rstrip()}\n[{status}]".lstrip()


def run(
    command: Sequence[str], cwd: Path, seconds: float, *, stdin: str = "", environment: dict[str, str] | None = None
) -> Ended:
    """Run it and wait. It sees none of the app's secrets, and nothing of it goes on in the background."""
    known = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment if environment is not None else known,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        kept = _Kept()
        reader = threading.Thread(target=kept.read, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(stdin.encode())
                process.stdin.close()
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(1)  # whoever left the group may still hold the pipe; that's no reason to wait
        return Ended(code, kept.text)


class _Kept:
    """The beginning and the end of an output of any length."""

    def __init__(self) -> None:
        self._head, self._tail, self._size = b"", b"", 0

    def read(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(ValueError, OSError):  # closed under our hands
            while data := os.read(pipe.fileno(), 65536):
                self._size += len(data)
                room = _OUTPUT // 2 - len(self._head)
                self._head += data[:room]
                self._tail = (self._tail + data[room:])[-_OUTPUT // 2 :]

    @property
    def text(self) -> str:
        cut = self._size - len(self._head) - len(self._tail)
        middle = f"\n[… {cut} bytes cut …]\n".encode() if cut else b""
        return (self._head + middle + self._tail).decode(errors="replace")
