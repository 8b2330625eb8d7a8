"""Looks up the names that sessions connect to, on threads of its own.

A lookup blocks its thread, for as long as a name server is slow. The event loop's own threads store results, and a
session that connects a hundred times would take them all. Here a name takes one thread, however often it is asked for.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_THREADS = 8


class NameLookups:
    """The lookups of all sessions."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lookup")
        self._running: dict[tuple[str, int], asyncio.Future[list[Any]]] = {}

    async def find(self, host: str, port: int) -> list[str]:
        """The addresses of a host, in the system's order; raises an `OSError` if it has none."""
        running = self._running.get((host, port))
        if running is None:
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._threads, _look_up, host, port)
            self._running[host, port] = running
            running.add_done_callback(lambda done: self._ended(host, port, done))
        found = await asyncio.shield(running)
        return list(dict.fromkeys(address[0] for *_, address in found))

    def _ended(self, host: str, port: int, done: asyncio.Future[list[Any]]) -> None:
        del self._running[host, port]
        if not done.cancelled():
            done.exception()  # every session that asked may have ended


def _look_up(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
