"""Builds the root file system of a template and all its sessions: once per template, read-only, and small."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ...hosting.agent_files import excluded_paths
from . import syscalls as linux
from .agent_mounts import Mounted, cover, place_agent_files
from .import_paths import visible_paths

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts", "gai.conf", "host.conf",
    "java-*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "maven", "mime.types",
    "nsswitch.conf", "os-release", "perl", "pki", "protocols", "services", "ssl", "terminfo", "timezone", "xml",
)  # fmt: skip
_NAMESPACES = {
    "filesystem": linux.CLONE_NEWNS,
    "processes": linux.CLONE_NEWPID,
    "network": linux.CLONE_NEWNET,
    "ipc": linux.CLONE_NEWIPC,
    "hostname": linux.CLONE_NEWUTS,
}
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
EMPTY_FILE = "/.empty"
_USER_LIMITS = {"max_inotify_instances": 64, "max_inotify_watches": 16384}
"""For all sessions together: at most half of what the kernel gives the runtime's user."""
_READ_ONLY = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
_SAFE = linux.MS_NOSUID | linux.MS_NODEV


@dataclass(frozen=True)
class RootSpec:
    """What `build_root` builds; a template reads it as JSON."""

    root: str
    """An empty folder to mount the new root on."""
    agent_folder: str
    protections: list[str]
    python_path: list[str]
    """The folders of the user's `PYTHONPATH`."""
    disk_mb: int
    memory_mb: int
    uid: int
    gid: int


@dataclass
class Root:
    """What sessions need to know of a root that was built."""

    spec: RootSpec
    excluded: list[str] = field(default_factory=list)
    """The paths in the agent's folder that sessions don't get."""
    moved: list[tuple[str, str]] = field(default_factory=list)
    """Visible paths below `/tmp` or `/app`, which sessions mount over, and where each is kept meanwhile."""
    mounted: list[Mounted] = field(default_factory=list)
    """The files and folders of the agent that are mounted, not copied."""

    def mount_moved(self) -> None:
        """Mount the moved paths again, on top of a new `/tmp` or `/app`."""
        for path, kept in self.moved:
            if os.path.isdir(kept):
                os.makedirs(path, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                Path(path).touch()
            linux.mount(kept, path, None, linux.MS_BIND | linux.MS_REC)


def namespace_flags(protections: Container[str], names: Iterable[str]) -> int:
    """The flags for `unshare` of those namespaces among `names` that are wanted."""
    return sum(_NAMESPACES[name] for name in names if name in protections)


def enter_namespaces(protections: list[str]) -> None:
    """Enter the namespaces of a template's root. The template's children get their own process ids."""
    flags = namespace_flags(protections, ("filesystem", "processes", "network", "ipc"))
    if flags and os.geteuid() != 0:
        enter_user_namespace()
    if flags:
        linux.unshare(flags)


def build_root(spec: RootSpec) -> Root:
    """Build a new root and enter it; `/app` is then the agent's folder."""
    root, built = spec.root, Root(spec, excluded_paths(spec.agent_folder))
    visible, covered = visible_paths(spec.python_path)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", root, "tmpfs", _SAFE, "mode=755,size=16m")
    Path(root + EMPTY_FILE).touch(0o444)
    for path in _SYSTEM:
        _mount_host_path(path, root)
    _build_etc(root, spec)
    _build_dev(root)
    for path in visible:
        at = path
        if path.startswith(("/tmp/", "/var/tmp/", "/app/")):
            at = f"/.moved/{len(built.moved)}"
            built.moved.append((path, at))
        _mount_host_path(path, root, at, covered)
    for folder in ("/proc", "/tmp", "/app", "/.agent", "/.session", "/var/tmp", "/run"):
        os.makedirs(root + folder, exist_ok=True)
    inside = [path.removeprefix("/app/") for path, _ in built.moved if path.startswith("/app/")]
    built.mounted = _place_agent(spec, root, inside)
    linux.mount(root + "/.agent", root + "/app", None, linux.MS_BIND | linux.MS_REC)
    linux.mount("tmpfs", root + "/tmp", "tmpfs", _SAFE, "mode=1777,size=64m")
    linux.mount("proc", root + "/proc", "proc", _SAFE | linux.MS_NOEXEC)
    linux.pivot_root(root)
    built.mount_moved()
    linux.mount("none", "/", None, _READ_ONLY)
    return built


def _mount_host_path(path: str, root: str, at: str | None = None, covered: Iterable[str] = ()) -> None:
    """Mount a host path read-only under `root`, at the same place or `at` another; links stay links."""
    target = root + (at or path)
    if not os.path.lexists(path) or os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        Path(target).touch()
    linux.bind_read_only(path, target)
    for inner in covered:
        if inner.startswith(path + "/"):
            cover(target + inner[len(path) :], os.path.isdir(inner), root + EMPTY_FILE)


def _build_etc(root: str, spec: RootSpec) -> None:
    os.makedirs(root + "/etc", exist_ok=True)
    for pattern in _ETC:
        for path in Path("/etc").glob(pattern):
            _mount_host_path(str(path), root)
    files = {
        "passwd": f"root:x:0:0::/root:/bin/sh\nagent:x:{spec.uid}:{spec.gid}::/tmp:/bin/sh\n",
        "group": f"root:x:0:\nagent:x:{spec.gid}:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "resolv.conf": "",
    }
    for name, text in files.items():
        Path(root, "etc", name).write_text(text)


def _build_dev(root: str) -> None:
    os.mkdir(root + "/dev")
    linux.mount("tmpfs", root + "/dev", "tmpfs", linux.MS_NOSUID | linux.MS_NOEXEC, "mode=755,size=64k")
    for name in _DEVICES:
        Path(f"{root}/dev/{name}").touch()
        linux.mount(f"/dev/{name}", f"{root}/dev/{name}", None, linux.MS_BIND)
    os.mkdir(root + "/dev/shm")
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"{root}/dev/{name}")
    # All sessions share it, and an ordinary user's sessions would own it.
    read_only = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY
    linux.mount("none", root + "/dev", None, read_only | linux.MS_NOSUID | linux.MS_NOEXEC)


def _place_agent(spec: RootSpec, root: str, inside: list[str]) -> list[Mounted]:
    """Place the agent's files at `/.agent`, owned by the session's user, with mount points for the paths `inside`."""
    target = root + "/.agent"
    linux.mount("tmpfs", target, "tmpfs", _SAFE, "mode=755")
    mounted = place_agent_files(spec.agent_folder, root, root + EMPTY_FILE)
    for path in inside:
        os.makedirs(os.path.join(target, path), exist_ok=True)
    if os.geteuid() == 0:
        chown_tree(target, spec.uid, spec.gid)
    linux.mount("none", target, None, _READ_ONLY)
    return mounted


def chown_tree(folder: str, uid: int, gid: int) -> None:
    """Give a folder, and all files and folders in it, to a user."""
    for base, _, files in os.walk(folder):
        for path in [base, *(os.path.join(base, name) for name in files)]:
            os.chown(path, uid, gid, follow_symlinks=False)


def enter_user_namespace() -> None:
    """Get the rights to build a sandbox as an ordinary user, and limit what its sessions take of the user's."""
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    for name, most in _USER_LIMITS.items():
        with contextlib.suppress(OSError):  # older kernels lack one of them
            Path(f"/proc/sys/user/{name}").write_text(str(most))
