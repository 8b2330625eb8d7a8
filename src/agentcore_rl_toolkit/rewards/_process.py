"""Runs one job in a process with limits on time and memory: the parent's side of `_child.py`.

For work that must not run on a thread here: a response's code, and computer algebra on a response's formula. It is not
a security sandbox: the child runs as the same user, with the same network and files, but without the parent's
environment, interpreter and streams.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from ..errors import ConfigError

CHILD = Path(__file__).with_name("_child.py")
START_SECONDS = 60.0
"""For the interpreter and its imports; the response's own time starts afterwards."""
# What the interpreter needs to start. One BLAS thread, because each one reserves memory.
KEPT_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH")
FIXED_ENVIRONMENT = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def passes(job: dict[str, Any], *, timeout_seconds: float, memory_mb: int) -> bool:
    """Whether the job ended in time and passed; raises `ConfigError` for a job that can't be started.

    >>> passes({"task": "unit_test", "code": "x = 1", "test": "assert x == 1"}, timeout_seconds=5, memory_mb=512)
    True
    """
    token = secrets.token_hex(16)
    order = {**job, "token": token, "timeout_seconds": timeout_seconds, "memory_mb": memory_mb}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        stdin, stderr = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        stdin.write(json.dumps(order).encode())
        stdin.seek(0)
        receive, send = os.pipe()
        stack.callback(os.close, receive)
        try:
            process = _start(folder, stdin, stderr, send)
        finally:
            os.close(send)
        stack.callback(_end, process)
        opening, _, rest = _read(receive, b"", time.monotonic() + START_SECONDS, until=b"\n").partition(b"\n")
        _require_ready(opening, stderr)
        deadline = time.monotonic() + timeout_seconds
        return _read(receive, rest, deadline, until=token.encode()) == token.encode()


def _start(folder: str, stdin: IO[bytes], stderr: IO[bytes], send: int) -> subprocess.Popen[bytes]:
    kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-I", "-B", "-X", "utf8", str(CHILD), str(send)],
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        cwd=folder,
        env={**kept, **FIXED_ENVIRONMENT, "HOME": folder, "TMPDIR": folder},
        pass_fds=(send,),
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group, then reap its leader; the other order could kill a group that reuses the id."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(fd: int, received: bytes, deadline: float, *, until: bytes) -> bytes:
    """Add to `received` until it contains `until`, the other end is closed, it is too long, or time is up."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while until not in received and len(received) < 4096:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            break
        chunk = os.read(fd, 4096)
        if not chunk:
            break
        received += chunk
    return received


def _require_ready(opening: bytes, stderr: IO[bytes]) -> None:
    state = json.loads(opening) if opening else {}
    if "invalid" in state:
        message, hint = state["invalid"]
        raise ConfigError(message, hint=hint)
    if "ready" not in state:
        size = stderr.seek(0, os.SEEK_END)
        stderr.seek(max(0, size - 500))
        output = stderr.read().decode(errors="replace").strip() or "it printed nothing"
        raise ConfigError(f"the child process {sys.executable} was not ready within {START_SECONDS:.0f} s: {output}")
