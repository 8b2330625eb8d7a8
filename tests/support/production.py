"""The gateway as `agentcore-rl serve` runs it, with a scripted engine: every API, two keys, and no sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.call.core import Core
from agentcore_rl_toolkit.gateway.gateway import Server
from agentcore_rl_toolkit.gateway.http.production_app import ProductionApp
from agentcore_rl_toolkit.gateway.record.session import SessionSettings
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from support.gateway import gateway_tokenizer
from support.loop import loop_thread

KEYS = ["first-key-of-the-agent", "second-key-of-the-agent"]


@contextmanager
def production(engine: ScriptedEngine, **settings: Any) -> Iterator[Server]:
    core = Core(engine, ChatRenderer(gateway_tokenizer()))
    given = SessionSettings(session_id="production", **settings)
    make = partial(ProductionApp, keys=KEYS, settings=given)
    with loop_thread() as threads:

        async def start() -> Server:
            server = Server(core, admin_key="the admin key", host="127.0.0.1", port=0, make_app=make)
            await server.start()
            return server

        server = threads.run(start())
        try:
            yield server
        finally:
            threads.run(server.close())
