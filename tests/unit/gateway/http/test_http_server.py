"""Bodies that arrive piece by piece."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.http.http_server import arriving
from support.virtual_time import run_virtual


async def read(pause: float, pieces: int) -> bytes:
    """A body that takes `pause` seconds before each of its pieces, read with 60 seconds of patience."""
    loop = asyncio.get_running_loop()
    connection = BaseProtocol(loop)
    connection.connection_made(asyncio.Transport())
    content = StreamReader(connection, 2**16, loop=loop)
    for number in range(pieces):
        loop.call_later(pause * (number + 1), content.feed_data, b"x")
    loop.call_later(pause * (pieces + 1), content.feed_eof)
    return b"".join([piece async for piece in arriving(content, 60)])


def test_a_slow_client_has_as_long_as_it_takes() -> None:
    assert run_virtual(read(50, 100)) == (b"x" * 100, pytest.approx(5050))


def test_a_silent_client_is_given_up() -> None:
    with pytest.raises(GatewayFault, match="the body stalled for 60 s") as raised:
        run_virtual(read(61, 100))
    assert raised.value.status == 408
