"""Running Python as an ordinary user, also where the tests run as root."""

from __future__ import annotations

import os
import subprocess
import sys

from support.process import clean_env

# In a user namespace of its own, root has another id and no capabilities, and still reads the files that are root's.
_BECOME_ORDINARY = """
import os, sys
from agentcore_rl_toolkit.runtime.local.sandbox import syscalls as linux
linux.unshare(linux.CLONE_NEWUSER)
for name, text in (("setgroups", "deny"), ("uid_map", "1000 0 1"), ("gid_map", "1000 0 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""


def run_as_ordinary_user(code: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a program; gives its output."""
    command = [sys.executable, "-c", code] if os.geteuid() else [sys.executable, "-c", _BECOME_ORDINARY, code]
    return subprocess.run(command, capture_output=True, text=True, env=clean_env(), timeout=seconds)
