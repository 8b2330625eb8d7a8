"""Which protections this machine can provide, found by trying each of them in a throwaway process."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable

from . import syscalls as linux
from .cgroup import CgroupTree
from .import_paths import WORKING_DIRECTORY, isolated_command
from .namespaces import KERNEL_PROTECTIONS, SESSION_UID
from .root_filesystem import enter_user_namespace
from .seccomp import build_filter

_SESSION_MEGABYTES = 32


def probe() -> dict[str, str | None]:
    """By protection: None if it works here, else the reason why not."""
    found = dict(_probe_kernel(os.geteuid()))
    tree = CgroupTree()
    tree.close()
    return found | dict.fromkeys(tree.controllers) | tree.reasons


@functools.cache
def _probe_kernel(user: int) -> dict[str, str | None]:
    """Cached, because the process takes as long as the rest of a runtime's start."""
    if not linux.is_linux():
        return dict.fromkeys(KERNEL_PROTECTIONS, "only Linux has namespaces")
    done = subprocess.run(isolated_command(__name__), capture_output=True, text=True, cwd=WORKING_DIRECTORY)
    if done.returncode != 0:
        return dict.fromkeys(KERNEL_PROTECTIONS, f"the probe failed: {done.stderr[-200:]}")
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def main() -> None:
    """In the throwaway process: try each protection in a child and print the outcomes."""
    attempts: dict[str, Callable[[], None]] = {
        "filesystem": _try_filesystem,
        "processes": lambda: _unshare(linux.CLONE_NEWPID),
        "network": _try_network,
        "ipc": lambda: _unshare(linux.CLONE_NEWIPC),
        "hostname": lambda: _unshare(linux.CLONE_NEWUTS),
        "user": _try_user,
        "capabilities": _try_capabilities,
        "seccomp": _try_seccomp,
    }
    print(json.dumps({name: _try_in_child(attempt) for name, attempt in attempts.items()}))  # noqa: T201


def _unshare(flag: int) -> None:
    if os.geteuid() != 0:
        enter_user_namespace()
    linux.unshare(flag)


def _try_filesystem() -> None:
    _unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", "/tmp", "tmpfs", 0, "size=1m")
    for name in ("lower", "upper", "work", "merged"):
        os.mkdir(f"/tmp/{name}")
    linux.bind_read_only("/usr", "/tmp/lower")
    linux.mount("overlay", "/tmp/merged", "overlay", 0, "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work")


def _try_network() -> None:
    _unshare(linux.CLONE_NEWNET)
    linux.loopback_up()
    linux.make_all_addresses_local()


def _try_user() -> None:
    if os.geteuid() == 0:
        os.setresuid(SESSION_UID, SESSION_UID, SESSION_UID)


def _try_capabilities() -> None:
    linux.drop_bounding_set()
    linux.drop_capabilities()
    linux.no_new_privileges()


def _try_seccomp() -> None:
    program = build_filter()
    if program is None:
        raise OSError(f"no system call numbers for {os.uname().machine}")
    linux.no_new_privileges()
    linux.install_seccomp(program)


def _try_in_child(attempt: Callable[[], None]) -> str | None:
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


def default_max_sessions() -> int:
    """How many sessions this machine carries: by its memory, and at most 512 per core."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    by_memory = int(pages * size * 0.8) // (_SESSION_MEGABYTES << 20)
    return max(1, min(by_memory, 512 * (os.cpu_count() or 1)))
