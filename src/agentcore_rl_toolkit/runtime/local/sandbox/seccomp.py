"""The seccomp program of a session. Pure.

It lists refused calls, not allowed ones, because agents run compilers, browsers and JVMs. Refused are the calls that
could undo the sandbox (namespaces, mounts), reach into other processes (ptrace and its relatives), or widen the attack
surface of the kernel (modules, BPF, keys, io_uring, rare socket families). They fail with EPERM; `clone3` fails with
ENOSYS, so that libc falls back to `clone`, whose flags a filter can read.
"""

from __future__ import annotations

import functools
import platform
import struct

_NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "ptrace": 101, "syslog": 103, "pivot_root": 155, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165,
        "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175,
        "delete_module": 176, "quotactl": 179, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
        "unshare": 272, "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308,
        "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "kexec_file_load": 320,
        "bpf": 321, "userfaultfd": 323, "socket": 41, "clone": 56,
    },
    "aarch64": {
        "ptrace": 117, "syslog": 116, "pivot_root": 41, "chroot": 51, "acct": 89, "settimeofday": 170, "mount": 40,
        "umount2": 39, "swapon": 224, "swapoff": 225, "reboot": 142, "init_module": 105, "delete_module": 106,
        "quotactl": 60, "kexec_load": 104, "add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97,
        "perf_event_open": 241, "fanotify_init": 262, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
        "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "kexec_file_load": 294, "bpf": 280,
        "userfaultfd": 282, "socket": 198, "clone": 220,
    },
}  # fmt: skip
_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "open_tree_attr": 467,
}  # fmt: skip
"""Newer calls have the same number on every architecture."""
_CLONE3 = 435
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEW_NAMESPACES = 0x7E020000
_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""The socket families of a session; others (vsock, packet, crypto, …) would bypass its network."""

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_EPERM, _ENOSYS, _EAFNOSUPPORT = (0x00050000 | number for number in (1, 38, 97))


@functools.cache
def build_filter(machine: str | None = None) -> bytes | None:
    """The program for this machine's architecture; None for an architecture without call numbers here."""
    machine = machine or platform.machine()
    if machine not in _NUMBERS:
        return None
    numbers = _NUMBERS[machine] | _EVERYWHERE
    clone, socket = numbers.pop("clone"), numbers.pop("socket")
    program = [
        (_LOAD, 0, 0, 4),  # the architecture, which determines the numbers
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the call's number
    ]
    if machine == "x86_64":  # the x32 variants of all calls
        program += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _EPERM)]
    program += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ENOSYS)]
    for number in numbers.values():
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM)]
    program += [(_EQUAL, 0, len(_FAMILIES) * 2 + 2, socket), (_LOAD, 0, 0, 16)]  # low half of its first argument
    for family in _FAMILIES.values():
        program += [(_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    program += [
        (_RETURN, 0, 0, _EAFNOSUPPORT),
        (_EQUAL, 0, 3, clone),
        (_LOAD, 0, 0, 16),  # low half of its flags
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
