"""A session's server stops when it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SERVE = """
import asyncio, os, signal, socket, sys

from agentcore_rl_toolkit.runtime.local.template.app_server import AppServer

async def app(scope, receive, send):
    for answer in ("startup", "shutdown"):
        assert (await receive())["type"] == f"lifespan.{answer}"
        print(answer, flush=True)
        await send({"type": f"lifespan.{answer}.complete"})

async def serve():
    server = AppServer(app)
    server.stop_on_signals()
    with socket.socket(socket.AF_UNIX) as listen:
        listen.bind(sys.argv[1])
        await server.serve(listen)

asyncio.run(serve())
print("ended")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_through_its_lifespan(number: int, tmp_path: os.PathLike[str]) -> None:
    command = [sys.executable, "-c", SERVE, os.path.join(tmp_path, "app.sock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "startup\n"
        process.send_signal(number)
        assert process.stdout.read() == "shutdown\nended\n"
    assert process.returncode == 0
