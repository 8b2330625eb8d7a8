"""The root that a template and all its sessions live in: made once per template, read-only, and small."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from ...hosting.agent_files import left_out
from ..template.agent_view import Large, cover, lay_out
from ..template.import_paths import shown_paths
from . import syscalls as linux

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts", "gai.conf", "host.conf",
    "java-*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "maven", "mime.types",
    "nsswitch.conf", "os-release", "perl", "pki", "protocols", "services", "ssl", "terminfo", "timezone", "xml",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
EMPTY_FILE = "/.empty"
_OF_THE_USER = {"max_inotify_instances": 64, "max_inotify_watches": 16384}
"""What all sessions together may take of what the kernel gives the runtime's user, half of it at most."""
_READ_ONLY = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
_SAFE = linux.MS_NOSUID | linux.MS_NODEV


@dataclass(frozen=True)
class RootSpec:
    """What `build_root` needs to know; crosses a process boundary as JSON."""

    root: str
    """An empty folder to mount the new root on."""
    agent_folder: str
    protections: list[str]
    python_path: list[str]
    """Folders that the user's `PYTHONPATH` adds."""
    disk_mb: int
    memory_mb: int
    uid: int
    gid: int


@dataclass
class Root:
    """A root that was built, as far as sessions need to know it."""

    spec: RootSpec
    left_out: list[str] = field(default_factory=list)
    """What sessions don't get of the agent's folder."""
    moved: list[tuple[str, str]] = field(default_factory=list)
    """Paths that are shown where sessions have files of their own, and where they are kept meanwhile."""
    large: list[Large] = field(default_factory=list)
    """What of the agent's folder is not copied, but shown itself."""

    def show_moved(self) -> None:
        """Show again what a new `/tmp` or `/app` has covered."""
        for path, kept in self.moved:
            if os.path.isdir(kept):
                os.makedirs(path, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                Path(path).touch()
            linux.mount(kept, path, None, linux.MS_BIND | linux.MS_REC)


def enter_namespaces(protections: list[str]) -> None:
    """First step of a template: the namespaces its root will live in. Its children get process ids of their own."""
    flags = 0
    for name, flag in (
        ("filesystem", linux.CLONE_NEWNS),
        ("processes", linux.CLONE_NEWPID),
        ("network", linux.CLONE_NEWNET),
        ("ipc", linux.CLONE_NEWIPC),
    ):
        flags |= flag if name in protections else 0
    if flags and os.geteuid() != 0:
        become_owner_of_a_user_namespace()
    if flags:
        linux.unshare(flags)


def build_root(spec: RootSpec) -> Root:
    """Make a new root from `spec` and enter it; afterwards `/app` is the agent's folder."""
    root, built = spec.root, Root(spec, left_out(spec.agent_folder))
    shown, hidden = shown_paths(spec.python_path)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", root, "tmpfs", _SAFE, "mode=755,size=16m")
    Path(root + EMPTY_FILE).touch(0o444)
    for path in _SYSTEM:
        _show(path, root)
    _build_etc(root, spec)
    _build_dev(root)
    for path in shown:
        if path.startswith(("/tmp/", "/var/tmp/", "/app/")):
            built.moved.append((path, f"/.shown/{len(built.moved)}"))
            _show(path, root, built.moved[-1][1], hidden)
        else:
            _show(path, root, path, hidden)
    for folder in ("/proc", "/tmp", "/app", "/.agent", "/.session", "/var/tmp", "/run"):
        os.makedirs(root + folder, exist_ok=True)
    inside = [path.removeprefix("/app/") for path, _ in built.moved if path.startswith("/app/")]
    built.large = _show_agent(spec, root, inside)
    linux.mount(root + "/.agent", root + "/app", None, linux.MS_BIND | linux.MS_REC)
    linux.mount("tmpfs", root + "/tmp", "tmpfs", _SAFE, "mode=1777,size=64m")
    linux.mount("proc", root + "/proc", "proc", _SAFE | linux.MS_NOEXEC)
    linux.pivot_root(root)
    built.show_moved()
    linux.mount("none", "/", None, _READ_ONLY)
    return built


def _show(path: str, root: str, at: str | None = None, hidden: list[str] | None = None) -> None:
    """Make a host path visible, read-only, under `root`, at the same place or `at` another; links stay links."""
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
    for inner in hidden or ():
        if inner.startswith(path + "/"):
            cover(target + inner[len(path) :], os.path.isdir(inner), root + EMPTY_FILE)


def _build_etc(root: str, spec: RootSpec) -> None:
    os.makedirs(root + "/etc", exist_ok=True)
    for pattern in _ETC:
        for path in Path("/etc").glob(pattern):
            _show(str(path), root)
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
    # All sessions share it, and where the runtime's user is theirs, it is this user's.
    read_only = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY
    linux.mount("none", root + "/dev", None, read_only | linux.MS_NOSUID | linux.MS_NOEXEC)


def _show_agent(spec: RootSpec, root: str, inside: list[str]) -> list[Large]:
    """Put the agent's files at `/.agent`, with folders for what is shown `inside`; gives what sessions get beside it.

    They belong to the session's user, so that sessions may change their view of every file.
    """
    target = root + "/.agent"
    linux.mount("tmpfs", target, "tmpfs", _SAFE, "mode=755")
    large = lay_out(spec.agent_folder, root, root + EMPTY_FILE)
    for path in inside:
        os.makedirs(os.path.join(target, path), exist_ok=True)
    if os.geteuid() == 0:
        for folder, _, files in os.walk(target):
            for path in [folder, *(os.path.join(folder, name) for name in files)]:
                os.chown(path, spec.uid, spec.gid, follow_symlinks=False)
    linux.mount("none", target, None, _READ_ONLY)
    return large


def become_owner_of_a_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    for name, most in _OF_THE_USER.items():
        with contextlib.suppress(OSError):  # an older kernel has one of them less
            Path(f"/proc/sys/user/{name}").write_text(str(most))
