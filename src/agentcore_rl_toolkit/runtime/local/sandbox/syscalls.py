"""The Linux calls that a sandbox needs and Python lacks; each raises an `OSError` with its errno.

`namespaces.py` and `root_filesystem.py` decide what to call. Importable anywhere; the calls work on Linux only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import struct
import sys

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2
_MOUNT_ATTR = {MS_RDONLY: 1, MS_NOSUID: 2, MS_NODEV: 4}

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 38, 47
_SECCOMP_MODE_FILTER, _PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
_LAST_CAP = 40
_MADV_COLLAPSE = 25
_SYS = {
    "x86_64": {"pivot_root": 155, "mount_setattr": 442, "capset": 126},
    "aarch64": {"pivot_root": 41, "mount_setattr": 442, "capset": 91},
}.get(platform.machine(), {})

# PyDLL keeps Python's lock during a call, so that no other thread runs in a half-made namespace.
_libc = ctypes.PyDLL(None, use_errno=True)


def find_functions() -> None:
    """Look up the functions of libc that sessions call, so that a forked process need not."""
    for name in ("unshare", "mount", "prctl", "sethostname", "syscall", "fork"):
        getattr(_libc, name)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(name: str, *args: object) -> int:
    if name not in _SYS:
        raise OSError(38, f"{name} is not known on {platform.machine()}")
    return _check(_libc.syscall(_SYS[name], *args), name)


def fork() -> int:
    """Fork without Python's handlers for it, which reseed and relock what the child may never use.

    For a process without other threads, and a child that runs only our code, forks with `os.fork` or ends.
    """
    return _check(_libc.fork(), "fork")


def collapse(address: int, length: int) -> None:
    """Move memory into huge pages (Linux 6.1 and newer)."""
    _check(_libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_COLLAPSE), "madvise(COLLAPSE)")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(descriptor: int, kind: int) -> None:
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    code = _libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3])
    _check(code, f"mount {kind or source} on {target}")


def bind_read_only(source: str, target: str) -> None:
    """Mount `source`, with the mounts below it, at `target`, read-only."""
    mount(source, target, None, MS_BIND | MS_REC)
    flags = MS_RDONLY | MS_NOSUID
    attributes = struct.pack("=QQQQ", sum(v for k, v in _MOUNT_ATTR.items() if flags & k), 0, 0, 0)
    try:
        _syscall("mount_setattr", -100, os.fsencode(target), 0x8000, attributes, len(attributes))
    except OSError:  # before Linux 5.12; locked flags must be repeated
        locked = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount("none", target, None, MS_REMOUNT | MS_BIND | flags | locked)


def pivot_root(new_root: str) -> None:
    """Make `new_root`, a mount point, the root, and unmount the old one."""
    os.chdir(new_root)
    _syscall("pivot_root", b".", b".")  # the old root is now stacked on the new one
    _check(_libc.umount2(b".", _MNT_DETACH), "umount the old root")
    os.chdir("/")


def die_with_parent(signal: int) -> None:
    """Have the kernel send `signal` when the thread that started this process ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0), "prctl(PDEATHSIG)")


def set_dumpable(on: bool) -> None:
    """Whether other processes of the same user may read this one's memory and descriptors."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, int(on), 0, 0, 0), "prctl(DUMPABLE)")


def set_hostname(name: str) -> None:
    _check(_libc.sethostname(name.encode(), len(name)), "sethostname")


def drop_bounding_set() -> None:
    """Keep programs run from now on from gaining capabilities. Call it first: it takes a capability."""
    for capability in range(_LAST_CAP + 1):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails only for capabilities that this kernel lacks


def drop_capabilities() -> None:
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, empty = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _syscall("capset", header, empty)


def no_new_privileges() -> None:
    """Keep setuid programs from gaining rights, in this process and its children."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def install_seccomp(program: bytes) -> None:
    """Filter system calls with a classic BPF program (8 bytes an instruction)."""
    code = ctypes.create_string_buffer(program, len(program))
    filter = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter, 0, 0), "prctl(SECCOMP)")


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sH14x", b"lo", 0x41)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(s.fileno(), 0x8914, request)  # SIOCSIFFLAGS


def make_all_addresses_local() -> None:
    """Route every IPv4 address to this network namespace itself, so that one can listen on any of them."""
    message = struct.pack(
        "=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 255, 3, 254, 2, 0
    )  # table local, type local, scope host
    message += struct.pack("=HHI", 8, 4, 1)  # RTA_OIF: lo
    header = struct.pack("=IHHII", 16 + len(message), 24, 0x405, 1, 0)  # RTM_NEWROUTE; request, ack, create
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.send(header + message)
        number = struct.unpack_from("=i", s.recv(4096), 16)[0]
    if number:
        raise OSError(-number, f"route all addresses to lo: {os.strerror(-number)}")


def is_linux() -> bool:
    return sys.platform.startswith("linux")
