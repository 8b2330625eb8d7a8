"""The connection between an engine and a gateway process: a WebSocket that the trainer opens, with the admin key.

It passes TLS and load balancers like any other request. A connection that is silent is found by pings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from ...engine.base import Engine
from ...engine.channel.channel_engine import ChannelEngine
from ...engine.channel.channel_wire import LARGEST_BATCH
from ...engine.channel.engine_service import EngineService
from ...errors import GatewayFault

logger = logging.getLogger(__name__)

PATH = "/engine"
_PING_SECONDS = 20.0
_TAKEN = 4409
"""Closes the connection of an engine whose run is not the one that is connected."""
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0


class WebSocketLink:
    """A `Link` over an open WebSocket of either side."""

    def __init__(self, socket: web.WebSocketResponse | aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        await self._socket.send_bytes(data)

    async def receive(self) -> bytes | None:
        message = await self._socket.receive()
        return message.data if message.type is aiohttp.WSMsgType.BINARY else None


async def accept_engine(
    request: web.BaseRequest, engine: Engine, ready: Callable[[], Awaitable[object]]
) -> web.WebSocketResponse:
    """Serve a trainer's connection until it ends; `ready` is called once its engine can be sampled from."""
    if not isinstance(engine, ChannelEngine):
        raise GatewayFault(
            "this gateway samples from its own engine",
            status=409,
            code="engine_not_expected",
            hint="start it with --engine trainer",
        )
    socket = web.WebSocketResponse(heartbeat=_PING_SECONDS, max_msg_size=LARGEST_BATCH, compress=False)
    if not socket.can_prepare(request):
        raise GatewayFault.invalid("an engine connects with a WebSocket")
    await socket.prepare(request)
    try:
        await engine.attach(WebSocketLink(socket), ready)
    except GatewayFault as fault:
        logger.warning("a trainer's engine is refused: %s", fault.message)
        await socket.close(code=_TAKEN, message=fault.message.encode())
    except (ConnectionError, ValueError) as error:
        logger.warning("a trainer's engine is disconnected: %s", error)
    finally:
        await socket.close()
    return socket


async def keep_connected(
    http: aiohttp.ClientSession, url: str, service: EngineService, connected: Callable[[], object]
) -> None:
    """Serve the engine to the gateway process at `url`, again after every break, until cancelled.

    `connected` is called each time that the gateway has begun to use it.
    """
    wait = _FIRST_WAIT

    def accepted() -> None:
        nonlocal wait
        wait = _FIRST_WAIT
        connected()

    while True:
        try:
            async with http.ws_connect(
                url + PATH, heartbeat=_PING_SECONDS, max_msg_size=LARGEST_BATCH, compress=0
            ) as socket:
                await service.serve(WebSocketLink(socket), accepted)
                if socket.close_code == _TAKEN:
                    logger.warning("the gateway at %s samples from another run's engine; trying again", url)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            logger.debug("the engine is not connected to %s: %s", url, error)
        await asyncio.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
