"""Listening inside a session's network: sockets that are there already, and asking init for others."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentcore_rl_toolkit.runtime.local.sessions.session_network import SessionNetwork
from agentcore_rl_toolkit.runtime.local.template.channel import Channel

Messages = list[dict[str, Any]]
PORT = 12000 + 2 * (os.getpid() % 10000)


def send_sockets(init: Channel, inet: int, inet6: int = 0) -> None:
    families = [socket.AF_INET] * inet + [socket.AF_INET6] * inet6
    made = [socket.socket(family) for family in families]
    init.send({"inet": inet, "inet6": inet6}, [one.fileno() for one in made])
    for one in made:
        one.close()


@contextmanager
def network(ahead: int) -> Iterator[tuple[SessionNetwork, Messages, Channel]]:
    """A network whose init has sent `ahead` sockets and then sends what it is asked for, and the messages it got."""
    here, there = Channel.pair()
    init, asked = Channel(there), Messages()

    def answer() -> None:
        while (message := init.receive()[0]) is not None:
            asked.append(message)
            send_sockets(init, message["inet"], message["inet6"])

    send_sockets(init, ahead)
    answering = threading.Thread(target=answer)
    answering.start()
    found = SessionNetwork(here)
    try:
        yield found, asked, init
    finally:
        found.close()
        here.close()
        answering.join()
        init.close()


def own_addresses(count: int) -> list[tuple[str, int]]:
    """Addresses of loopback that no other process of tests uses."""
    pid = os.getpid()
    return [(f"127.{100 + (pid >> 8) % 100}.{pid & 255}.{n + 1}", PORT) for n in range(count)]


def listen(network: SessionNetwork, addresses: list[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Where each of them listens."""
    opened = asyncio.run(network.listen(addresses))
    places = {}
    for address, listening in opened.items():
        with socket.create_connection(listening.getsockname()[:2], timeout=5):
            assert select.select([listening], [], [], 5)[0]
        places[address] = listening.getsockname()[0]
        listening.close()
    return places


def test_a_start_asks_for_nothing_if_there_are_enough() -> None:
    with network(2) as (found, asked, _):
        addresses = own_addresses(2)
        assert listen(found, addresses) == {address: address[0] for address in addresses}
    assert asked == []


def test_it_asks_for_what_is_missing_and_no_more() -> None:
    with network(2) as (found, asked, _):
        assert len(listen(found, own_addresses(40))) == 40
    assert [message["inet"] for message in asked] == [32, 6]


def test_a_name_gets_an_address_and_a_line_once() -> None:
    with network(9) as (found, asked, _):
        for port in (PORT, PORT + 1):
            assert listen(found, [("models.example", port)]) == {("models.example", port): "127.1.0.2"}
    assert [message["hosts"] for message in asked] == ["127.1.0.2 models.example\n"]


def test_an_address_that_is_taken_is_left_out() -> None:
    with network(3) as (found, _, _), socket.create_server(("127.0.0.1", 0)) as taken:
        [free] = own_addresses(1)
        assert listen(found, [taken.getsockname(), free]) == {free: free[0]}


def test_a_session_that_has_ended_opens_nothing() -> None:
    here, there = Channel.pair()
    Channel(there).close()
    assert asyncio.run(SessionNetwork(here).listen([("127.0.0.1", 80)])) == {}
    here.close()
