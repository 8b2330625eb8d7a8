"""The sandbox: what a session sees of the machine, built from Linux namespaces.

Built in two steps, because the second one is paid for by every session. The template's process enters a root of its
own once (`root.py`): a small read-only tree with the system's programs, Python, and a copy of the agent's folder at
`/app`. Each session forked from it then adds what is its own (`enter_session`): writable `/app` and `/tmp`, process,
network, IPC and host names, no capabilities, and no way to get any.

Each protection has a name, can be missing on a machine (`probe.py`), and is then left out, openly.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from . import linux
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
_HOSTS = "/.session/hosts"


@dataclass(frozen=True)
class RootSpec:
    """What `build_root` needs to know; crosses a process boundary as JSON."""

    root: str
    """An empty folder to mount the new root on."""
    agent_folder: str
    protections: list[str]
    read_only: list[str]
    """Folders to show at their own place: Python and what it imports."""
    disk_mb: int
    memory_mb: int
    uid: int
    gid: int

    def to_json(self) -> str:
        """As one argument of a command line."""
        return json.dumps(asdict(self))

    @property
    def under_tmp(self) -> list[tuple[str, str]]:
        """Read-only folders that lie where sessions have a `/tmp` of their own, and where they are kept meanwhile."""
        paths = [path for path in self.read_only if path.startswith(("/tmp/", "/var/tmp/"))]
        return [(path, f"/.shown/{i}") for i, path in enumerate(paths)]


def enter_session(root: RootSpec, hostname: str) -> None:
    """Turn this process, freshly forked from a template, into a session's."""
    on = set(root.protections)
    flags = 0
    for name, flag in (
        ("filesystem", linux.CLONE_NEWNS),
        ("network", linux.CLONE_NEWNET),
        ("ipc", linux.CLONE_NEWIPC),
        ("hostname", linux.CLONE_NEWUTS),
    ):
        flags |= flag if name in on else 0
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
        with contextlib.suppress(OSError):  # without it, only doors on ports below 1024 fail
            Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "memory" not in on:  # better than nothing: a limit on each process
        limit = root.memory_mb << 20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if "capabilities" in on:
        linux.drop_bounding_set()
    if "user" in on and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(root.gid, root.gid, root.gid)
        os.setresuid(root.uid, root.uid, root.uid)
    if "capabilities" in on:
        linux.drop_capabilities()
        linux.no_new_privileges()
    if "seccomp" in on:
        program = build_filter()
        assert program is not None
        linux.install_seccomp(program)


def _mount_session(root: RootSpec) -> None:
    safe = linux.MS_NOSUID | linux.MS_NODEV
    owner = f"uid={root.uid},gid={root.gid}"
    linux.mount("tmpfs", "/.session", "tmpfs", safe, f"mode=755,size={root.disk_mb}m,{owner}")
    for name, mode in (("upper", 0o755), ("work", 0o755), ("tmp", 0o1777), ("shm", 0o1777)):
        os.mkdir(f"/.session/{name}")
        os.chmod(f"/.session/{name}", mode)
        if os.geteuid() == 0:
            os.chown(f"/.session/{name}", root.uid, root.gid)
    linux.mount("overlay", "/app", "overlay", safe, "lowerdir=/.agent,upperdir=/.session/upper,workdir=/.session/work")
    linux.mount("/.session/tmp", "/tmp", None, linux.MS_BIND)
    linux.mount("/.session/tmp", "/var/tmp", None, linux.MS_BIND)
    linux.mount("/.session/shm", "/dev/shm", None, linux.MS_BIND)
    Path(_HOSTS).write_text("127.0.0.1 localhost\n::1 localhost\n")
    if os.geteuid() == 0:
        os.chown(_HOSTS, root.uid, root.gid)
    linux.mount(_HOSTS, "/etc/hosts", None, linux.MS_BIND)
    show_under_tmp(root)
    if "processes" in root.protections:
        linux.mount("proc", "/proc", "proc", safe | linux.MS_NOEXEC)


def show_under_tmp(root: RootSpec) -> None:
    """Show again what a new `/tmp` has covered."""
    for path, kept in root.under_tmp:
        os.makedirs(path, exist_ok=True)
        linux.mount(kept, path, None, linux.MS_BIND | linux.MS_REC)


def open_doors(root: RootSpec, addresses: list[tuple[str, int]]) -> list[socket.socket]:
    """Listen inside the session's network at addresses that really lie outside; the runtime accepts there."""
    doors: list[socket.socket] = []
    names: dict[str, str] = {}
    for host, port in addresses:
        address = host
        if host == "localhost":
            address = "127.0.0.1"
        elif not _is_ip(host):
            address = names.setdefault(host, f"127.1.0.{len(names) + 1}")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        door = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((address, port))
        door.listen(128)
        doors.append(door)
    if names and "filesystem" in root.protections:
        with open(_HOSTS, "a") as file:
            file.writelines(f"{address} {name}\n" for name, address in names.items())
    return doors


def _is_ip(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False
