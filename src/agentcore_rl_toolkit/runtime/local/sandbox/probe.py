"""Which protections hold on this machine, found out by trying each of them in a process that is thrown away."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable

from ..template.isolated_python import WORKING_DIRECTORY, isolated_command
from . import syscalls as linux
from .cgroup import CgroupTree
from .namespaces import KERNEL_PROTECTIONS, SESSION_UID
from .root_filesystem import become_owner_of_a_user_namespace
from .seccomp import build_filter


def probe(cgroups: CgroupTree | None = None) -> dict[str, str | None]:
    """By protection: None if it holds, else why it doesn't."""
    found = dict(_probe_kernel(os.geteuid()))
    tree = cgroups or CgroupTree()
    for controller in ("memory", "cpu", "pids"):
        found[controller] = None if controller in tree.controllers else tree.reasons[controller]
    if cgroups is None:
        tree.close()
    return found


@functools.cache
def _probe_kernel(user: int) -> dict[str, str | None]:
    """Once per process and user: a kernel takes nothing away while it runs, and the process costs a runtime's start."""
    if not sys.platform.startswith("linux"):
        return dict.fromkeys(KERNEL_PROTECTIONS, f"{sys.platform} has no Linux namespaces")
    done = subprocess.run(isolated_command(__name__), capture_output=True, text=True, cwd=WORKING_DIRECTORY)
    if done.returncode != 0:
        return dict.fromkeys(KERNEL_PROTECTIONS, f"the probe failed: {done.stderr[-200:]}")
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def main() -> None:
    """In the process that is thrown away: try each, print how it went."""
    is_root = os.geteuid() == 0

    def namespaces(*flags: int) -> Callable[[], None]:
        def attempt() -> None:
            if not is_root:
                become_owner_of_a_user_namespace()
            for flag in flags:
                linux.unshare(flag)

        return attempt

    def filesystem() -> None:
        namespaces(linux.CLONE_NEWNS)()
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("tmpfs", "/tmp", "tmpfs", 0, "size=1m")
        for name in ("lower", "upper", "work", "merged"):
            os.mkdir(f"/tmp/{name}")
        linux.bind_read_only("/usr", "/tmp/lower")
        linux.mount("overlay", "/tmp/merged", "overlay", 0, "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work")

    def network() -> None:
        namespaces(linux.CLONE_NEWNET)()
        linux.loopback_up()
        linux.make_all_addresses_local()

    def user() -> None:
        if is_root:
            os.setresuid(SESSION_UID, SESSION_UID, SESSION_UID)

    def capabilities() -> None:
        linux.drop_bounding_set()
        linux.drop_capabilities()
        linux.no_new_privileges()

    def seccomp() -> None:
        program = build_filter()
        if program is None:
            raise OSError(f"no system call numbers for {os.uname().machine}")
        linux.no_new_privileges()
        linux.install_seccomp(program)

    attempts: dict[str, Callable[[], None]] = {
        "filesystem": filesystem,
        "processes": namespaces(linux.CLONE_NEWPID),
        "network": network,
        "ipc": namespaces(linux.CLONE_NEWIPC),
        "hostname": namespaces(linux.CLONE_NEWUTS),
        "user": user,
        "capabilities": capabilities,
        "seccomp": seccomp,
    }
    print(json.dumps({name: _in_child(attempt) for name, attempt in attempts.items()}))  # noqa: T201


def _in_child(attempt: Callable[[], None]) -> str | None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
            message = ""
        except BaseException as error:
            message = str(error) or type(error).__name__
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        answer = file.read().decode()
    os.waitpid(pid, 0)
    return answer or None
