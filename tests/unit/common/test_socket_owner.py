"""Whose socket is at the other end: asked of the kernel, with real connections and users."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentcore_rl_toolkit.common.socket_owner import is_own_process, peer_uid

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
ADDRESSES = ["127.0.0.1", "::1"]


@contextmanager
def connection(address: str = "127.0.0.1", client_family: int | None = None) -> Iterator[tuple[socket.socket, ...]]:
    """A server's end and a client's end."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server((address, 0), family=family) as listening,
        socket.socket(client_family or family) as client,
    ):
        client.connect((f"::ffff:{address}" if client_family else address, listening.getsockname()[1]))
        server, _ = listening.accept()
        with server:
            yield server, client


@pytest.mark.parametrize("address", ADDRESSES)
def test_our_own_process(address: str) -> None:
    with connection(address) as (server, _):
        assert peer_uid(server.getsockname(), server.getpeername()) == os.geteuid()


def test_a_client_that_wrote_the_address_in_another_way() -> None:
    with connection(client_family=socket.AF_INET6) as (server, _):
        assert peer_uid(server.getsockname(), server.getpeername()) == os.geteuid()


def test_half_closed_is_still_somebodys() -> None:
    with connection() as (server, client):
        client.shutdown(socket.SHUT_WR)
        assert peer_uid(server.getsockname(), server.getpeername()) == os.geteuid()


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_closed_socket_is_nobodys(address: str) -> None:
    with connection(address) as (server, client):
        ends = server.getsockname(), server.getpeername()
        client.close()
        assert peer_uid(*ends) is None
    assert peer_uid(*ends) is None


def test_a_listening_socket_is_not_a_peer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        assert peer_uid(one.getsockname(), other.getsockname()) is None


@pytest.mark.parametrize(
    "ends", [(("10.9.9.9", 1), ("10.9.9.8", 2)), (("nonsense", 1), ("x", 2)), (("::1", 1), ("x", 0))]
)
def test_what_is_not_there(ends: tuple[tuple[str, int], tuple[str, int]]) -> None:
    assert peer_uid(*ends) is None


@pytest.mark.parametrize("uid", [12345, 65534])
def test_another_user(uid: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    code = (
        "import encodings.idna, os, socket, sys; os.setresuid(*[int(sys.argv[2])] * 3)\n"
        "with socket.create_connection(('127.0.0.1', int(sys.argv[1]))): sys.stdin.read()"
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        command = [sys.executable, "-c", code, str(listening.getsockname()[1]), str(uid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            server, _ = listening.accept()
            with server:
                found = peer_uid(server.getsockname(), server.getpeername())
            assert process.stdin is not None
            process.stdin.close()
    assert found == (12345 if uid == 12345 else None)  # 65534 is everybody who has no id here


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_transports(loop: str) -> None:
    async def look() -> list[bool]:
        found = []

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.append(is_own_process(writer.transport))
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await reader.read()
            writer.close()
        return found

    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(look()) == [True]
    assert not is_own_process(None)


def test_other_transports_are_nobodys() -> None:
    async def look() -> bool:
        ours, theirs = socket.socketpair()
        _, writer = await asyncio.open_connection(sock=ours)
        with theirs:
            found = is_own_process(writer.transport)
            writer.close()
        return found

    assert not asyncio.run(look())
