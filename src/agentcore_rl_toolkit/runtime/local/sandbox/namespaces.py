"""Turns a process that was forked from a template into a session's: its own namespaces, no rights, no way to get any.

The sandbox is built in two steps, because every session pays for the second one. The template enters its own root
once (`root_filesystem.py`): a small read-only tree with the system's programs, Python, and the agent's files. Each
session then adds its own writable `/app` and `/tmp`, processes, network, IPC and host name (`enter_session`). None of
the agent's code runs before that.

Each protection has a name. A machine may lack one (`probe.py`); sessions then run without it and say so.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

from . import syscalls as linux
from .agent_mounts import mount_in_session
from .root_filesystem import EMPTY_FILE, Root, RootSpec, namespace_flags
from .seccomp import build_filter

PROTECTIONS = {
    "filesystem": "own root: system read-only, private /app and /tmp, nothing else of the host",
    "processes": "own process ids; nothing outlives the session",
    "network": "own network: only the addresses its policy allows",
    "ipc": "own shared memory and message queues",
    "hostname": "own host name",
    "user": "an unprivileged user",
    "capabilities": "no capabilities, and no way to gain privileges",
    "seccomp": "no system calls that could undo the sandbox",
    "memory": "memory limit",
    "cpu": "CPU limit",
    "pids": "limit on processes and threads",
}
KERNEL_PROTECTIONS = tuple(PROTECTIONS)[:8]
SESSION_UID = 65534
HOSTS = "/.session/hosts"
"""The file that is mounted at `/etc/hosts`."""
_FILES_PER_MEGABYTE = 128


def prepare_to_enter() -> None:
    """In the template: make once what every session needs to enter its sandbox."""
    build_filter()
    linux.find_functions()


def enter_session(root: Root, hostname: str) -> None:
    """Give this process, freshly forked from a template, the protections of `root.spec`."""
    spec = root.spec
    on = set(spec.protections)
    flags = namespace_flags(on, ("filesystem", "network", "ipc", "hostname"))
    if flags:
        linux.unshare(flags)
    if "hostname" in on:
        linux.set_hostname(hostname)
    if "network" in on:
        linux.loopback_up()
        linux.make_all_addresses_local()
    if "filesystem" in on:
        _mount_session(root)
    if "network" in on:
        with contextlib.suppress(OSError):  # without it, ports below 1024 can't be reached
            Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "memory" not in on:  # limit each process instead
        limit = spec.memory_mb << 20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if "capabilities" in on:
        linux.drop_bounding_set()
    if "user" in on and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(spec.gid, spec.gid, spec.gid)
        os.setresuid(spec.uid, spec.uid, spec.uid)
    if "capabilities" in on:
        linux.drop_capabilities()
        linux.no_new_privileges()
    if "seccomp" in on:
        program = build_filter()
        assert program is not None
        linux.install_seccomp(program)


def _mount_session(root: Root) -> None:
    spec, safe = root.spec, linux.MS_NOSUID | linux.MS_NODEV
    options = f"mode=755,size={spec.disk_mb}m,nr_inodes={spec.disk_mb * _FILES_PER_MEGABYTE}"
    linux.mount("tmpfs", "/.session", "tmpfs", safe, options)
    upper, work = _own_folder(spec, "upper"), _own_folder(spec, "work")
    linux.mount("overlay", "/app", "overlay", safe, f"lowerdir=/.agent,upperdir={upper},workdir={work}")
    for number, item in enumerate(root.mounted):
        upper, work = (_own_folder(spec, f"{name}-{number}") for name in ("upper", "work"))
        mount_in_session(item, upper, work, EMPTY_FILE)
    for name in ("tmp", "shm"):
        _own_folder(spec, name, 0o1777)
    linux.mount("/.session/tmp", "/tmp", None, linux.MS_BIND)
    linux.mount("/.session/tmp", "/var/tmp", None, linux.MS_BIND)
    linux.mount("/.session/shm", "/dev/shm", None, linux.MS_BIND)
    Path(HOSTS).write_text("127.0.0.1 localhost\n::1 localhost\n")
    if os.geteuid() == 0:
        os.chown(HOSTS, spec.uid, spec.gid)
    linux.mount(HOSTS, "/etc/hosts", None, linux.MS_BIND)
    root.mount_moved()
    if "processes" in spec.protections:
        linux.mount("proc", "/proc", "proc", safe | linux.MS_NOEXEC)


def _own_folder(spec: RootSpec, name: str, mode: int = 0o755) -> str:
    """A new folder in the session's writable files, owned by its user."""
    path = f"/.session/{name}"
    os.mkdir(path)
    os.chmod(path, mode)
    if os.geteuid() == 0:
        os.chown(path, spec.uid, spec.gid)
    return path
