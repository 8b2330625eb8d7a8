"""Connects a session to the addresses that its policy and its rollouts allow.

A session's network is not connected to any other. For each allowed address, this process listens *inside* that network
at the same address (`session_network.py`), and relays each connection to the real address. So agents use the URLs they
were given, and every other address refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
import time

from .name_lookups import NameLookups

logger = logging.getLogger(__name__)

_CHUNK = 1 << 16
_MOST_CONNECTIONS, _ALWAYS = 256, 8
_CONNECTIONS_PER_SECOND = 100


class ConnectionLimit:
    """Limits the connections of all sessions together, because each takes two of the runtime's descriptors."""

    def __init__(self) -> None:
        self.open = 0
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8

    def allows(self, own: int) -> bool:
        """Whether a session with `own` connections may open another; the first few are always allowed."""
        return own < _ALWAYS or (own < _MOST_CONNECTIONS and self.open < self._most)


class Egress:
    """The outgoing connections of one session."""

    def __init__(self, closed_ports: frozenset[int], limit: ConnectionLimit, lookups: NameLookups) -> None:
        """No session may reach this machine's `closed_ports`, under whatever name."""
        self._closed_ports, self._limit, self._lookups = closed_ports, limit, lookups
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._bucket = TokenBucket(_CONNECTIONS_PER_SECOND, _MOST_CONNECTIONS)
        self._warned: set[str] = set()

    async def accept(self, listening: socket.socket, host: str, port: int) -> None:
        """Relay every connection to a session's socket to `host:port`."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            if not self._limit.allows(len(self._connections)):
                writer.close()
                return
            self._connections.add(task)
            self._limit.open += 1
            try:
                await asyncio.sleep(self._bucket.seconds_to_wait(time.monotonic()))
                await self._relay(reader, writer, host, port)
            except asyncio.CancelledError:
                pass  # cancelled by `close`; asyncio would log an error
            finally:
                self._connections.discard(task)
                self._limit.open -= 1

        self._servers.append(await asyncio.start_server(connected, sock=listening))

    async def close(self) -> None:
        """Stop accepting, and close open connections."""
        for server in self._servers:
            server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        ends = [writer]
        try:
            far_reader, far_writer = await self._connect(host, port)
            ends.append(far_writer)
            if self._is_closed_port(far_writer):
                self._warn_once(f"a session tried to reach this runtime's own port through {host}:{port}")
                return
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        except OSError as error:
            if len(ends) == 1:
                self._warn_once(f"a session could not reach {host}:{port}: {error}")
        finally:
            for end in ends:
                end.close()
            for end in ends:
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        problem: OSError | None = None
        for address in await self._lookups.find(host, port):
            try:
                return await asyncio.open_connection(address, port)
            except OSError as error:
                problem = problem or error
        raise problem or OSError("the name has no address")

    def _warn_once(self, message: str) -> None:
        """Once each, because a session may try thousands of times."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message)

    def _is_closed_port(self, far: asyncio.StreamWriter) -> bool:
        there, here = far.get_extra_info("peername"), far.get_extra_info("sockname")
        local = there[0] == here[0] or ipaddress.ip_address(there[0].partition("%")[0]).is_loopback
        return local and there[1] in self._closed_ports


class TokenBucket:
    """Limits requests to `rate` a second, after a burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = burst, 0.0

    def seconds_to_wait(self, now: float) -> float:
        """Count one request; returns how long it has to wait."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)

    def put_back(self) -> None:
        """Don't count a request that is refused instead of made to wait."""
        self._tokens += 1


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
