"""Asks the kernel which user's process is at the other end of a loopback connection.

Linux only. Elsewhere, and where the other end is not a socket of this network namespace, the user is unknown; the
caller then needs another proof, such as a token.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_ANY_STATE = _NO_COOKIE = 0xFFFFFFFF
_LISTENING = 10
_HEADER = struct.Struct("=IHHII")


def is_own_process(transport: Any) -> bool:
    """Whether a process of our own user, or of root, is at the other end of an asyncio transport.

    Root is trusted because it can read our memory anyway.
    """
    if transport is None:
        return False
    local, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    if not isinstance(local, tuple) or not isinstance(peer, tuple):
        return False
    return peer_uid(local, peer) in (0, os.geteuid())


def peer_uid(local: tuple[Any, ...], peer: tuple[Any, ...]) -> int | None:
    """The user whose process holds the socket with address `peer` that is connected to `local`; None if unknown.

    A user without an id in our user namespace is unknown too: the kernel reports one id for all of these.
    """
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, ValueError, struct.error):
        uid = _ask_kernel(local, peer)
        return None if uid == int(Path("/proc/sys/kernel/overflowuid").read_text()) else uid
    return None


def _ask_kernel(local: tuple[Any, ...], peer: tuple[Any, ...]) -> int | None:
    """Look up this one socket (`man 7 sock_diag`): about 15 µs, however many exist."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE)
    request += struct.pack("!HH16s16s", peer[1], local[1], _packed(family, peer), _packed(family, local))
    request += struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as netlink:
        netlink.sendto(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _REQUEST, 1, 0) + request, (0, 0))
        answer = netlink.recv(4096, socket.MSG_DONTWAIT)  # it is there when `sendto` returns
    if _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None  # an error: this namespace has no such socket
    state, ports = answer[17], struct.unpack_from("!HH", answer, 20)
    uid, inode = struct.unpack_from("=II", answer, 80)
    if state == _LISTENING or ports != (peer[1], local[1]):
        return None
    # A socket that its process has closed has no inode, and the kernel reports it as root's.
    return int(uid) if inode else None


def _packed(family: int, address: tuple[Any, ...]) -> bytes:
    return socket.inet_pton(family, address[0].partition("%")[0])
