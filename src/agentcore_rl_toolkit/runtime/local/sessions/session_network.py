"""Listens inside a session's network, at addresses that are outside of it.

A socket stays in the network where it was made, whoever binds it. So the session's init makes a few while the session
is prepared and passes them on (`template/init_process.py`), and this process gives them their addresses when the
session starts. A start waits for init only if it needs more sockets, or a line in `/etc/hosts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket

from ..template.channel import Channel

_ANSWER_SECONDS = 30.0
_MOST_ASKED = 32
_BACKLOG = 128
Address = tuple[str, int]


class SessionNetwork:
    """One session's network, as the runtime sees it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._unbound: dict[str, list[socket.socket]] = {"inet": [], "inet6": []}
        self._names: dict[str, str] = {}
        self._has_first = self._closed = False

    async def listen(self, addresses: list[Address]) -> dict[Address, socket.socket]:
        """A listening socket for each of these addresses, as far as there can be one."""
        known = len(self._names)
        places = {address: self._place_of(address[0]) for address in addresses}
        hosts = "".join(f"{place} {name}\n" for name, place in list(self._names.items())[known:])
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):  # the next request fails with the cause
            await self._get_sockets([_family(place) for place in places.values()], hosts)
        found = {}
        for (host, port), place in places.items():
            unbound = self._unbound[_family(place)]
            listening = _listen(unbound.pop(), place, port) if unbound else None
            if listening is not None:
                found[host, port] = listening
        return found

    def close(self) -> None:
        """Close the sockets without an address."""
        self._closed = True
        for unbound in self._unbound.values():
            while unbound:
                unbound.pop().close()

    def _place_of(self, host: str) -> str:
        """The address inside the session: a name gets one of loopback's."""
        if host == "localhost":
            return "127.0.0.1"
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(host))
        number = len(self._names) + 1
        return self._names.setdefault(host, f"127.1.{number // 250}.{number % 250 + 1}")

    async def _get_sockets(self, families: list[str], hosts: str) -> None:
        """Have an unbound socket for each of `families`, and init write `hosts`."""
        if not self._has_first:
            await self._receive()
            self._has_first = True
        while True:
            missing = {name: families.count(name) - len(unbound) for name, unbound in self._unbound.items()}
            if not hosts and max(missing.values()) <= 0:
                return
            asked = {name: min(max(0, count), _MOST_ASKED) for name, count in missing.items()}
            self._channel.send({"hosts": hosts} | asked)
            if await self._receive() < sum(asked.values()):
                return
            hosts = ""

    async def _receive(self) -> int:
        """Take init's next message; returns how many sockets it brought."""
        readable, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), readable.set)  # also when the other end is closed
        try:
            await asyncio.wait_for(readable.wait(), _ANSWER_SECONDS)
        finally:
            loop.remove_reader(self._channel.fileno())
        message, descriptors = self._channel.receive()
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        for name in ("inet", "inet6"):
            count = 0 if message is None else message[name]
            self._unbound[name] += sockets[:count]
            del sockets[:count]
        if message is None:
            raise ConnectionResetError("the session has ended")
        if self._closed:
            self.close()
        return len(descriptors)


def _family(place: str) -> str:
    return "inet6" if ":" in place else "inet"


def _listen(unbound: socket.socket, place: str, port: int) -> socket.socket | None:
    try:
        unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if ":" in place:
            unbound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        unbound.bind((place, port))
        unbound.listen(_BACKLOG)
    except OSError:
        unbound.close()
        return None
    return unbound
