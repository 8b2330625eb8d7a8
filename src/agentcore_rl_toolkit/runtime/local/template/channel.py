"""Messages with attached descriptors, over a sequenced-packet socket between two processes of one machine."""

from __future__ import annotations

import array
import json
import socket
from typing import Any

_LARGEST = 1 << 18
_MOST_DESCRIPTORS = 64


class Channel:
    """One end; a message is a small dict."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """This process's end, and the socket for the other process."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(here), there

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None, *, wait: bool = True) -> None:
        """Send one message; the receiver gets copies of the descriptors.

        Without `wait`, a full channel is a `BlockingIOError`.
        """
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self._socket.sendmsg([json.dumps(message).encode()], attached, 0 if wait else socket.MSG_DONTWAIT)

    def receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        """The next message, and descriptors that the caller closes; None when the other end is closed."""
        size = socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4)
        try:
            data, attached, _, _ = self._socket.recvmsg(_LARGEST, size, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None, []
        descriptors = array.array("i")
        for level, kind, content in attached:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: len(content) - len(content) % 4])
        return (json.loads(data) if data else None), list(descriptors)

    def close(self) -> None:
        self._socket.close()
