"""The child's side of `_process.py`: reads one job, limits itself, tries it, and reports whether it passed.

Run by path under `python -I`, never imported, so it can't import this package. Until it reports `ready`, only trusted
code has run, and a failure is reported as one; afterwards only the token counts as a pass.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
import types
from collections.abc import Callable
from typing import Any

Attempt = Callable[[], None]
MAX_FILE_BYTES = 64 * 2**20


class JobInvalid(Exception):
    """The job can't be tried: message and hint of the caller's `ConfigError`."""


class Verdict:
    """Sends the token if its block ends without an exception, and ends the process either way.

    A context manager, because the interpreter keeps its exit on the stack and in no variable: the code under test can't
    find the token in the frames above its own.
    """

    def __init__(self, fd: int, token: str) -> None:
        self.fd, self.token = fd, token.encode()

    def __enter__(self) -> None:
        return None

    # Bound now: the code under test may replace what `os` holds.
    def __exit__(self, kind: Any, *_: Any, send: Any = os.write, leave: Any = os._exit) -> None:
        if kind is None:
            send(self.fd, self.token)
        leave(0)


def main() -> None:
    fd = int(sys.argv[1])
    with open(0, "rb") as stdin:
        job = json.load(stdin)
    try:
        attempt = TASKS[job["task"]](job)
    except JobInvalid as error:
        os.write(fd, json.dumps({"invalid": error.args}).encode() + b"\n")
        return
    _limit(job["timeout_seconds"], job["memory_mb"])
    _silence()
    os.write(fd, b'{"ready": true}\n')
    with Verdict(fd, job.pop("token")):
        attempt()


def unit_test(job: dict[str, Any]) -> Attempt:
    """Run the response's code, then one test in the same namespace."""
    module = types.ModuleType("solution")  # not __main__: a response's demo under `if __name__ ...` must not run
    sys.modules["solution"] = module
    namespace, code = module.__dict__, job.pop("code")
    test = compile(job.pop("test"), "<test>", "exec", dont_inherit=True)

    def attempt(run: Any = exec) -> None:  # bound now: the code may replace builtins.exec
        run(compile(code, "<response>", "exec", dont_inherit=True), namespace)
        run(test, namespace)

    return attempt


def math_equal(job: dict[str, Any]) -> Attempt:
    """Compare two answers with math-verify; the parent limits the time."""
    sys.path[:] = job["sys_path"]
    try:
        from math_verify import parse, verify
    except ImportError as error:
        message = f"MathEquivalence needs a package that is not installed: {error}"
        raise JobInvalid(message, "pip install 'agentcore-rl-toolkit[rewards]'") from error
    gold = parse(job["ground_truth"], parsing_timeout=None)
    if not gold:
        shown = job["ground_truth"].strip("$")[:60]
        message = f"math-verify can't read the ground_truth {shown!r}"
        raise JobInvalid(message, "pass a number or LaTeX, such as '\\frac{1}{2}'")

    def attempt() -> None:
        answer = parse(job["answer"], parsing_timeout=None)
        if not verify(gold, answer, timeout_seconds=None):
            raise ValueError("not equal")

    return attempt


TASKS: dict[str, Callable[[dict[str, Any]], Attempt]] = {"unit_test": unit_test, "math_equal": math_equal}


def _limit(timeout_seconds: float, memory_mb: int) -> None:
    """Limit this process and its children. The CPU limit also ends a child that left the process group."""
    cpu_seconds = math.ceil(time.process_time() + timeout_seconds) + 1
    for what, most in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory_mb * 2**20),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            resource.setrlimit(what, (most, most))
        except (OSError, ValueError):
            continue  # a stricter limit holds already, or the system has none (macOS, for memory)


def _silence() -> None:
    """Point the standard streams to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


if __name__ == "__main__":
    main()
