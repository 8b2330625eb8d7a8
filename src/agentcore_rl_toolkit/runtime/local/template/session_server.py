"""Inside a session: serves the agent's app on the session's socket, as `app.run()` would on a port.

What a session executes for the first time it pays for: Python specializes code as it runs, and the kernel copies every
page of memory that a fork writes. So the template serves an app of ours before it is forked, and a prepared session
answers its own request before it waits for its id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import tempfile
import threading
from typing import Any

from ....agent.logs import configure_logging
from ....errors import StartupFailed
from ...hosting.commands import SessionApp
from . import app_frames as frames
from .app_server import AppServer
from .init_process import read_assignment

_STARTUP_FAILED = 3
_WARM_UPS = 12
"""More than the eight calls after which Python specializes a function."""
_THREAD_SECONDS = 5


def serve_session(app: Any, listen: socket.socket, awaited: int) -> None:
    """Wait for the session's variables at the descriptor `awaited`, unless it is -1; then serve until SIGTERM."""
    configure_logging()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()  # forks would share its state; `random` reseeds itself
    try:
        asyncio.run(_serve(app, listen, awaited))
    except StartupFailed:  # it is logged
        raise SystemExit(_STARTUP_FAILED) from None


async def _serve(app: Any, listen: socket.socket, awaited: int) -> None:
    if awaited >= 0:
        await warm_up_server(_answer_nothing, [("POST", "/", b"")])
        variables = await _assignment(awaited)
        if variables is None:
            return
        os.environ.update(variables)
    server = AppServer(SessionApp(app))
    server.stop_on_signals()
    await server.serve(listen)


async def _assignment(awaited: int) -> dict[str, str] | None:
    readable, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(awaited, readable.set)
    await readable.wait()
    loop.remove_reader(awaited)
    return read_assignment(awaited)


async def warm_up_server(app: Any, requests: list[tuple[str, str, bytes]]) -> None:
    """Serve requests over real sockets, one after another. The app's lifespan is not called."""
    server, headers = AppServer(SessionApp(app)), {"content-type": "application/json"}
    for method, target, body in requests:
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=here)
        await server.connect(there)
        writer.write(frames.request(method, target, headers, body))
        await reader.read()
        writer.close()


async def _answer_nothing(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def warm_up_template() -> None:
    """In the template: serve requests and rollouts with an app of ours, if the agent's app is one of our class."""
    module = sys.modules.get("agentcore_rl_toolkit.agent.app")
    if module is None:
        asyncio.run(warm_up_server(_answer_nothing, [("POST", "/", b"")] * _WARM_UPS))
        return
    logging.disable()
    for _ in range(2):
        app = module.AgentCoreRLApp()
        app.rollout_entrypoint(_reward_nothing)
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(warm_up_server(app, [("POST", "/invocations", _rollout(folder, n)) for n in range(_WARM_UPS)]))
            for thread in threading.enumerate():
                if thread is not threading.current_thread():
                    thread.join(_THREAD_SECONDS)
    logging.disable(logging.NOTSET)


def _reward_nothing(payload: Any) -> dict[str, Any]:
    return {"rewards": 0.0}


def _rollout(folder: str, number: int) -> bytes:
    settings = {"exp_id": "warm-up", "input_id": str(number), "session_id": "0", "s3_bucket": folder}
    return json.dumps({"_rollout": settings} if number % 2 else {}).encode()
