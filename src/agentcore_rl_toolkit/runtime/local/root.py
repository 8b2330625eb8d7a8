"""The root that a template and all its sessions live in: made once per template, read-only, and small."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from importlib import metadata
from pathlib import Path

from ..agent_code import agent_files, copy_agent_folder
from . import linux
from .sandbox import RootSpec, show_under_tmp

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts", "gai.conf", "host.conf",
    "java-*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "maven", "mime.types",
    "nsswitch.conf", "os-release", "perl", "pki", "protocols", "services", "ssl", "terminfo", "timezone", "xml",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LARGEST_COPY = 256 << 20


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


def build_root(spec: RootSpec) -> None:
    """Make a new root from `spec` and enter it; afterwards `/app` is the agent's folder."""
    root = spec.root
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=16m")
    for path in _SYSTEM:
        _show(path, root)
    _build_etc(root, spec)
    _build_dev(root)
    moved = dict(spec.under_tmp)
    for path in spec.read_only:
        _show(path, root, at=moved.get(path))
    for folder in ("/proc", "/tmp", "/app", "/.agent", "/.session", "/var/tmp", "/run"):
        os.makedirs(root + folder, exist_ok=True)
    _copy_agent(spec, root + "/.agent")
    linux.mount(root + "/.agent", root + "/app", None, linux.MS_BIND | linux.MS_REC)
    linux.mount("tmpfs", root + "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777,size=64m")
    linux.mount("proc", root + "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.pivot_root(root)
    show_under_tmp(spec)
    linux.mount(
        "none", "/", None, linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    )


def _show(path: str, root: str, *, at: str | None = None) -> None:
    """Make a host path visible, read-only, at the same place under `root` or at another; links stay links."""
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


def _copy_agent(spec: RootSpec, target: str) -> None:
    """A copy that belongs to the session's user, so that sessions may change their view of every file in it."""
    if _size(spec.agent_folder) > _LARGEST_COPY:
        linux.bind_read_only(spec.agent_folder, target)
        return
    linux.mount("tmpfs", target, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755")
    copy_agent_folder(spec.agent_folder, target)
    if os.geteuid() == 0:
        for folder, _, files in os.walk(target):
            for path in [folder, *(os.path.join(folder, name) for name in files)]:
                os.chown(path, spec.uid, spec.gid, follow_symlinks=False)
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("none", target, None, flags)


def _size(folder: str) -> int:
    total = 0
    for path in agent_files(folder):
        with contextlib.suppress(OSError):
            total += os.lstat(path).st_size
        if total > _LARGEST_COPY:
            break
    return total


def read_only_paths() -> list[str]:
    """What this Python needs to see of the host: itself, and every folder it imports from."""
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    paths.update(path for path in sys.path if os.path.isdir(path) and os.path.isabs(path))
    for distribution in metadata.distributions():
        with contextlib.suppress(Exception):
            direct = json.loads(distribution.read_text("direct_url.json") or "{}")
            if direct.get("dir_info", {}).get("editable"):
                paths.add(direct["url"].removeprefix("file://"))
    return _without_nested(sorted(paths | {os.path.realpath(path) for path in paths}))


def _without_nested(paths: list[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted(set(paths), key=len):
        if not any(path == k or path.startswith(k.rstrip("/") + "/") for k in (*kept, *_SYSTEM)):
            kept.append(path)
    return kept


def become_owner_of_a_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
