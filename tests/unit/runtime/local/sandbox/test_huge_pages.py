"""A template's memory is in huge pages before it is forked, and a plain fork runs none of Python's handlers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOLD = """
import agentcore_rl_toolkit.runtime.local.sandbox.huge_pages as huge_pages

memory = bytearray(b"x" * (5 * huge_pages.SIZE))
huge_pages.collapse_memory()
assert memory == b"x" * (5 * huge_pages.SIZE)
print(next(line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")))
"""
FORK = """
import os

from agentcore_rl_toolkit.runtime.local.sandbox import syscalls

os.register_at_fork(after_in_child=lambda: os._exit(3))
for fork in (syscalls.fork, os.fork):
    pid = fork()
    if pid == 0:
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), end=" ")
"""
POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1)
    or not POLICY.exists()
    or "[never]" in POLICY.read_text(),
    reason="this kernel can't collapse memory",
)
def test_private_memory_moves_into_huge_pages_and_stays_the_same() -> None:
    assert int(printed(HOLD)) >= 4 * 2048  # all but what is below the first boundary


def test_a_plain_fork_runs_no_handlers_of_python() -> None:
    assert printed(FORK).split() == ["0", "3"]
